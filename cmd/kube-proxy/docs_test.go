package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/marked"
)

var update = flag.Bool("update", false, "rewrite the tables of flags and metrics in docs/migration.md")

const docs = "../../docs/migration.md"

// readDocs returns the text of docs/migration.md.
func readDocs(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// checkDocs compares what stands between two marks with what should, or writes it.
func checkDocs(t *testing.T, mark, want string) {
	t.Helper()
	marked.Check(t, docs, mark, want, *update)
}

// tableBelow returns the rows of the first table below a heading.
func tableBelow(t *testing.T, heading string) (rows [][]string) {
	t.Helper()
	_, text, ok := strings.Cut(readDocs(t), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", docs, heading)
	}
	for _, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "|"):
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.Trim(cells[i], " `")
			}
			rows = append(rows, cells)
		case len(rows) > 2:
			return rows[2:] // without its head
		}
	}
	t.Fatalf("%s has no table below %q", docs, heading)
	return nil
}

// flagDifferences says what flags do otherwise than kube-proxy's, beyond what the fields do that they set.
var flagDifferences = map[string]string{
	"config":                   "reads v1alpha2 too",
	"healthz-bind-address":     "`\"\"` disables the server; kube-proxy keeps the default",
	"healthz-port":             "changes the port; kube-proxy only knows 0, which disables the server",
	"iptables-masquerade-bit":  "works as long as `--proxy-mode` is not given; there is no flag for `nftables.masqueradeBit`",
	"iptables-min-sync-period": "is for nftables here, for which kube-proxy has no flag, and 0 by default",
	"iptables-sync-period":     "is for nftables here, for which kube-proxy has no flag; nothing is synced periodically",
	"metrics-bind-address":     "`\"\"` disables the server; kube-proxy keeps the default",
	"metrics-port":             "changes the port; kube-proxy only knows 0, which disables the server",
	"proxy-mode":               "`nftables` is the only mode, and the default",
	"version":                  "prints its own version too, after `+nftproxy-`",
	"write-config-to":          "writes v1alpha2 unless `--write-config-version` says otherwise, and also what `--config` says",
}

// flagVerdict says whether a flag does what kube-proxy's does. fields are the rows of the table of fields.
func flagVerdict(f flagInfo, ofKubeProxy bool, fields [][]string) string {
	switch difference := flagDifferences[f.name]; {
	case f.ignored() != "":
		return "not applicable: " + f.ignored()
	case !ofKubeProxy:
		return "only here"
	case difference != "":
		return "different: " + difference
	}
	verdict := "same"
	for _, row := range fields {
		if row[1] != f.field || f.field == "" {
			continue
		}
		if strings.HasPrefix(row[2], "same") {
			return "same"
		}
		verdict = "different: as the field `" + row[0] + "`"
	}
	return verdict
}

// flagDocs is the table of flags.
func flagDocs(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| flag | sets, in v1alpha2 | default | here | beside `--config` |\n|---|---|---|---|---|\n")
	flags, ofKubeProxy, fields := commandFlags(), kubeProxyFlags(t), tableBelow(t, "Configuration fields")
	for _, f := range defaultOptions().flagTable() {
		_, there := ofKubeProxy[f.name]
		row := []string{"`--" + f.name + "`", "", "", flagVerdict(f, there, fields), ""}
		if f.field != "" {
			row[1] = "`" + f.field + "`"
		}
		switch value := flags[f.name].DefValue; value {
		case "", "[]", "false", "0", "0s":
		default:
			row[2] = "`" + value + "`"
		}
		if f.besideConfig {
			row[4] = "yes"
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	return b.String()
}

func TestFlagTable(t *testing.T) {
	t.Run("is current", testFlagTableIsCurrent)
	t.Run("has every flag", testFlagTableHasEveryFlag)
	t.Run("its fields exist", testFlagTableFieldsExist)
}

func testFlagTableIsCurrent(t *testing.T) {
	checkDocs(t, "flags", flagDocs(t))
	for name := range flagDifferences {
		if _, ok := kubeProxyFlags(t)[name]; !ok {
			t.Errorf("--%s differs from a flag that kube-proxy does not have", name)
		}
	}
}
