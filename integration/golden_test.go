// Package integration tests the whole path on real kernels, with real packets.
package integration

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/integration/golden"
	"github.com/nftproxy/nftproxy/nft"
)

var update = flag.Bool("update", false, "rewrite ruleset.nft of every golden case")

// podLink is the name of an interface that packets of node-1's pods come in by.
func podLink(t testing.TB, g golden.Case) string {
	t.Helper()
	if bridge := g.Bridge(t); bridge != "" {
		return bridge
	}
	return "veth-1"
}

func printTables(tables []*nft.Table) string {
	var b strings.Builder
	for _, t := range tables {
		b.WriteString(t.String())
	}
	return b.String()
}

func TestGoldenRulesets(t *testing.T) {
	for _, g := range golden.Cases(t) {
		t.Run(g.Name, func(t *testing.T) {
			got := printTables(g.Compile(t))
			if *update {
				if err := os.WriteFile(g.Path("ruleset.nft"), []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(g.Path("ruleset.nft"))
			if err != nil {
				t.Fatalf("%v; `make golden` writes it", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("ruleset (-golden +compiled); `make golden` accepts the change:\n%s", diff)
			}
		})
	}
}
