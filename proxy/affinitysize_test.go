package proxy

import (
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

func TestAffinityMapSize(t *testing.T) {
	t.Run("stays what it is in the kernel", testAffinityMapSizeStays)
}

// Maps of clients are smaller where there are many. Those that the kernel has keep their size, and nothing replaces
// them for it.
func testAffinityMapSizeStays(t *testing.T) {
	few, many := cluster{services: 60, endpoints: 2, affinity: time.Hour}, cluster{services: 70, endpoints: 2, affinity: time.Hour}
	conn := namespaceConn(t)
	commits := 0
	newBackend := func() *Backend {
		b, err := NewBackend(conn, compiler.Default(), Hooks{OnCommit: func(nft.CommitStats) { commits++ }, OnRepair: func() { t.Error("the tables were repaired") }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	sync := func(b *Backend, changes *model.Changes) {
		t.Helper()
		if err := b.Sync(t.Context(), changes); err != nil {
			t.Fatal(err)
		}
	}
	sizes := func() map[uint32]int {
		table, err := conn.ReadTable(t.Context(), nft.FamilyIP, compiler.TableName)
		if err != nil {
			t.Fatal(err)
		}
		out := map[uint32]int{}
		for _, s := range table.Sets {
			if compiler.IsAffinityMap(s.Name) {
				out[s.Size]++
			}
		}
		return out
	}
	b := newBackend()
	sync(b, few.changes())
	for i := few.services; i < many.services; i++ {
		p := many.port(i)
		sync(b, &model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: p}})
	}
	if got := sizes(); len(got) != 2 || got[nft.DefaultSize] != 64 {
		t.Errorf("maps by their size: %v, want 64 of %d and 6 smaller ones", got, nft.DefaultSize)
	}
	commits = 0
	sync(newBackend(), many.changes())
	if got := sizes(); commits > 0 || got[nft.DefaultSize] != 64 {
		t.Errorf("a new process committed %d times; maps by their size: %v", commits, got)
	}
}
