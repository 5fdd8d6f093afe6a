package verb

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"

	"github.com/google/go-cmp/cmp"
)

const exampleDir = "../../../docs/example/"

var exampleFlags = []string{"--manifests=" + exampleDir + "manifests", "--config=" + exampleDir + "config.yaml", "--node=node-1"}

// dumpOf writes a dump of the example, changed by edit, and returns its path.
func dumpOf(t *testing.T, edit func(string) string) string {
	t.Helper()
	return dumpOfTables(t, edit, func(*nft.Table) {})
}

// dumpOfTables writes a dump of the example, with changed tables and then changed as text, and returns its path.
func dumpOfTables(t *testing.T, edit func(string) string, change func(*nft.Table)) string {
	t.Helper()
	s, err := ruledump.FromManifests(exampleDir+"manifests", ruledump.Compilation{Node: "node-1", Config: exampleDir + "config.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range s.Tables {
		change(table)
	}
	var b strings.Builder
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(path, []byte(edit(b.String())), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func asWritten(text string) string { return text }

// different runs diff with a dump in which an endpoint is another, a frontend has gone and a rule was added.
func different(t *testing.T, args ...string) string {
	t.Helper()
	path := dumpOfTables(t, asWritten, func(table *nft.Table) {
		if table.Family != nft.FamilyIP {
			return
		}
		table.Chain("nat-prerouting").Rules = []nft.Rule{nft.NewRule(nft.Counter{}, nft.Accept)}
		replaced := false
		for _, set := range table.Sets {
			for _, e := range set.Elements() {
				was := e
				e.Key = nft.Data(strings.ReplaceAll(string(e.Key), "\x0a\x60\x00\x1e", "\x0a\x60\x00\x1f"))
				if set.Name == "endpoints" && !replaced {
					e.Value = nft.Data(strings.Replace(string(e.Value), "\x0a\xf4\x01\x06", "\x0a\xf4\x01\x42", 1))
					replaced = e.Value != was.Value
				}
				if e != was {
					set.Remove(was.Key)
					set.Put(e)
				}
			}
		}
	})
	status, stdout, stderr := execute(append(append([]string{"diff", "--dump", path}, exampleFlags...), args...)...)
	if status != exitDifferent || stderr != "" {
		t.Fatalf("status %d: %s", status, stderr)
	}
	return stdout
}

func TestDiff(t *testing.T) {
	t.Run("of the same is empty", func(t *testing.T) {
		path := dumpOf(t, asWritten)
		status, stdout, stderr := execute(append([]string{"diff", "--dump", path}, exampleFlags...)...)
		if status != 0 || stdout != "no difference\n" || stderr != "" {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
	})
	t.Run("names Services, then elements and rules", func(t *testing.T) {
		want := `- shop/empty 10.96.0.30:80/TCP (ClusterIP): missing
+ shop/empty 10.96.0.31:80/TCP (ClusterIP): not desired
~ shop/web:http 10.96.0.10:80/TCP (ClusterIP)
    endpoints: desired 10.244.1.5:8080,10.244.1.6:8080,10.244.2.6:8080, actual 10.244.1.5:8080,10.244.1.66:8080,10.244.2.6:8080
elements and rules: 8 different
`
		got := different(t)
		if !strings.HasPrefix(got, want) {
			t.Errorf("-want +got:\n%s", cmp.Diff(want, got))
		}
		for _, line := range []string{
			"  + ip kube-proxy nat-prerouting: counter accept\n", "  - ip kube-proxy nat-prerouting: jump services\n",
			"  + ip kube-proxy cluster-ips: 10.96.0.31\n", "  - ip kube-proxy cluster-ips: 10.96.0.30\n",
			"  + ip kube-proxy endpoints: 10.96.0.10 . tcp . 80 . 1 : 10.244.1.66 . 8080\n", "  - ip kube-proxy endpoints: 10.96.0.10 . tcp . 80 . 1 : 10.244.1.6 . 8080\n",
		} {
			if !strings.Contains(got, line) {
				t.Errorf("no %q in\n%s", line, got)
			}
		}
	})
	t.Run("of a kernel without IPv6 wants none of it", func(t *testing.T) {
		without := func(mark string) string {
			return dumpOf(t, func(s string) string {
				var document map[string]any
				if err := json.Unmarshal([]byte(s), &document); err != nil {
					t.Fatal(err)
				}
				document["tables"] = document["tables"].([]any)[:1]
				if mark != "" {
					document[mark] = true
				}
				text, err := json.Marshal(document)
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			})
		}
		if status, stdout, _ := execute(append([]string{"diff", "--dump", without("ipv4Only")}, exampleFlags...)...); status != 0 || stdout != "no difference\n" {
			t.Errorf("status %d, %s", status, stdout)
		}
		if status, stdout, _ := execute(append([]string{"diff", "--dump", without("")}, exampleFlags...)...); status != exitDifferent || !strings.Contains(stdout, "- ip6 kube-proxy: table\n") {
			t.Errorf("with IPv6: status %d, %s", status, stdout)
		}
	})
	t.Run("that fails has a status of its own", func(t *testing.T) {
		for name, args := range map[string][]string{
			"no such dump":      append([]string{"diff", "--dump=/nonexistent"}, exampleFlags...),
			"no such manifests": {"diff", "--dump=/nonexistent", "--manifests=/nonexistent", "--node=node-1"},
			"nothing wanted":    {"diff"},
		} {
			if status, _, stderr := execute(args...); status != exitFailed || stderr == "" {
				t.Errorf("%s: status %d, %q", name, status, stderr)
			}
		}
	})
}

func TestBadSources(t *testing.T) {
	truncated := dumpOf(t, func(s string) string { return s[:len(s)/2] })
	newer := dumpOf(t, func(s string) string { return strings.Replace(s, "ruledump.nftproxy/v1", "ruledump.nftproxy/v2", 1) })
	another := dumpOfTables(t, asWritten, func(table *nft.Table) {
		table.Comment = "rules for kube-proxy"
		table.Set("service-ips").Name = "service-ips-of-kube-proxy"
	})
	layout := dumpOfTables(t, asWritten, func(table *nft.Table) { table.Set("hairpin").Name = "hairpins" })
	foreign := dumpOfTables(t, asWritten, func(table *nft.Table) { table.Name = "filter" })
	empty := dumpOf(t, func(s string) string {
		return `{"apiVersion": "ruledump.nftproxy/v1", "kind": "Ruleset", "origin": "kernel", "addresses": [], "tables": []}`
	})
	for _, tt := range []struct{ name, dump, want string }{
		{"truncated", truncated, "the dump is truncated: it ends in the middle"},
		{"of a newer version", newer, `the dump has apiVersion "ruledump.nftproxy/v2", and this ruledump reads ruledump.nftproxy/v1: use the ruledump of the version that wrote it`},
		{"of another program's tables", another, "table ip kube-proxy is not nftproxy's: it has no map service-ips, so another program wrote it"},
		{"of another layout", layout, "table ip kube-proxy was written by another version of nftproxy: it has no set hairpin"},
		{"of a foreign table", foreign, "the dump has a table ip filter, and the proxy's are called kube-proxy"},
		{"without a table", empty, "the dump has no table ip kube-proxy or ip6 kube-proxy"},
	} {
		for _, command := range [][]string{{"services"}, {"stats"}, {"graph", "shop/web"}, {"explain", "--from=10.0.0.1", "--to=10.96.0.10:80"}} {
			t.Run(tt.name+"/"+command[0], func(t *testing.T) {
				status, stdout, stderr := execute(append(command, "--dump", tt.dump)...)
				if status != exitFailed || stdout != "" || !strings.HasSuffix(stderr, tt.want+"\n") || strings.Count(stderr, "\n") != 1 {
					t.Errorf("status %d, stdout %q, stderr %q, want %q", status, stdout, stderr, tt.want)
				}
			})
		}
	}
}
