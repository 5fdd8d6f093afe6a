package integration

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
)

func TestGoldenCases(t *testing.T) {
	t.Run("show a behaviour", testGoldenCasesShowABehaviour)
}

// docs/status.md says which cases show which behaviour. No case is left out there, and none is made up.
func testGoldenCasesShowABehaviour(t *testing.T) {
	text, err := os.ReadFile("../docs/status.md")
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
	for _, g := range flows.Cases(t) {
		there = append(there, g.Name)
	}
	slices.Sort(named)
	slices.Sort(there)
	if diff := cmp.Diff(there, slices.Compact(named)); diff != "" {
		t.Errorf("cases (-in testdata +in docs/status.md):\n%s", diff)
	}
}
