package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the table of flags in docs/configuration.md")

const (
	docs      = "../../docs/configuration.md"
	docsBegin = "<!-- flags -->\n"
	docsEnd   = "<!-- end of flags -->\n"
)

// flagDocs is the table of flags in docs/configuration.md.
func flagDocs() string {
	var b strings.Builder
	b.WriteString("| flag | v1alpha2 field | default | here | beside `--config` |\n|---|---|---|---|---|\n")
	flags := commandFlags()
	for _, f := range flagTable {
		row := []string{"`--" + f.name + "`", "", "", "works", ""}
		if f.field != "" {
			row[1] = "`" + f.field + "`"
		}
		switch value := flags[f.name].DefValue; value {
		case "", "[]", "false", "0", "0s":
		default:
			row[2] = "`" + value + "`"
		}
		if f.ignored != "" {
			row[3] = "ignored: " + f.ignored
		}
		if f.besideConfig {
			row[4] = "yes"
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	return b.String()
}

func TestTheDocumentationHasTheFlagTable(t *testing.T) {
	data, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(data), docsBegin)
	table, after, ok2 := strings.Cut(rest, docsEnd)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no %q and %q", docs, docsBegin, docsEnd)
	}
	want := flagDocs()
	if *update {
		if err := os.WriteFile(docs, []byte(before+docsBegin+want+docsEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("%s is not up to date; run go test ./cmd/kube-proxy -update (-want +got):\n%s", docs, diff)
	}
}
