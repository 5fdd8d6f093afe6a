package compiler

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"pgregory.net/rapid"
)

// Whatever the compiler writes about the plan of a frontend, the reader finds.
func TestReadRandomTables(t *testing.T) {
	seen := map[string]bool{}
	check := rapid.MakeCheck(func(r *rapid.T) {
		c := &cluster{failer: r, chooser: drawn{r}, config: randomConfig(drawn{r}), directAddresses: 3}
		c.compiler = c.newCompiler(fewFrontends(drawn{r}))
		c.compiler.Apply(c.change())
		for i, f := range c.compiler.served() {
			found, err := Read(c.compiler.Tables()[i])
			if err != nil || len(found) != len(f.claims.frontends) {
				r.Fatalf("%d frontends are read, want %d: %v", len(found), len(f.claims.frontends), err)
			}
			for _, got := range found {
				c.expectRead(got, f.claims.frontends[got.frontend()])
				for what, is := range map[string]bool{
					"chain": got.Chain != "", "short circuit": got.ShortCircuit != "", "local endpoints": got.LocalEndpoints != nil,
					"reject": got.Unserved == UnservedReject, "drop": got.Unserved == UnservedDrop, "sources": got.Sources != nil,
					"affinity": len(got.AffinityMaps) == 1, "affinity by policy": len(got.AffinityMaps) == 2,
					"node port": got.Kind == FrontendNodePort, "ClusterIP": got.Kind == FrontendClusterIP, "direct return": got.Policy == "Cluster" && !got.Masquerade,
				} {
					seen[what] = seen[what] || is
				}
			}
		}
	})
	for rounds := 0; rounds == 0 || len(seen) > 0 && slices.Contains(slices.Collect(maps.Values(seen)), false) && rounds < 50 && !t.Failed(); rounds++ {
		t.Run("are read back", check)
	}
	for what, is := range seen {
		if !is {
			t.Errorf("no frontend with %s was tried", what)
		}
	}
}

func (c *cluster) expectRead(got *Frontend, s *frontendState) {
	c.Helper()
	p := s.applied
	first, shortCircuit := p.chains(&c.config)
	addrs := func(list []model.Endpoint) (out []netip.AddrPort) {
		for _, e := range list {
			out = append(out, e.AddrPort)
		}
		return out
	}
	name := func(chain endpointChain) string {
		if chain.kind == kindNone {
			return ""
		}
		return chain.name()
	}
	all, local := p.slots()
	want := *got // Kind, Policy and Masquerade: see TestRead
	want.ServicePort, want.Endpoints, want.LocalEndpoints = p.port.ID.ServicePortName(), addrs(all), addrs(local)
	want.Chain, want.ShortCircuit, want.Sources = name(first), name(shortCircuit), s.sources
	want.Unserved = [...]Unserved{unservedReject: UnservedReject, unservedDrop: UnservedDrop}[p.unserved]
	want.AffinityTimeout, want.AffinityMaps = 0, nil
	for _, list := range endpointLists {
		if p.isSticky() && len(p.endpoints(list)) > 0 {
			want.AffinityTimeout = p.port.AffinityTimeout
			want.AffinityMaps = append(want.AffinityMaps, mapKey{p.port.affinityName, list}.mapName())
		}
	}
	if diff := cmp.Diff(&want, got, readOptions); diff != "" {
		c.Fatalf("%s (-written +read):\n%s", got, diff)
	}
}

// Two Services claim one ClusterIP: the element names the first by name, whichever came first.
func TestContestedClusterIPNames(t *testing.T) {
	config := Default()
	config.CountRefused = true
	ip := netip.MustParseAddr("10.96.0.10")
	port := func(service string, number uint16) *model.ServicePort {
		id := model.PortID{Namespace: "shop", Service: service, Port: fmt.Sprint(number), Protocol: model.TCP, Family: model.IPv4}
		return &model.ServicePort{ID: id, ClusterIP: ip, Port: number}
	}
	b80, b81, a := port("b", 80), port("b", 81), port("a", 80)
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		port *model.ServicePort
		gone bool
		want string
	}{
		{b80, false, "shop/b"}, {b81, false, "shop/b"}, {a, false, "shop/a"}, {b80, true, "shop/a"}, {a, true, "shop/b"},
		{a, false, "shop/a"}, {b81, true, "shop/a"}, {b81, false, "shop/a"}, {a, true, "shop/b"}, {b81, true, ""},
	} {
		now := step.port
		if step.gone {
			now = nil
		}
		c.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{step.port.ID: now}})
		if e, _ := c.Tables()[0].Set(ClusterIPs).Element(nft.AddrData(ip)); e.Comment != step.want {
			t.Errorf("after %s (gone: %v) the element names %q, want %q", step.port.ID.Service, step.gone, e.Comment, step.want)
		}
	}
}

// A range in an interval set has its first address as its key, whatever its length is.
func TestSourceRangeOfOtherLength(t *testing.T) {
	c := newCompiler(t)
	for _, source := range []string{"10.101.0.0/25", "10.101.0.0/26", "10.101.0.0/24"} {
		p := readPort(func(p *model.ServicePort) { p.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix(source)} })
		c.Apply(&model.Changes{Ports: model.PortsByID(p)})
		c.Committed()
		if diff := cmp.Diff([]string{"allowed-sources: 192.0.2.10 . tcp . 80 . " + source}, elementsOf(c, "allowed-sources")); diff != "" {
			t.Errorf("elements (-want +got):\n%s", diff)
		}
	}
}
