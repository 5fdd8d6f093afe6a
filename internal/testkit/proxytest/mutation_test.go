package proxytest

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/mutation"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

var mutations = flag.Bool("mutations", false, "try all mutations of the compiler, and not only two of them")

// TestMutations builds proxies whose compiler has a defect. The cases about it must find
// it, and one that is not about it must not.
func TestMutations(t *testing.T) {
	netns.Need(t)
	for i, m := range mutation.All {
		if i > 1 && !*mutations {
			break
		}
		t.Run(m.Name, func(t *testing.T) {
			cases := []flows.Case{flows.FindCase(t, m.Finds), flows.FindCase(t, m.Passes)}
			report, err := Run(t.Context(), cases, Options{Command: mutant(t, m.Name) + " --config {config}"})
			if err != nil {
				t.Fatal(err)
			}
			verdicts := map[string]Verdict{}
			for _, r := range report.Results {
				verdicts[r.Case] = r.Verdict
				if r.Verdict != Same {
					t.Logf("%s: %s", r.Case, r.brief())
				}
			}
			if verdicts[m.Finds] != New || verdicts[m.Passes] != Same {
				t.Errorf("%s is %s, want new; %s is %s, want same", m.Finds, verdicts[m.Finds], m.Passes, verdicts[m.Passes])
			}
		})
	}
}

// mutant builds our program with a mutation, and returns its path.
func mutant(t *testing.T, name string) string {
	t.Helper()
	m, err := mutation.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "mutant")
	if err := m.Build(t.Context(), "go", "../../..", program); err != nil {
		t.Fatal(err)
	}
	return program
}
