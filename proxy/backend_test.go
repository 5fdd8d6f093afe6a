package proxy

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// namespaceConn returns a connection to the nf_tables of a network namespace of the test's own.
func namespaceConn(t testing.TB) *nft.Conn {
	t.Helper()
	c, err := nft.Dial(nft.Config{NetNS: netns.ForTest(t).FD()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func printed(tables ...*nft.Table) string {
	var b strings.Builder
	for _, t := range tables {
		sorted := *t
		sorted.Sets, sorted.Chains = slices.Clone(t.Sets), slices.Clone(t.Chains)
		slices.SortFunc(sorted.Sets, func(a, b *nft.Set) int { return strings.Compare(a.Name, b.Name) })
		nft.SortChains(sorted.Chains)
		b.WriteString(sorted.String())
	}
	return b.String()
}

// randomPort returns one of a few Service ports in one of many shapes.
func randomPort(r *rand.Rand) *model.ServicePort {
	f := model.Families[r.IntN(2)]
	at := func(network byte, n int) netip.Addr {
		host := byte(1 + r.IntN(n))
		if f == model.IPv6 {
			return netip.AddrFrom16([16]byte{0xfd, 1: network, 15: host})
		}
		return netip.AddrFrom4([4]byte{10, network, 0, host})
	}
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "default", Service: fmt.Sprintf("service-%d", r.IntN(4)), Protocol: model.TCP, Family: f},
		ClusterIP: at(96, 3), Port: 80, NodePort: uint16(30000 + r.IntN(3)),
		InternalPolicy: model.TrafficPolicy(r.IntN(2)), ExternalPolicy: model.TrafficPolicy(r.IntN(2)),
		LoadBalancerIPs: []netip.Addr{at(100, 3)}, ExternalIPs: []netip.Addr{at(100, 3)},
	}
	if r.IntN(2) == 0 {
		p.AffinityTimeout = time.Duration(1+r.IntN(2)) * time.Hour
	}
	if r.IntN(2) == 0 {
		a := at(101, 200)
		p.LoadBalancerSourceRanges = []netip.Prefix{netip.PrefixFrom(a, a.BitLen()-r.IntN(9)).Masked()}
	}
	for _, list := range []*[]model.Endpoint{&p.Cluster, &p.Local} {
		for range r.IntN(4) {
			*list = append(*list, model.Endpoint{AddrPort: netip.AddrPortFrom(at(244, 20), 8080)})
		}
		slices.SortFunc(*list, model.CompareEndpoints)
		*list = slices.Compact(*list)
	}
	return p
}

func TestBackendSync(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("the kernel holds what was compiled and the same again sends nothing/seed %d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			c := namespaceConn(t)
			commits, refused := 0, false
			b, err := NewBackend(c, compiler.Default(), Hooks{OnCommit: func(nft.CommitStats) { commits++ }, OnRepair: func() { refused = true }})
			if err != nil {
				t.Fatal(err)
			}
			changes := &model.Changes{Full: true, Node: &model.Node{Name: "node-1"}, ServiceCIDRsChanged: true}
			for range 25 {
				for again := range 2 {
					before := commits
					if err := b.Sync(t.Context(), changes); err != nil {
						t.Fatal(err)
					}
					if again == 1 && commits != before {
						t.Fatal("the same changes again were committed")
					}
				}
				if compareWithKernel(t, c, b); refused {
					t.Fatal("the kernel refused the change, and the tables were read back")
				}
				changes = &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
				for range 1 + r.IntN(3) {
					p := randomPort(r)
					if changes.Ports[p.ID] = p; r.IntN(4) == 0 {
						changes.Ports[p.ID] = nil
					}
				}
			}
		})
	}
}

func compareWithKernel(t *testing.T, c *nft.Conn, b *Backend) {
	t.Helper()
	if err := kernelDiffers(t.Context(), c, b); err != nil {
		t.Fatal(err)
	}
}

// kernelDiffers says how the kernel's tables differ from the compiled ones; nil if they do not.
func kernelDiffers(ctx context.Context, c *nft.Conn, b *Backend) error {
	var held []*nft.Table
	for _, f := range nft.Families {
		table, err := c.ReadTable(ctx, f, compiler.TableName)
		if err == nil && table == nil {
			err = fmt.Errorf("there is no table %s", f)
		}
		if err != nil {
			return err
		}
		held = append(held, table)
	}
	if diff := cmp.Diff(printed(b.Tables()...), printed(held...)); diff != "" {
		return fmt.Errorf("the kernel holds (-compiled +held):\n%s", diff)
	}
	return nil
}

// What only forwarders of requests read is no work for the kernel.
func TestBackendSyncDetails(t *testing.T) {
	commits := 0
	b, err := NewBackend(namespaceConn(t), compiler.Default(), Hooks{OnCommit: func(nft.CommitStats) { commits++ }})
	if err != nil {
		t.Fatal(err)
	}
	port := randomPort(rand.New(rand.NewPCG(1, 0)))
	port.Cluster = []model.Endpoint{{AddrPort: netip.AddrPortFrom(port.ClusterIP.Next(), 8080)}}
	changes := &model.Changes{Full: true, Node: &model.Node{Name: "node-1"}, ServiceCIDRsChanged: true, Ports: map[model.PortID]*model.ServicePort{port.ID: port}}
	if err := b.Sync(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	before := commits
	for name, edit := range map[string]func(*model.ServicePort){
		"an application protocol": func(p *model.ServicePort) { p.AppProtocol = "http" },
		"a type":                  func(p *model.ServicePort) { p.ServiceType = model.TypeLoadBalancer },
		"labels":                  func(p *model.ServicePort) { p.ServiceLabels = map[string]string{"tier": "front"} },
		"annotations":             func(p *model.ServicePort) { p.ServiceAnnotations = map[string]string{"weight": "3"} },
		"a zone": func(p *model.ServicePort) {
			p.Cluster = slices.Clone(p.Cluster)
			p.Cluster[0].Info = model.NewEndpointInfo("web-0", "zone-a")
		},
	} {
		changed := *port
		if edit(&changed); changed.Equal(port) {
			t.Fatalf("%s: the port did not change", name)
		}
		if err := b.Sync(t.Context(), &model.Changes{Ports: map[model.PortID]*model.ServicePort{port.ID: &changed}}); err != nil {
			t.Fatal(err)
		}
		if commits != before {
			t.Errorf("%s: the kernel was sent a change", name)
			before = commits
		}
	}
	port.Port++
	if err := b.Sync(t.Context(), &model.Changes{Ports: map[model.PortID]*model.ServicePort{port.ID: port}}); err != nil || commits == before {
		t.Errorf("another port number: %v, and the kernel was sent nothing", err)
	}
}

// Many Services with one endpoint count have a set of their own, which comes and goes with their number.
func TestBackendSyncChainSets(t *testing.T) {
	const many, few = 1000, 500 // compiler: chainSetFrom, chainSetUntil
	c := namespaceConn(t)
	b, err := NewBackend(c, compiler.Default(), Hooks{OnRepair: func() { t.Error("the kernel refused the change") }})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	full := manyPorts(many+10, 1)
	ids := slices.SortedFunc(maps.Keys(full.Ports), model.PortID.Compare)
	changesTo := func(from, to int) *model.Changes {
		changes := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
		for _, id := range ids[min(from, to):max(from, to)] {
			if changes.Ports[id] = nil; to > from {
				changes.Ports[id] = full.Ports[id]
			}
		}
		return changes
	}
	have := 0
	for _, step := range []struct {
		services int
		set      bool
	}{
		{many - 1, false}, {many, true}, {many - 1, true}, {many + 10, true}, {few, true}, {few - 1, false}, {many - 1, false},
		{many + 10, true}, {1, false}, {many + 10, true}, {0, false},
	} {
		if err := b.Sync(t.Context(), changesTo(have, step.services)); err != nil {
			t.Fatal(err)
		}
		have = step.services
		set := b.Tables()[0].Set("service-ips-cluster-2")
		if got := set != nil && set.Len() == step.services; got != step.set {
			t.Errorf("%d Services: the set is %v", step.services, set)
		}
		compareWithKernel(t, c, b)
	}
}

func TestHasServices(t *testing.T) {
	conn := namespaceConn(t)
	expect := func(step string, services, endpoints int) {
		t.Helper()
		for name, tc := range map[string]struct {
			has  func(context.Context, *nft.Conn, int) (bool, error)
			want int
		}{"Services": {HasServices, services}, "endpoints": {HasEndpoints, endpoints}} {
			for addresses := 1; addresses < 5; addresses++ {
				if got, err := tc.has(t.Context(), conn, addresses); err != nil || got != (addresses <= tc.want) {
					t.Errorf("%s: %s of %d addresses: %v, %v", step, name, addresses, got, err)
				}
			}
		}
	}
	expect("without tables", 0, 0)
	c, idle := cluster{services: 3, endpoints: 2}, cluster{services: 3}
	b, err := NewBackend(conn, c.config(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	for _, step := range []struct {
		name                string
		changes             *model.Changes
		services, endpoints int
	}{
		{"empty tables", &model.Changes{Full: true}, 0, 0},
		{"Services", c.changes(), 3, 3},
		{"one Service with two endpoints", (&cluster{services: 1, endpoints: 2}).changes(), 1, 1},
		{"Services without endpoints", idle.changes(), 3, 0},
		{"all Services deleted", &model.Changes{Full: true}, 0, 0},
	} {
		if err := b.Sync(t.Context(), step.changes); err != nil {
			t.Fatal(err)
		}
		expect(step.name, step.services, step.endpoints)
	}
}
