package ruledump_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
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
	for _, c := range flows.Cases(t) {
		t.Run(c.Name+"/reads back as it was", func(t *testing.T) {
			written, err := ruledump.FromManifests(c.ManifestsDir(t), ruledump.Compilation{Node: lab.NodeName, Config: c.ConfigFile(t)})
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := written.Write(&b); err != nil {
				t.Fatal(err)
			}
			read, err := ruledump.FromDump(&b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(texts(written.Tables), texts(read.Tables)); diff != "" {
				t.Errorf("-written +read:\n%s", diff)
			}
		})
	}
}
