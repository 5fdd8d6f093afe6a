package verb

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// BenchmarkCheck measures check beside a firewall of 100 rules. Each tenth Service has a node port.
func BenchmarkCheck(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10_000, 2}, {1_000, 50}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			s := manyServices(b, size.services, size.endpoints)
			for b.Loop() {
				e, err := newCheck(b.Context(), s, Filter{}, func(int, int) {})
				if err != nil {
					b.Fatal(err)
				}
				if c := e.finish(); c.Verdict != verdictWorks {
					b.Fatalf("%+v %v", c.Findings, c.NotLookedAt)
				}
			}
		})
	}
}

// manyServices returns the rules of a node with many Services, a pod of its own and a firewall.
func manyServices(t testing.TB, services, endpoints int) *ruledump.Snapshot {
	t.Helper()
	pods, node := netip.MustParsePrefix("10.128.0.0/9"), netip.MustParseAddr("192.168.0.1")
	c, err := compiler.New(compiler.Config{MasqueradeBit: 14, DetectLocal: compiler.DetectLocal{CIDRs: []netip.Prefix{pods}}, NodePortAddresses: compiler.NodePortAddresses{Primary: true}})
	if err != nil {
		t.Fatal(err)
	}
	changes := &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}, Node: &model.Node{Name: "node-1", IPs: []netip.Addr{node}}, ServiceCIDRsChanged: true}
	at := func(network byte, host int) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(10)<<24|uint32(network)<<16|uint32(host))))
	}
	for i := range services {
		p := &model.ServicePort{ID: model.PortID{Namespace: "default", Service: fmt.Sprintf("service-%d", i), Protocol: model.TCP, Family: model.IPv4}, ClusterIP: at(96, i), Port: 80}
		if i%10 == 0 {
			p.NodePort = uint16(20_000 + i)
		}
		for slot := range endpoints {
			p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(at(200, i*endpoints+slot+1), 8080)})
		}
		changes.Ports[p.ID] = p
	}
	c.Apply(changes)
	s := &ruledump.Snapshot{Header: ruledump.Header{Origin: ruledump.Kernel, Node: "node-1", Addresses: []netip.Addr{node}}, Tables: c.Tables()}
	firewall := &nft.Table{Family: nft.FamilyInet, Name: "fw", Kernel: &nft.KernelTable{Other: true}, Chains: []*nft.Chain{{
		Name: "forward", Type: nft.TypeFilter, Hook: nft.HookForward, Rules: []nft.Rule{},
	}}}
	for i := range 100 {
		firewall.Chains[0].Rules = append(firewall.Chains[0].Rules, nft.NewRule(nft.Match{Field: nft.IPDaddr, Op: nft.Equal, Value: netip.PrefixFrom(at(7, i), 32)}, nft.Drop))
	}
	s.Ordered = append([]*nft.Table{firewall}, s.Tables...)
	route := func(to, via, device string) evaluator.Route {
		r := evaluator.Route{Destination: netip.MustParsePrefix(to), Interface: device}
		if via != "" {
			r.Gateway = netip.MustParseAddr(via)
		}
		return r
	}
	s.Host = evaluator.Host{
		Routes: []evaluator.Route{route("0.0.0.0/0", "192.168.0.254", "eth0"), route("192.168.0.0/24", "", "eth0"), route("10.128.0.0/9", "192.168.0.2", "eth0"), route("10.200.0.1/32", "", "veth1")},
		Rules:  []evaluator.RoutingRule{{Family: nft.FamilyIP, Table: 255}, {Family: nft.FamilyIP, Table: 254}},
	}
	return s
}
