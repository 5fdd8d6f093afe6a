package proxy

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// stickyPort is a Service port with session affinity and the endpoints 10.100.0.N.
func stickyPort(name string, endpoints ...byte) *model.ServicePort {
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "default", Service: name, Protocol: model.TCP, Family: model.IPv4},
		ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, name[0]}), Port: 80, AffinityTimeout: time.Hour,
	}
	for _, n := range endpoints {
		p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: stickyEndpoint(n)})
	}
	return p
}

func stickyEndpoint(n byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 100, 0, n}), 8080)
}

func changesOf(ports ...*model.ServicePort) *model.Changes {
	return &model.Changes{Ports: model.PortsByID(ports...)}
}

func fullSync(t *testing.T, b *Backend, ports ...*model.ServicePort) {
	t.Helper()
	changes := changesOf(ports...)
	changes.Full, changes.Node = true, &model.Node{Name: "node-1"}
	if err := b.Sync(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
}

// mapOf returns the map of a port's clients.
func mapOf(t *testing.T, b *Backend, p *model.ServicePort) compiler.AffinityMap {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.compiler.Affinity().Maps() {
		if m.Port == p.ID {
			return m
		}
	}
	t.Fatalf("%s has no map", p.ID)
	return compiler.AffinityMap{}
}

// client is the i-th client.
func client(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)})
}

// putClients has n clients be with an endpoint, as packets would.
func putClients(t *testing.T, c *nft.Conn, m compiler.AffinityMap, n int, endpoint byte) {
	t.Helper()
	var elements []nft.Element
	for i := range n {
		elements = append(elements, m.Element(client(i), stickyEndpoint(endpoint)))
	}
	commit(t, c, nft.Transaction{Steps: []nft.Step{{Op: nft.AddElements, Table: m.Table, Set: m.Set, Elements: elements}}})
}

func clientsIn(t *testing.T, c *nft.Conn, m compiler.AffinityMap) []nft.Element {
	t.Helper()
	elements, err := c.ReadElements(t.Context(), m.Table.Family, m.Table.Name, m.Set)
	if err != nil {
		t.Fatal(err)
	}
	return elements
}

func newSticky(t *testing.T, ports ...*model.ServicePort) (*Backend, *nft.Conn) {
	t.Helper()
	c := namespaceConn(t)
	b, err := NewBackend(c, compiler.Default(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	fullSync(t, b, ports...)
	others, err := c.Another()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = others.Close() })
	return b, others
}

func TestBackendAffinity(t *testing.T) {
	t.Run("Syncs succeed while clients expire", testSyncWhileClientsGo)
	t.Run("a client that comes after the Sync is deleted", testReconcilerDeletesLate)
	t.Run("a restart deletes clients of endpoints that went", testRestartDeletesClients)
	t.Run("a change of policy keeps clients", testPolicyKeepsClients)
	t.Run("a stop is no failure", testReconcilerStops)
	t.Run("the reconciler rests for its work alone", testReconcilerRestsForItsWork)
}

func testReconcilerRestsForItsWork(t *testing.T) {
	b, others := newSticky(t, stickyPort("web", 1, 2))
	b.affinity.conn = others
	m := mapOf(t, b, stickyPort("web"))
	putClients(t, others, m, 10, 9)
	var rest time.Duration
	besideASync(t, b, changesOf(stickyPort("web", 1)), func() { rest = b.affinity.runOnce(t.Context()) })
	if rest == 0 || rest > restPerWork*syncTime/2 {
		t.Errorf("after a Sync of %v, the reconciler rests for %v", syncTime, rest)
	}
}

// testSyncWhileClientsGo has clients vanish, as when they expire, while Syncs and the reconciler delete them.
func testSyncWhileClientsGo(t *testing.T) {
	b, others := newSticky(t, stickyPort("web", 1, 2, 3))
	m := mapOf(t, b, stickyPort("web"))
	watch(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel()
	came := 0
	busy.Go(func() {
		for ctx.Err() == nil {
			for i := range 200 {
				e := m.Element(client(i), stickyEndpoint(1))
				step := nft.Step{Op: nft.AddElements, Table: m.Table, Set: m.Set, Elements: []nft.Element{e}}
				if _, err := others.Commit(t.Context(), nft.Transaction{Steps: []nft.Step{step}}); err == nil {
					came++
				}
				step.Op = nft.DeleteElements
				_, _ = others.Commit(t.Context(), nft.Transaction{Steps: []nft.Step{step}})
			}
		}
	})
	for range 100 {
		for _, endpoints := range [][]byte{{2, 3}, {1, 2, 3}} {
			if err := b.Sync(ctx, changesOf(stickyPort("web", endpoints...))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := b.Sync(ctx, changesOf(stickyPort("web", 2, 3))); err != nil {
		t.Fatal(err)
	}
	cancel()
	busy.Wait()
	if came == 0 {
		t.Error("no client came")
	}
	eventually(t, "nobody is with the endpoint that went", func() bool { return len(clientsIn(t, b.conn, m)) == 0 })
}

// testReconcilerDeletesLate adds a client after the Sync that took its endpoint away, as a packet does that was on its
// way.
func testReconcilerDeletesLate(t *testing.T) {
	b, others := newSticky(t, stickyPort("web", 1, 2, 3))
	m := mapOf(t, b, stickyPort("web"))
	putClients(t, others, m, 10, 1)
	if err := b.Sync(t.Context(), changesOf(stickyPort("web", 2, 3))); err != nil {
		t.Fatal(err)
	}
	if left := clientsIn(t, others, m); len(left) != 0 {
		t.Errorf("after the Sync %d clients are with the endpoint that went", len(left))
	}
	putClients(t, others, m, 5, 1)
	watch(t, b)
	eventually(t, "the late clients are deleted", func() bool { return len(clientsIn(t, others, m)) == 0 })
	eventually(t, "the map is reconciled", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.compiler.Affinity().Stale()) == 0
	})
}

// testRestartDeletesClients has a process find clients of an endpoint that went while none ran.
func testRestartDeletesClients(t *testing.T) {
	b, others := newSticky(t, stickyPort("web", 1, 2, 3))
	m := mapOf(t, b, stickyPort("web"))
	putClients(t, others, m, 10, 1)
	next, err := NewBackend(b.conn, compiler.Default(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	fullSync(t, next, stickyPort("web", 2, 3))
	if left := clientsIn(t, others, m); len(left) != 0 {
		t.Errorf("%d clients are with an endpoint that went before the restart", len(left))
	}
}

// testPolicyKeepsClients changes externalTrafficPolicy while a map of many clients is in use.
func testPolicyKeepsClients(t *testing.T) {
	const clients = 12_000
	port := func(policy model.TrafficPolicy) *model.ServicePort {
		p := stickyPort("web", 1, 2, 3)
		p.Local = p.Cluster
		p.ExternalPolicy, p.LoadBalancerIPs = policy, []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1})}
		return p
	}
	b, others := newSticky(t, port(model.PolicyLocal))
	b.affinity.copyTime = time.Minute // an emulated machine (make test-kernels) reads 12,000 clients in more than 250 ms
	var local, cluster compiler.AffinityMap
	for _, m := range b.compiler.Affinity().Maps() {
		if m.Set.Name == "affinity-local.default.web.tcp" {
			local = m
		} else {
			cluster = m
		}
	}
	putClients(t, others, local, clients, 2)
	// Right after a map has grown a listing leaves clients out.
	listedWhole := func(m compiler.AffinityMap) {
		t.Helper()
		eventually(t, m.Set.Name+" is listed whole", func() bool { return len(clientsIn(t, others, m)) == clients })
	}
	listedWhole(local)
	if err := b.Sync(t.Context(), changesOf(port(model.PolicyCluster))); err != nil {
		t.Fatal(err)
	}
	listedWhole(cluster)
	if err := b.Sync(t.Context(), changesOf(port(model.PolicyLocal))); err != nil {
		t.Fatal(err)
	}
	listedWhole(local)
}

// The process may stop when the reconciler has just begun to restore clients.
func testReconcilerStops(t *testing.T) {
	c := newFlows(t)
	fullSync(t, c.backend, stickyPort("a", 1))
	var log bytes.Buffer
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))))
	stop()
	for range 20 { // run may notice before it begins
		c.backend.affinity.restore = true
		c.backend.affinity.wake.signal()
		if err := c.backend.affinity.run(ctx); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(log.String(), "Cannot restore session affinity"); n > 0 {
		t.Errorf("it logs %d failures", n)
	}
}

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
	syncTo := func(b *Backend, changes *model.Changes) {
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
	syncTo(b, few.changes())
	for i := few.services; i < many.services; i++ {
		p := many.port(i)
		syncTo(b, &model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: p}})
	}
	if got := sizes(); len(got) != 2 || got[nft.DefaultSize] != 64 {
		t.Errorf("maps by their size: %v, want 64 of %d and 6 smaller ones", got, nft.DefaultSize)
	}
	commits = 0
	syncTo(newBackend(), many.changes())
	if got := sizes(); commits > 0 || got[nft.DefaultSize] != 64 {
		t.Errorf("a new process committed %d times; maps by their size: %v", commits, got)
	}
}
