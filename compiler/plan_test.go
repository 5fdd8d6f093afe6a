package compiler

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

func newCompiler(t testing.TB) *Compiler {
	t.Helper()
	c, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func endpoints(addrs ...string) []model.Endpoint {
	var out []model.Endpoint
	for _, a := range addrs {
		out = append(out, model.Endpoint{AddrPort: netip.MustParseAddrPort(a)})
	}
	return out
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range texts {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func webID(service string) model.PortID {
	return model.PortID{Namespace: "default", Service: service, Protocol: model.TCP, Family: model.IPv4}
}

// elementsOf prints the elements of the named sets of the IPv4 table, without comments.
func elementsOf(c *Compiler, names ...string) []string {
	var out []string
	for _, name := range names {
		s := c.Tables()[0].Set(name)
		for _, e := range s.Elements() {
			e.Comment = ""
			out = append(out, name+": "+s.FormatElement(e))
		}
	}
	return out
}

var verdictMaps = []string{
	"service-ips", "service-nodeports", "short-circuit-ips", "short-circuit-nodeports", "no-endpoint-services", "no-endpoint-nodeports",
	"local-endpoints", "local-nodeport-endpoints",
}

func TestPlan(t *testing.T) {
	both := endpoints("10.244.0.1:8080", "10.244.0.2:8080")
	one := both[:1]
	for _, tc := range []struct {
		name string
		port model.ServicePort
		want []string
	}{
		{
			name: "a ClusterIP leads to the chain for the number of its endpoints",
			port: model.ServicePort{Cluster: both},
			want: []string{"service-ips: 10.96.0.1 . tcp . 80 : goto cluster-2"},
		},
		{
			name: "a ClusterIP without endpoints is refused",
			want: []string{"no-endpoint-services: 10.96.0.1 . tcp . 80 : goto reject-chain"},
		},
		{
			name: "a ClusterIP with policy Local takes the local endpoints",
			port: model.ServicePort{Cluster: both, Local: one, InternalPolicy: model.PolicyLocal},
			want: []string{"service-ips: 10.96.0.1 . tcp . 80 : goto cluster-1"},
		},
		{
			name: "a ClusterIP with policy Local whose endpoints are elsewhere is dropped",
			port: model.ServicePort{Cluster: both, InternalPolicy: model.PolicyLocal},
			want: []string{"no-endpoint-services: 10.96.0.1 . tcp . 80 : drop"},
		},
		{
			name: "external addresses with policy Cluster are masqueraded, whatever kind they are",
			port: model.ServicePort{Cluster: both, NodePort: 30080, ExternalIPs: addrs("192.0.2.1"), LoadBalancerIPs: addrs("203.0.113.1")},
			want: []string{
				"service-ips: 10.96.0.1 . tcp . 80 : goto cluster-2",
				"service-ips: 192.0.2.1 . tcp . 80 : goto external-2",
				"service-ips: 203.0.113.1 . tcp . 80 : goto external-2",
				"service-nodeports: tcp . 30080 : goto nodeport-external-2",
			},
		},
		{
			name: "policy Local has a list of its own, and a short circuit to all endpoints",
			port: model.ServicePort{Cluster: both, Local: one, ExternalPolicy: model.PolicyLocal, NodePort: 30080, ExternalIPs: addrs("192.0.2.1")},
			want: []string{
				"service-ips: 10.96.0.1 . tcp . 80 : goto cluster-2",
				"service-ips: 192.0.2.1 . tcp . 80 : goto local-1",
				"service-nodeports: tcp . 30080 : goto nodeport-local-1",
				"short-circuit-ips: 192.0.2.1 . tcp . 80 : goto all-endpoints-2",
				"short-circuit-nodeports: tcp . 30080 : goto nodeport-all-endpoints-2",
				"local-endpoints: 192.0.2.1 . tcp . 80 . 0 : 10.244.0.1 . 8080",
				"local-nodeport-endpoints: tcp . 30080 . 0 : 10.244.0.1 . 8080",
			},
		},
		{
			name: "policy Local without local endpoints drops, but not for the cluster's own clients",
			port: model.ServicePort{Cluster: both, ExternalPolicy: model.PolicyLocal, NodePort: 30080},
			want: []string{
				"service-ips: 10.96.0.1 . tcp . 80 : goto cluster-2",
				"service-nodeports: tcp . 30080 : goto nodeport-local-0",
				"short-circuit-nodeports: tcp . 30080 : goto nodeport-all-endpoints-2",
				"no-endpoint-nodeports: tcp . 30080 : drop",
			},
		},
		{
			name: "policy Local without any endpoint refuses",
			port: model.ServicePort{ExternalPolicy: model.PolicyLocal, NodePort: 30080},
			want: []string{
				"no-endpoint-services: 10.96.0.1 . tcp . 80 : goto reject-chain",
				"no-endpoint-nodeports: tcp . 30080 : goto reject-chain",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCompiler(t)
			tc.port.ID, tc.port.ClusterIP, tc.port.Port = webID("web"), netip.MustParseAddr("10.96.0.1"), 80
			c.Apply(&model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{tc.port.ID: &tc.port}})
			if diff := cmp.Diff(tc.want, elementsOf(c, verdictMaps...)); diff != "" {
				t.Errorf("elements (-want +got):\n%s", diff)
			}
			for _, e := range elementsOf(c, verdictMaps[:4]...) {
				if _, chain, ok := strings.Cut(e, "goto "); !ok || c.Tables()[0].Chain(chain) == nil {
					t.Errorf("%s leads to a chain that is not there", e)
				}
			}
		})
	}
}

func TestClaimRank(t *testing.T) {
	const contested = "10.96.0.1"
	list := endpoints("10.244.0.1:8080")
	port := func(service, clusterIP string) *model.ServicePort {
		return &model.ServicePort{ID: webID(service), ClusterIP: netip.MustParseAddr(clusterIP), Port: 80, Cluster: list}
	}
	holder := port("z-cluster-ip", contested)
	balanced := port("y-load-balancer", "10.96.0.2")
	balanced.LoadBalancerIPs = addrs(contested)
	external := port("b-external", "10.96.0.3")
	external.ExternalIPs = addrs(contested)
	first := port("a-external", "10.96.0.4")
	first.ExternalIPs = addrs(contested)
	for _, tc := range []struct {
		name   string
		ports  []*model.ServicePort
		owner  string
		others []string
	}{
		{"the ClusterIP before a load balancer and an external IP", []*model.ServicePort{external, balanced, holder}, "z-cluster-ip", []string{"y-load-balancer", "b-external"}},
		{"a load balancer before an external IP", []*model.ServicePort{external, balanced}, "y-load-balancer", []string{"b-external"}},
		{"the first name among external IPs", []*model.ServicePort{external, first}, "a-external", []string{"b-external"}},
		{"whoever is alone, without a conflict", []*model.ServicePort{external}, "b-external", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for turn := range tc.ports {
				order := append(slices.Clone(tc.ports[turn:]), tc.ports[:turn]...)
				c := newCompiler(t)
				var conflicts []Conflict
				for _, p := range order {
					conflicts = c.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: p}})
				}
				var others []string
				for _, conflict := range conflicts {
					if conflict.Frontend != contested+":80/TCP" || conflict.Owner.Service != tc.owner {
						t.Errorf("%s goes to %s, want %s", conflict.Frontend, conflict.Owner.Service, tc.owner)
					}
					for _, id := range conflict.Others {
						others = append(others, id.Service)
					}
				}
				if diff := cmp.Diff(tc.others, others); diff != "" {
					t.Errorf("the others (-want +got):\n%s", diff)
				}
				e, _ := c.Tables()[0].Set("service-ips").Element(nft.AddrData(netip.MustParseAddr(contested)) + nft.ProtoData(6) + nft.PortData(80))
				if want := "default/" + tc.owner; e.Comment != want {
					t.Errorf("the kernel is told of %q, want %q", e.Comment, want)
				}
			}
		})
	}
}

// many returns n Services with two endpoints each in both families.
func many(n int) *model.Changes {
	changes := &model.Changes{Full: true, Ports: make(map[model.PortID]*model.ServicePort, 2*n), Node: &model.Node{Name: "node-1"}, ServiceCIDRsChanged: true}
	for i := range n {
		for _, f := range model.Families {
			p := numbered(i, f)
			changes.Ports[p.ID] = p
		}
	}
	return changes
}

func numbered(i int, f model.Family) *model.ServicePort {
	at := func(network byte, host uint32) netip.Addr {
		b := [16]byte{0xfd, 1: network}
		binary.BigEndian.PutUint32(b[12:], uint32(10)<<24|uint32(network)<<16|host)
		if f == model.IPv6 {
			return netip.AddrFrom16(b)
		}
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	p := &model.ServicePort{ID: model.PortID{Namespace: "default", Service: fmt.Sprintf("service-%d", i), Protocol: model.TCP, Family: f}, ClusterIP: at(96, uint32(i)), Port: 80}
	for slot := range uint32(2) {
		p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(at(200, 2*uint32(i)+slot), 8080)})
	}
	return p
}

func TestChainCount(t *testing.T) {
	t.Run("does not follow the number of Services", testChainCountOfManyServices)
	t.Run("with affinity", testChainCountWithAffinity)
}

func testChainCountOfManyServices(t *testing.T) {
	c := newCompiler(t)
	c.Apply(many(10_000))
	for _, table := range c.Tables() {
		if n := table.Set("service-ips-cluster-2").Len(); n != 10_000 {
			t.Errorf("%s: %d frontends, want 10,000", table.Family, n)
		}
		if n := len(table.Chains); n > 60 {
			t.Errorf("%s: %d chains, want at most 60", table.Family, n)
		}
	}
}

// counts says how often each kind of step and how many elements of each set a transaction has.
func counts(tx nft.Transaction) map[string]int {
	out := map[string]int{}
	for _, s := range tx.Steps {
		where := s.Table.Family.String() + " "
		switch s.Op {
		case nft.AddElements:
			out[where+"add to "+s.Set.Name] += s.Len()
		case nft.DeleteElements:
			out[where+"delete from "+s.Set.Name] += s.Len()
		default:
			out[s.String()]++
		}
	}
	return out
}

// For each element that is added to a map, the kernel walks all rules that look it up.
func testChainCountWithAffinity(t *testing.T) {
	for _, hash := range []bool{false, true} {
		config := Default()
		config.AffinityHash = hash
		c, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		rules := map[int]int{}
		for _, services := range []int{2 * defaultChainLimits.spareFrom, 5 * defaultChainLimits.spareFrom} {
			ports := map[model.PortID]*model.ServicePort{}
			for i := range services {
				p := &model.ServicePort{
					ID: webID(fmt.Sprintf("service-%d", i)), ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80,
					NodePort: uint16(30000 + i), AffinityTimeout: time.Hour, ExternalPolicy: model.TrafficPolicy(i % 2),
					Cluster: endpoints("10.244.0.1:8080", "10.244.0.2:8080", "10.244.0.3:8080"), Local: endpoints("10.244.0.1:8080", "10.244.0.2:8080"),
				}
				ports[p.ID] = p
			}
			c.Apply(&model.Changes{Full: true, Ports: ports})
			for _, chain := range c.Tables()[0].Chains {
				for _, rule := range chain.Rules {
					if strings.Contains(rule.String(), "endpoints") && strings.Contains(rule.String(), "dnat") {
						rules[services]++
					}
				}
			}
		}
		if few, many := rules[2*defaultChainLimits.spareFrom], rules[5*defaultChainLimits.spareFrom]; few == 0 || many != few {
			t.Errorf("with hash %v, %d rules look up endpoints of %d Services with affinity, %d of %d", hash, few, 2*defaultChainLimits.spareFrom, many, 5*defaultChainLimits.spareFrom)
		}
	}
}

func TestTransactionSize(t *testing.T) {
	moved := numbered(77, model.IPv4)
	moved.Cluster = append(slices.Clone(moved.Cluster[:1]), endpoints("10.250.0.1:8080")...)
	third := numbered(77, model.IPv4)
	third.Cluster = append(slices.Clone(third.Cluster), endpoints("10.250.0.1:8080")...)
	large := numbered(77, model.IPv4)
	for host := range byte(defaultChainLimits.spare - 1) {
		large.Cluster = append(large.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 250, 0, host}), 8080)})
	}
	another := numbered(10_000, model.IPv6)
	gone := numbered(77, model.IPv6).ID
	c := newCompiler(t)
	c.Apply(many(10_000))
	for _, tc := range []struct {
		name    string
		changes *model.Changes
		want    map[string]int
	}{
		{
			"one endpoint has another address",
			&model.Changes{Ports: map[model.PortID]*model.ServicePort{moved.ID: moved}},
			map[string]int{"ip delete from endpoints": 1, "ip add to endpoints": 1, "ip delete from hairpin": 1, "ip add to hairpin": 1},
		},
		{
			"one more endpoint, the first frontend with three",
			&model.Changes{Ports: map[model.PortID]*model.ServicePort{third.ID: third}},
			map[string]int{"ip add to endpoints": 1, "ip add to hairpin": 1, "ip add to service-ips": 1, "ip delete from service-ips-cluster-2": 1},
		},
		{
			"many more endpoints, the first frontend with so many",
			&model.Changes{Ports: map[model.PortID]*model.ServicePort{large.ID: large}},
			map[string]int{
				"ip add to endpoints": defaultChainLimits.spare - 1, "ip add to hairpin": defaultChainLimits.spare - 1, "ip add to service-ips": 1, "ip delete from service-ips-cluster-2": 1,
				"add chain ip kube-proxy cluster-9": 1,
				"add rule ip kube-proxy cluster-9 dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 9 map @endpoints\n" +
					"add rule ip kube-proxy cluster-9 dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 1 map @endpoints": 1,
			},
		},
		{
			"one more Service",
			&model.Changes{Ports: map[model.PortID]*model.ServicePort{another.ID: another}},
			map[string]int{"ip6 add to service-ips-cluster-2": 1, "ip6 add to endpoints": 2, "ip6 add to cluster-ips": 1, "ip6 add to hairpin": 2},
		},
		{
			"one Service less",
			&model.Changes{Ports: map[model.PortID]*model.ServicePort{gone: nil}},
			map[string]int{"ip6 delete from service-ips-cluster-2": 1, "ip6 delete from endpoints": 2, "ip6 delete from cluster-ips": 1, "ip6 delete from hairpin": 2},
		},
		{"nothing at all", &model.Changes{}, map[string]int{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.Apply(many(10_000))
			c.Committed()
			c.Apply(tc.changes)
			if diff := cmp.Diff(tc.want, counts(c.Transaction())); diff != "" {
				t.Errorf("transaction (-want +got):\n%s", diff)
			}
		})
	}
}

func BenchmarkApply(b *testing.B) {
	b.Run("cold 10,000 services", func(b *testing.B) {
		changes := many(10_000)
		for b.Loop() {
			newCompiler(b).Apply(changes)
		}
	})
	b.Run("one change among 10,000", func(b *testing.B) {
		c := newCompiler(b)
		c.Apply(many(10_000))
		c.Committed()
		p := numbered(10_000, model.IPv4)
		there := &model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: p}}
		gone := &model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: nil}}
		add := true
		for b.Loop() {
			if add {
				c.Apply(there)
			} else {
				c.Apply(gone)
			}
			add = !add
			if tx := c.Transaction(); tx.Empty() {
				b.Fatal("the change is not in the transaction")
			}
			c.Committed()
		}
	})
}
