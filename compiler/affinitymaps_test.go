package compiler

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

func TestAffinityStale(t *testing.T) {
	c := newCompiler(t)
	port := func(i int, list ...string) *model.ServicePort {
		return &model.ServicePort{
			ID: webID(fmt.Sprintf("service-%d", i)), ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Port: 80,
			AffinityTimeout: time.Hour, Cluster: endpoints(list...),
		}
	}
	apply := func(full bool, ports ...*model.ServicePort) {
		c.Apply(&model.Changes{Full: full, Ports: model.PortsByID(ports...)})
		c.Committed()
	}
	var all []*model.ServicePort
	for i := range 100 {
		all = append(all, port(i, "10.244.0.1:80", "10.244.0.2:80"))
	}
	apply(true, all...)
	expect := func(when string, want ...model.PortID) {
		t.Helper()
		maps := c.Affinity().Stale()
		if len(maps) != len(want) || len(want) == 1 && maps[0].Port != want[0] {
			t.Errorf("%s: %d maps are stale, want those of %v", when, len(maps), want)
		}
		// Stale is called under the backend's lock after each Sync, and must not look at all ports.
		if n := len(c.families[0].clientMaps.stale); n != len(want) {
			t.Errorf("%s: Stale looks at %d ports, want %d", when, n, len(want))
		}
	}
	for _, m := range c.Affinity().Stale() {
		c.Affinity().Cleaned(m)
	}
	expect("all reconciled")
	apply(false, port(7, "10.244.0.1:80"))
	expect("an endpoint went", webID("service-7"))
	before := c.Affinity().Stale()[0]
	apply(false, port(7, "10.244.0.3:80"))
	c.Affinity().Cleaned(before)
	expect("another one went while the map was reconciled", webID("service-7"))
	c.Affinity().Cleaned(c.Affinity().Stale()[0])
	expect("reconciled again")
	c.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{webID("service-9"): port(9, "10.244.0.1:80")}})
	c.Affinity().Cleaned(c.Affinity().Stale()[0])
	expect("the commit that takes an endpoint away failed", webID("service-9"))
	c.Committed()
	c.Affinity().Cleaned(c.Affinity().Stale()[0])
	expect("and succeeded")
	apply(false, port(8, "10.244.0.1:80"))
	gone := port(8)
	gone.AffinityTimeout = 0
	apply(false, gone)
	expect("the port has no affinity any more")
}
