package proxy

import (
	"maps"
	"testing"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// So many endpoints are not listed, but asked for by their keys.
func TestBackendRestartWithManyEndpoints(t *testing.T) {
	c := cluster{services: 1_400, endpoints: 50}
	conn := namespaceConn(t)
	more := cluster{services: c.services + 3, endpoints: c.endpoints}
	before := more.changes()
	maps.Copy(before.Ports, c.changed().Ports)
	start := func(changes *model.Changes) (b *Backend, elements int) {
		b, err := NewBackend(conn, c.config(), Hooks{OnCommit: func(s nft.CommitStats) { elements += s.Elements }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		if err := b.Sync(t.Context(), changes); err != nil {
			t.Fatal(err)
		}
		return b, elements
	}
	start(before)
	after, elements := start(c.changes())
	compareWithKernel(t, conn, after)
	// Of the 14 Services that changed, five have all endpoints in another slot.
	if elements == 0 || elements > 1000 {
		t.Errorf("the restart added and deleted %d elements", elements)
	}
}
