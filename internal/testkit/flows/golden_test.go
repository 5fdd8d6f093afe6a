package flows

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite baseline.nft, and ruleset.nft of every golden case")

func TestGoldenRulesets(t *testing.T) {
	t.Parallel()
	compiled := CompileBaseline(t)
	t.Run("baseline", func(t *testing.T) {
		got := PrintTables(compiled)
		if *update {
			if err := os.WriteFile(Baseline(t), []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		golden, err := os.ReadFile(Baseline(t))
		if err != nil {
			t.Fatal(err)
		}
		compareGolden(t, string(golden), got)
	})
	for _, g := range Cases(t) {
		t.Run(g.Name, func(t *testing.T) {
			got := PrintDiff(t, compiled, g.Compile(t))
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

func TestGoldenCases(t *testing.T) {
	t.Run("show a behaviour", testGoldenCasesShowABehaviour)
}

// docs/status.md says which cases show which behaviour. No case is left out there, and none is made up.
func testGoldenCasesShowABehaviour(t *testing.T) {
	text, err := os.ReadFile("../../../docs/status.md")
	if err != nil {
		t.Fatal(err)
	}
	var named, there []string
	for _, line := range strings.Split(string(text), "\n") {
		if _, cells, ok := strings.Cut(line, " | "); ok && strings.HasPrefix(line, "| ") {
			for _, match := range regexp.MustCompile("`([a-z0-9-]+)`").FindAllStringSubmatch(cells, -1) {
				named = append(named, match[1])
			}
		}
	}
	for _, g := range Cases(t) {
		there = append(there, g.Name)
	}
	slices.Sort(named)
	slices.Sort(there)
	if diff := cmp.Diff(there, slices.Compact(named)); diff != "" {
		t.Errorf("cases (-in testdata +in docs/status.md):\n%s", diff)
	}
}
