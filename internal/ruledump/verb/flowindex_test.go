package verb

import (
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Many frontends are one query, since the kernel walks the whole table for each.
func TestFlowIndexQueries(t *testing.T) {
	rules := &ruledump.Snapshot{Tables: []*nft.Table{{Family: nft.FamilyIP, Name: compiler.TableName}}}
	for _, tc := range []struct{ frontends, want int }{{0, 0}, {1, 1}, {manyQueries, manyQueries}, {manyQueries + 1, 1}, {100, 1}} {
		x := flowIndex{rules: rules, frontends: map[dialedKey]*compiler.Frontend{}}
		for i := range tc.frontends {
			x.frontends[dialedKey{nft.FamilyIP, model.TCP, netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), uint16(i+1))}] = nil
		}
		if got := x.queries(); len(got) != tc.want {
			t.Errorf("%d frontends are %d queries, want %d", tc.frontends, len(got), tc.want)
		}
	}
}
