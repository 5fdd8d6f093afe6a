package metrics

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// countedBackend returns a backend whose tables count, and a connection to them.
func countedBackend(t testing.TB) (*proxy.Backend, *nft.Conn) {
	t.Helper()
	conn, err := nft.Dial(nft.Config{NetNS: netns.ForTest(t).FD()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	config := compiler.Default()
	config.CountServices = true
	b, err := proxy.NewBackend(conn, config, proxy.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, conn
}

// syncServices commits n Services with one endpoint each.
func syncServices(t testing.TB, b *proxy.Backend, n int) {
	t.Helper()
	changes := &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}, Node: &model.Node{Name: "node-1"}}
	for i := range n {
		addr := func(network byte) netip.Addr { return netip.AddrFrom4([4]byte{10, network, byte(i >> 8), byte(i)}) }
		p := &model.ServicePort{
			ID:        model.PortID{Namespace: "default", Service: fmt.Sprintf("service-%d", i), Protocol: model.TCP, Family: model.IPv4},
			ClusterIP: addr(96), Port: 80, Cluster: []model.Endpoint{{AddrPort: netip.AddrPortFrom(addr(128), 8080)}},
		}
		changes.Ports[p.ID] = p
	}
	if err := b.Sync(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
}

func TestServiceCountsLeaveOutLargeSets(t *testing.T) {
	b, conn := countedBackend(t)
	counts := NewServiceCounts(conn, b.View)
	read := func() (sets, left int) {
		t.Helper()
		if err := counts.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, s := range counts.totals.sets {
			if len(s.elements) > 0 {
				sets++
			}
		}
		return sets, counts.TooLarge()
	}
	if sets, left := read(); sets != 0 || left != 0 {
		t.Errorf("before the first Sync %d sets were read, %d left out", sets, left)
	}
	syncServices(t, b, 3)
	counts.maxElements = 2
	if sets, left := read(); sets != 0 || left != 2 {
		t.Errorf("of 3 elements, 2 allowed: %d sets were read, %d left out; want 0 and 2", sets, left)
	}
	counts.maxElements = 3
	if sets, left := read(); sets != 2 || left != 0 {
		t.Errorf("of 3 elements, 3 allowed: %d sets were read, %d left out; want 2 and 0", sets, left)
	}
}

// BenchmarkReadCounts measures one reading of the counters of all Services.
func BenchmarkReadCounts(b *testing.B) {
	for _, services := range []int{1_000, 10_000, maxCountedElements} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			backend, conn := countedBackend(b)
			syncServices(b, backend, services)
			counts := NewServiceCounts(conn, backend.View)
			for b.Loop() {
				if err := counts.Read(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
