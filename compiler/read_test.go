package compiler

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

var readOptions = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func TestParseEndpointChain(t *testing.T) {
	for _, kind := range []chainKind{kindCluster, kindExternal, kindLocal, kindAllEndpoints} {
		for _, nodePort := range []bool{false, true} {
			for _, hash := range []bool{false, true} {
				want := endpointChain{kind: kind, nodePort: nodePort, hash: hash, count: 12}
				t.Run(want.name(), func(t *testing.T) {
					if got, ok := parseEndpointChain(want.name()); !ok || got != want {
						t.Errorf("got %+v, %t; want %+v", got, ok, want)
					}
				})
			}
		}
	}
	for _, name := range []string{"", "services", "reject-chain", "cluster-x", "cluster--1", "affinity-known-cluster.shop.web.tcp-2", "service-ABCD", "nat-prerouting"} {
		t.Run("not "+name, func(t *testing.T) {
			if got, ok := parseEndpointChain(name); ok {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func readPort(change func(*model.ServicePort)) *model.ServicePort {
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "shop", Service: "web", Port: "http", Protocol: model.TCP, Family: model.IPv4},
		ClusterIP: netip.MustParseAddr("10.96.0.10"), Port: 80, NodePort: 30080,
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.10")},
		Cluster: []model.Endpoint{
			{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true}, {AddrPort: netip.MustParseAddrPort("10.244.2.5:8080"), Remote: true},
		},
		Local: []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true}},
	}
	change(p)
	return p
}

func readBack(t *testing.T, p *model.ServicePort) []*Frontend {
	t.Helper()
	c, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(&model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{p.ID: p}})
	got, err := Read(c.Tables()[0])
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestRead(t *testing.T) {
	all := []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080"), netip.MustParseAddrPort("10.244.2.5:8080")}
	base := func(change func(cluster, external, nodePort *Frontend)) []*Frontend {
		f := Frontend{Family: nft.FamilyIP, Protocol: model.TCP, ServicePort: "shop/web:http"}
		cluster, external, nodePort := f, f, f
		cluster.Kind, cluster.Addr, cluster.Port = FrontendClusterIP, netip.MustParseAddr("10.96.0.10"), 80
		cluster.Chain, cluster.Endpoints = "cluster-2", all
		external.Kind, external.Addr, external.Port = FrontendExternal, netip.MustParseAddr("192.0.2.10"), 80
		external.Chain, external.Endpoints, external.Policy, external.Masquerade = "external-2", all, "Cluster", true
		nodePort.Kind, nodePort.Port = FrontendNodePort, 30080
		nodePort.Chain, nodePort.Endpoints, nodePort.Policy, nodePort.Masquerade = "nodeport-external-2", all, "Cluster", true
		change(&cluster, &external, &nodePort)
		return []*Frontend{&cluster, &external, &nodePort}
	}
	local := func(f *Frontend) {
		f.Policy, f.Masquerade, f.LocalEndpoints = "Local", false, all[:1]
	}
	for _, tt := range []struct {
		name   string
		change func(*model.ServicePort)
		want   []*Frontend
	}{
		{"all policies Cluster", func(*model.ServicePort) {}, base(func(_, _, _ *Frontend) {})},
		{"nothing to serve", func(p *model.ServicePort) { p.Cluster, p.Local = nil, nil }, base(func(c, e, n *Frontend) {
			for _, f := range []*Frontend{c, e, n} {
				f.Chain, f.Endpoints, f.Policy, f.Masquerade, f.Unserved = "", nil, "", false, UnservedReject
			}
		})},
		{"external policy Local", func(p *model.ServicePort) { p.ExternalPolicy = model.PolicyLocal }, base(func(_, e, n *Frontend) {
			local(e)
			local(n)
			e.Chain, e.ShortCircuit = "local-1", "all-endpoints-2"
			n.Chain, n.ShortCircuit = "nodeport-local-1", "nodeport-all-endpoints-2"
		})},
		{"both policies Local and nothing local", func(p *model.ServicePort) {
			p.ExternalPolicy, p.InternalPolicy, p.Local = model.PolicyLocal, model.PolicyLocal, nil
		}, base(func(c, e, n *Frontend) {
			c.Chain, c.Endpoints, c.Policy, c.Unserved = "", nil, "Local", UnservedDrop
			local(e)
			local(n)
			e.LocalEndpoints, n.LocalEndpoints, e.Unserved, n.Unserved = nil, nil, UnservedDrop, UnservedDrop
			e.Chain, e.ShortCircuit = "local-0", "all-endpoints-2"
			n.Chain, n.ShortCircuit = "nodeport-local-0", "nodeport-all-endpoints-2"
		})},
		{"affinity", func(p *model.ServicePort) { p.AffinityTimeout = time.Hour }, base(func(c, e, n *Frontend) {
			for _, f := range []*Frontend{c, e, n} {
				f.AffinityTimeout, f.AffinityMaps = time.Hour, []string{"affinity.shop.web.tcp.http"}
			}
		})},
		{"source ranges", func(p *model.ServicePort) {
			p.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.7/32")}
		}, base(func(_, e, _ *Frontend) {
			e.Sources = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.7/32")}
		})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, readBack(t, readPort(tt.change)), readOptions); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	t.Run("finds frontends in sets of their chain", testReadFindsFrontendsInSetsOfTheirChain)
	t.Run("refuses foreign tables", testReadRefusesForeignTables)
	t.Run("takes memory for endpoints, not for the numbers in names of chains", testReadTakesMemoryForEndpoints)
}

func testReadTakesMemoryForEndpoints(t *testing.T) {
	c, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	table := c.Tables()[0]
	frontends := func(i int) frontend {
		return frontend{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80, model.TCP}
	}
	const n = 2000
	for i := range n {
		table.Set(ServiceIPs).Put(nft.Element{Key: frontends(i).key(), Verdict: nft.Goto("cluster-999999999")})
	}
	for slot := range 10 * n {
		endpoint := nft.AddrData(netip.AddrFrom4([4]byte{10, 244, 0, 1})) + nft.PortData(80)
		table.Set(Endpoints).Put(nft.Element{Key: frontends(0).key() + nft.IntegerData(uint32(slot)), Value: endpoint})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := Read(table)
	runtime.ReadMemStats(&after)
	if err != nil || len(got) != n || len(got[0].Endpoints) != 10*n {
		t.Fatalf("%d frontends, want %d: %v", len(got), n, err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 100<<20 {
		t.Errorf("reading %d frontends and %d endpoints took %d MiB", n, 10*n, used>>20)
	}
}

func testReadFindsFrontendsInSetsOfTheirChain(t *testing.T) {
	c, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	ports := map[model.PortID]*model.ServicePort{}
	for i := range defaultChainLimits.setFrom + 1 {
		p := readPort(func(p *model.ServicePort) {
			p.ID.Service = fmt.Sprintf("web-%d", i)
			p.ClusterIP = netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
			p.NodePort, p.LoadBalancerIPs = 0, nil
		})
		ports[p.ID] = p
	}
	c.Apply(&model.Changes{Full: true, Ports: ports})
	table := c.Tables()[0]
	if set := table.Set("service-ips-cluster-2"); set == nil || set.Len() != defaultChainLimits.setFrom+1 {
		t.Fatal("the chain has no set, or not all frontends are in it")
	}
	got, err := Read(table)
	if err != nil || len(got) != defaultChainLimits.setFrom+1 {
		t.Fatalf("%d frontends, want %d: %v", len(got), defaultChainLimits.setFrom+1, err)
	}
	for _, f := range got {
		if f.Chain != "cluster-2" || len(f.Endpoints) != 2 {
			t.Fatalf("%+v", f)
		}
	}
}

func testReadRefusesForeignTables(t *testing.T) {
	own := func(change func(*nft.Table)) *nft.Table {
		c, err := New(Default())
		if err != nil {
			t.Fatal(err)
		}
		table := *c.Tables()[0]
		change(&table)
		return &table
	}
	for _, tt := range []struct {
		name  string
		table *nft.Table
		want  string
	}{
		{"another program's", &nft.Table{Family: nft.FamilyIP, Name: TableName, Comment: "rules for kube-proxy"}, "is not nftproxy's: it has no map service-ips, so another program wrote it"},
		{"kube-proxy's", &nft.Table{Family: nft.FamilyIP, Name: TableName, Chains: []*nft.Chain{{Name: "service-endpoints-check"}}}, "was written by kube-proxy (nftables mode), not by nftproxy: \"nft list table ip kube-proxy\" prints it"},
		{"kube-proxy's with nftproxy's comment", own(func(t *nft.Table) { t.Sets, t.Chains = t.Sets[1:], []*nft.Chain{{Name: "service-endpoints-check"}} }), "was written by kube-proxy"},
		{"one that lacks a map", own(func(t *nft.Table) { t.Sets = t.Sets[1:] }), "was written by another version of nftproxy: it has no map service-ips"},
		{"one with a map of another type", own(func(t *nft.Table) {
			t.Sets = append([]*nft.Set{{Name: t.Sets[0].Name, Key: nft.Concat{nft.IPSaddr}, Verdicts: true}}, t.Sets[1:]...)
		}), "map service-ips is of another type"},
		{"one of no IP family", &nft.Table{Family: 1, Name: TableName}, "is of another family"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Read(tt.table); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
