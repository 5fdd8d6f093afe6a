package snapshot_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/ruledump/corpus"
	"github.com/nftproxy/nftproxy/nft"
)

// texts prints tables with their sets in the order of their names, since JSON has sets and maps apart.
func texts(tables []*nft.Table) []string {
	var out []string
	for _, t := range tables {
		sorted := *t
		sorted.Sets = slices.SortedFunc(slices.Values(t.Sets), func(a, b *nft.Set) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, sorted.String())
	}
	return out
}

func TestDumpOfGoldenCases(t *testing.T) {
	for _, c := range corpus.Cases(t) {
		t.Run(c.Name+"/reads back as it was", func(t *testing.T) {
			s := c.Snapshot(t)
			if diff := cmp.Diff(texts(s.Tables), texts(corpus.Redumped(t, s).Tables)); diff != "" {
				t.Errorf("-written +read:\n%s", diff)
			}
		})
	}
}
