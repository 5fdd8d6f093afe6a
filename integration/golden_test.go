// Package integration tests the whole path on real kernels, with real packets.
package integration

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/nft"
)

var update = flag.Bool("update", false, "rewrite baseline.nft, and ruleset.nft of every golden case")

// podLink is the name of an interface that packets of node-1's pods come in by.
func podLink(t testing.TB, g flows.Case) string {
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

// printDiff prints the transaction that turns the tables have into want, as a script for nft -f.
func printDiff(t testing.TB, have, want []*nft.Table) string {
	t.Helper()
	if len(have) != len(want) {
		t.Fatalf("%d tables cannot become %d", len(have), len(want))
	}
	var tx nft.Transaction
	for i := range have {
		tx.Append(nft.Diff(have[i], want[i]))
	}
	return tx.String()
}

func TestGoldenRulesets(t *testing.T) {
	compiled := flows.CompileBaseline(t)
	t.Run("baseline", func(t *testing.T) {
		got := printTables(compiled)
		if *update {
			if err := os.WriteFile(flows.Baseline(t), []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		compareGolden(t, readFile(t, flows.Baseline(t)), got)
	})
	for _, g := range flows.Cases(t) {
		t.Run(g.Name, func(t *testing.T) {
			got := printDiff(t, compiled, g.Compile(t))
			if *update {
				g.SetRuleset(t, got)
				return
			}
			compareGolden(t, g.Ruleset(), got)
		})
	}
}

func compareGolden(t *testing.T, want, got string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ruleset (-golden +compiled); `make golden` accepts the change:\n%s", diff)
	}
}
