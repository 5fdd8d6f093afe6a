package compiler

import (
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
			c.config.DirectReturn, p.DirectReturn, p.ExternalPolicy, p.AffinityTimeout = true, true, model.PolicyCluster, 0
			p.LoadBalancerIPs = []netip.Addr{c.addr(id.Family, externalNet, 3)}
			here, elsewhere := netip.AddrPortFrom(c.addr(id.Family, podNet, 5), 80), netip.AddrPortFrom(c.addr(id.Family, podNet, 5), 81)
			p.Cluster = []model.Endpoint{{AddrPort: here, Local: true}, {AddrPort: elsewhere, Remote: true}}
		}
		var all []record
		plans := plansOf(p, c.config.DirectReturn && p.DirectReturn && p.ExternalPolicy == model.PolicyCluster && p.AffinityTimeout == 0)
		eachFrontend(p, func(rank rank, fe frontend) {
			all = appendListRecords(appendRecords(all, plans.of(rank), fe, &c.config), plans.of(rank), fe)
		})
		var bytes byteBlock
		for _, want := range append(all, appendPortRecords(nil, p)...) {
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
