package compiler

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"pgregory.net/rapid"
)

// Whatever the compiler writes, the reader finds: writing and reading use one table of kinds.
func TestRecord(t *testing.T) {
	seen := map[recordKind]bool{}
	check := rapid.MakeCheck(func(r *rapid.T) {
		c := &cluster{failer: r, chooser: drawn{r}, config: randomConfig(drawn{r})}
		id := c.id()
		p := c.port(id)
		if c.maybe(3) { // often enough for every kind
			c.config.DirectReturn, p.DirectReturn, p.ExternalPolicy = true, true, model.PolicyCluster
			p.LoadBalancerIPs = []netip.Addr{c.addr(id.Family, externalNet, 3)}
			here, elsewhere := netip.AddrPortFrom(c.addr(id.Family, podNet, 5), 80), netip.AddrPortFrom(c.addr(id.Family, podNet, 5), 81)
			p.Cluster = []model.Endpoint{{AddrPort: here, Local: true}, {AddrPort: elsewhere, Remote: true}}
		}
		var all []record
		plans := plansOf(p)
		eachFrontend(p, func(rank rank, fe frontend) {
			all = appendListRecords(appendRecords(all, plans.of(rank), fe, &c.config), plans.of(rank), fe)
		})
		var bytes byteBlock
		for _, want := range append(all, appendPortRecords(nil, p, &c.config)...) {
			if want.kind >= elementKinds {
				continue
			}
			if want.kind == hairpinRecord { // the port and the list do not matter to the set
				want = record{kind: hairpinRecord, addr: netip.AddrPortFrom(want.addr.Addr(), 0)}
			}
			got, ok := readRecord(want.kind, want.element(&bytes, endpointChain.name))
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b record) bool { return a == b })); !ok || diff != "" {
				r.Fatalf("kind %d is read back: %v (-written +read):\n%+v\n%+v", want.kind, ok, want, got)
			}
			seen[want.kind] = true
		}
	})
	// With -short there are few draws, and some kinds are rare.
	for rounds := 0; rounds == 0 || len(seen) < int(elementKinds) && rounds < 50 && !t.Failed(); rounds++ {
		t.Run("is read back from its element", check)
	}
	if len(seen) != int(elementKinds) {
		t.Errorf("%d kinds of elements were tried, want %d", len(seen), elementKinds)
	}
	t.Run("of another program is left out", func(t *testing.T) {
		for kind := range elementKinds {
			for _, e := range []nft.Element{{}, {Key: nft.CatchAll}, {Key: "\x0a\x60\x00\x01\x06", Value: "x"}} {
				if r, ok := readRecord(kind, e); ok {
					t.Errorf("kind %d: %q is read as %+v", kind, e.Key, r)
				}
			}
		}
	})
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
