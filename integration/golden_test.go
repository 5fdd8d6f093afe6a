// Package integration tests the whole path on real kernels, with real packets.
package integration

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

func replace(t testing.TB, c *nft.Conn, tables []*nft.Table) {
	t.Helper()
	var tx nft.Transaction
	for _, table := range tables {
		tx.Append(nft.Replace(table))
	}
	if _, err := c.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

// readBack returns the proxy's tables as the kernel holds them.
func readBack(t testing.TB, c *nft.Conn) (tables []*nft.Table) {
	t.Helper()
	for _, f := range nft.Families {
		if f == nft.FamilyIP6 && !lab.HasIPv6 {
			continue
		}
		table, err := c.ReadTable(t.Context(), f, compiler.TableName)
		if err != nil {
			t.Fatal(err)
		}
		if table == nil {
			t.Fatalf("the kernel has no table %s %s", f, compiler.TableName)
		}
		tables = append(tables, table)
	}
	return tables
}

// Every golden case in a real kernel: what was committed reads back the same, nft lists it,
// and every flow becomes what the case says.
func TestGoldenFlows(t *testing.T) {
	t.Parallel()
	labs := map[string]*lab.Lab{}
	for _, g := range flows.Cases(t) {
		bridge := g.Bridge(t)
		if labs[bridge] == nil {
			labs[bridge] = lab.ForTestWithBridge(t, bridge)
		}
		l := labs[bridge]
		t.Run(g.Name, func(t *testing.T) {
			c := lab.Conn(t, l.Node)
			tables := g.Compile(t)
			replace(t, c, tables)
			if diff := cmp.Diff(flows.PrintTables(tables), flows.PrintTables(readBack(t, c))); diff != "" {
				t.Errorf("the kernel holds something else (-compiled +read back):\n%s", diff)
			}
			sendFlows(t, l, g)
		})
	}
}

// serve sets up the case's endpoints until the test ends.
func serve(t *testing.T, l *lab.Lab, g flows.Case) *flows.Runner {
	t.Helper()
	endpoints, err := flows.Endpoints(g.Manifests())
	if err != nil {
		t.Fatal(err)
	}
	r, err := flows.NewRunner(l, endpoints)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func sendFlows(t *testing.T, l *lab.Lab, g flows.Case) {
	t.Helper()
	if err := serve(t, l, g).Run(g.Flows()); err != nil {
		t.Error(err)
	}
}

func TestNftProgram(t *testing.T) {
	t.Parallel()
	t.Run("loads goldens as they are compiled", testGoldensLoadedByTheNftProgramAreTheSame)
}

// The goldens loaded by the nft program make the kernel hold what our transaction makes it
// hold, and nft lists ours and its own alike.
func testGoldensLoadedByTheNftProgramAreTheSame(t *testing.T) {
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	baseline := readFile(t, flows.Baseline(t))
	for _, g := range flows.Cases(t) {
		t.Run(g.Name, func(t *testing.T) {
			replace(t, c, withoutAffinityUpdatesIPv6(g.Compile(t)))
			ours, listed := readBack(t, c), lab.Nft(t, l.Node, "", "list", "ruleset")
			// Without the rules that fill it, a map has the size that it was made with; ours have none.
			script := "flush ruleset\n" + baseline + g.Ruleset()
			loadable := strings.ReplaceAll(learningIPv6.ReplaceAllString(script, ""), fmt.Sprintf(" size %d;", nft.DefaultSize), "")
			lab.Nft(t, l.Node, loadable, "-f", "-")
			if diff := flows.PrintDiff(t, readBack(t, c), ours); diff != "" {
				t.Errorf("what nft loaded differs from what we committed by\n%s", diff)
			}
			if diff := cmp.Diff(sortedLines(lab.Nft(t, l.Node, "", "list", "ruleset")), sortedLines(listed)); diff != "" {
				t.Errorf("nft lists (-loaded by nft +committed by us):\n%s", diff)
			}
		})
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// learningIPv6 is a rule that nft 1.0.6 lists but aborts on when it is to load it: it has room for 16 bytes of a
// key in an update statement.
var learningIPv6 = regexp.MustCompile(`(?m)^.* update @affinity\S* \{ ip6 .*\n`)

func withoutAffinityUpdatesIPv6(tables []*nft.Table) []*nft.Table {
	for _, table := range tables {
		for i, chain := range table.Chains {
			kept := *chain
			kept.Rules = slices.DeleteFunc(slices.Clone(chain.Rules), func(r nft.Rule) bool { return learningIPv6.MatchString(r.String() + "\n") })
			table.Chains[i] = &kept
		}
	}
	return tables
}

// sortedLines takes a listing apart into what it lists, in order: the kernel lists elements
// in the order of a hash with a random seed.
func sortedLines(listing string) []string {
	fields := strings.FieldsFunc(listing, func(r rune) bool { return r == '\n' || r == ',' || r == '{' || r == '}' })
	for i := range fields {
		fields[i] = strings.TrimPrefix(strings.TrimSpace(fields[i]), "elements = ")
	}
	slices.Sort(fields)
	return fields
}
