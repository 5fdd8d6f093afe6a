package compiler

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// crowd is a number of Services with a ClusterIP and two endpoints each, and the compiler that is told of each that
// comes or goes.
type crowd struct {
	*testing.T
	compiler *Compiler
	services int
}

// newCrowd compiles and commits n Services.
func newCrowd(t *testing.T, n int) *crowd {
	c := &crowd{t, newCompiler(t), n}
	c.compiler.Apply(many(n))
	c.compiler.Committed()
	return c
}

// become lets Services come or go one by one until there are n, and returns the steps of the last transaction, as
// counts says them.
func (c *crowd) become(n int) (last map[string]int) {
	for c.services != n {
		changes := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
		if c.services < n {
			p := numbered(c.services, model.IPv4)
			changes.Ports[p.ID] = p
			c.services++
		} else {
			c.services--
			changes.Ports[numbered(c.services, model.IPv4).ID] = nil
		}
		c.compiler.Apply(changes)
		last = counts(c.compiler.Transaction())
		c.compiler.Committed()
	}
	return last
}

// expectSmall fails if a transaction has more than the elements of one Service.
func (c *crowd) expectSmall(got map[string]int) {
	c.Helper()
	total := 0
	for _, n := range got {
		total += n
	}
	if total > 6 {
		c.Errorf("%d Services: the transaction has %d steps and elements, want at most 6: %v", c.services, total, got)
	}
}

// expectAtOnce fails unless the Services compiled at once end in the same IPv4 table. It is for numbers for which what
// was there before does not matter.
func (c *crowd) expectAtOnce() {
	c.Helper()
	all := many(c.services)
	for id := range all.Ports {
		if id.Family == model.IPv6 {
			delete(all.Ports, id)
		}
	}
	atOnce := newCompiler(c)
	atOnce.Apply(all)
	if diff := cmp.Diff(atOnce.Tables()[0].String(), c.compiler.Tables()[0].String()); diff != "" {
		c.Errorf("%d Services: compiled one by one (-at once +one by one):\n%s", c.services, diff)
	}
}

func TestChainsInAdvance(t *testing.T) {
	c := newCrowd(t, defaultChainLimits.spareFrom-1)
	expect := func(want bool) {
		t.Helper()
		for n := 1; n <= defaultChainLimits.spare; n++ {
			if has := c.compiler.Tables()[0].Chain(fmt.Sprintf("cluster-%d", n)) != nil; has != (want || n == 2) {
				t.Errorf("%d Services: chain cluster-%d is there: %v", c.services, n, has)
			}
		}
	}
	expect(false)
	c.expectAtOnce()
	c.become(defaultChainLimits.spareFrom)
	expect(true)
	c.expectAtOnce()
	t.Run("a Service that comes and goes leaves them in place", func(t *testing.T) {
		for range 3 {
			c.expectSmall(c.become(defaultChainLimits.spareFrom - 1))
			c.expectSmall(c.become(defaultChainLimits.spareFrom))
		}
	})
	t.Run("a Node that changes no rule is not committed", func(t *testing.T) {
		c.compiler.Apply(&model.Changes{Node: &model.Node{Name: "node-1"}, ServiceCIDRsChanged: true})
		if tx := c.compiler.Transaction(); !tx.Empty() {
			t.Errorf("the transaction is\n%s", tx)
		}
	})
	c.become(defaultChainLimits.spareFrom / 2)
	expect(true)
	c.become(defaultChainLimits.spareFrom/2 - 1)
	expect(false)
	c.expectAtOnce()
}

func TestChainsThatStay(t *testing.T) {
	c := newCrowd(t, defaultChainLimits.spareFrom)
	// scale gives the first Service that many endpoints and returns the steps of the transaction.
	scale := func(endpoints int) map[string]int {
		p := withEndpoints(0, endpoints)
		c.compiler.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: p}})
		steps := counts(c.compiler.Transaction())
		c.compiler.Committed()
		return steps
	}
	has := func(endpoints int) bool {
		return c.compiler.Tables()[0].Chain(fmt.Sprintf("cluster-%d", endpoints)) != nil
	}
	scale(20)
	t.Run("a Service that scales up and down moves no chain", func(t *testing.T) {
		scale(21)
		want := []map[string]int{
			{"ip delete from endpoints": 1, "ip delete from service-ips": 1, "ip add to service-ips": 1},
			{"ip add to endpoints": 1, "ip delete from service-ips": 1, "ip add to service-ips": 1},
		}
		if diff := cmp.Diff(want, []map[string]int{scale(20), scale(21)}); diff != "" {
			t.Errorf("transactions (-want +got):\n%s", diff)
		}
	})
	t.Run("there are few of them", func(t *testing.T) {
		for n := range defaultChainLimits.kept {
			scale(30 + n)
		}
		if has(20) || !has(21) || !has(30) {
			t.Errorf("chains with 20, 21 and 30 endpoints are there: %v, %v, %v; want false, true, true", has(20), has(21), has(30))
		}
	})
	t.Run("a Node that changes the chains changes them too", func(t *testing.T) {
		c.compiler.families[0].program.config.MasqueradeAll = true
		c.compiler.Apply(&model.Changes{Node: &model.Node{Name: "node-1"}})
		chains := c.compiler.Tables()[0]
		if diff := cmp.Diff(chains.Chain("cluster-2").Rules[0], chains.Chain("cluster-21").Rules[0]); diff != "" {
			t.Errorf("first rules (-cluster-2 +cluster-21):\n%s", diff)
		}
	})
	t.Run("they go with the Services", func(t *testing.T) {
		scale(2)
		c.become(defaultChainLimits.spareFrom/2 - 1)
		if has(21) || has(30) {
			t.Error("chains are left")
		}
	})
}

func TestChainSet(t *testing.T) {
	const name = "service-ips-cluster-2"
	c := newCrowd(t, defaultChainLimits.setFrom-1)
	set := func() *nft.Set { return c.compiler.Tables()[0].Set(name) }
	if set() != nil {
		t.Errorf("%d Services have the set", c.services)
	}
	last := c.become(defaultChainLimits.setFrom)
	if n := last["ip add to "+name]; n != defaultChainLimits.setFrom || set().Len() != defaultChainLimits.setFrom {
		t.Errorf("%d elements were added to the set, and it has %d; want %d", n, set().Len(), defaultChainLimits.setFrom)
	}
	c.expectAtOnce()
	t.Run("a Service that comes and goes moves no other", func(t *testing.T) {
		for range 3 {
			c.expectSmall(c.become(defaultChainLimits.setFrom - 1))
			c.expectSmall(c.become(defaultChainLimits.setFrom))
		}
	})
	c.become(defaultChainLimits.setFrom / 2)
	if set() == nil || c.compiler.Tables()[0].Set("service-ips").Len() > 0 {
		t.Errorf("%d Services are not in the set any more", c.services)
	}
	t.Run("a set that goes and comes back before a commit gets only the frontends that are new", func(t *testing.T) {
		one := numbered(c.services-1, model.IPv4)
		c.compiler.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{one.ID: nil}})
		if set() != nil {
			t.Error("the set did not go")
		}
		back := &model.Changes{Ports: map[model.PortID]*model.ServicePort{one.ID: one}}
		for ; c.services < defaultChainLimits.setFrom; c.services++ {
			p := numbered(c.services, model.IPv4)
			back.Ports[p.ID] = p
		}
		c.compiler.Apply(back)
		steps := counts(c.compiler.Transaction())
		if n := steps["ip add to "+name]; n != defaultChainLimits.setFrom-defaultChainLimits.setFrom/2 || set().Len() != defaultChainLimits.setFrom {
			t.Errorf("the set has %d elements, and the transaction is %v", set().Len(), steps)
		}
		c.compiler.Committed()
		c.become(defaultChainLimits.setFrom / 2)
	})
	last = c.become(defaultChainLimits.setFrom/2 - 1)
	if n := last["ip add to service-ips"]; n != defaultChainLimits.setFrom/2-1 || set() != nil {
		t.Errorf("%d elements were added to service-ips, want %d", n, defaultChainLimits.setFrom/2-1)
	}
	c.expectAtOnce()
	t.Run("a Service that goes and comes moves no other", func(t *testing.T) {
		for range 3 {
			c.expectSmall(c.become(defaultChainLimits.setFrom / 2))
			c.expectSmall(c.become(defaultChainLimits.setFrom/2 - 1))
		}
	})
}

// withEndpoints returns the i-th Service port with that many endpoints.
func withEndpoints(i, endpoints int) *model.ServicePort {
	p := numbered(i, model.IPv4)
	p.Cluster = nil
	for slot := range endpoints {
		p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 250, byte(slot), 1}), 80), Remote: true})
	}
	return p
}

// A tenant whose Services go from one number of endpoints to another, and some of them back and forth, cannot have the
// frontends of all move each time.
func TestChainSetsThatChangePlaces(t *testing.T) {
	c := newCompiler(t)
	all := &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}}
	services := 0
	add := func(n, endpoints int) {
		for range n {
			p := withEndpoints(services, endpoints)
			all.Ports[p.ID] = p
			services++
		}
	}
	add(defaultChainLimits.setFrom+200, 20)
	add(defaultChainLimits.setFrom-100, 50)
	for others := range 7 {
		add(2*defaultChainLimits.setFrom, 21+others)
	}
	c.Apply(all)
	c.Committed()
	large := 0
	scale := func(service, endpoints int) {
		p := withEndpoints(service, endpoints)
		c.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: p}})
		if slices.ContainsFunc(c.Transaction().Steps, func(s nft.Step) bool { return s.Len() > 50 }) {
			large++
		}
		c.Committed()
	}
	for i := 1; i < 800; i++ {
		scale(i, 50)
		scale(i, 20)
		scale(i-1, 20)
		scale(i-1, 50)
		scale(i, 50)
	}
	if large > 2 {
		t.Errorf("%d Syncs move many frontends, want at most 2", large)
	}
}

// Where many Services have session affinity, elements with a verdict have the kernel walk the chains of all of them.
func TestTransactionSizeWithAffinity(t *testing.T) {
	last := defaultChainLimits.spareSetsFrom - 1
	port := func(i int, endpoints int) *model.ServicePort {
		p := withEndpoints(i, endpoints)
		p.AffinityTimeout = time.Hour
		return p
	}
	without := port(last, 2)
	without.AffinityTimeout = 0
	c := newCompiler(t)
	all := &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}}
	for i := range defaultChainLimits.spareSetsFrom {
		p := port(i, 2)
		all.Ports[p.ID] = p
	}
	c.Apply(all)
	c.Committed()
	for _, tc := range []struct {
		name string
		port *model.ServicePort
		want map[string]int
	}{
		{"an endpoint more", port(7, 3), map[string]int{
			"ip add to endpoints": 1, "ip delete from service-ips-cluster-2": 1, "ip add to service-ips-cluster-3": 1,
		}},
		{"two endpoints less", port(7, 1), map[string]int{
			"ip delete from endpoints": 2, "ip delete from service-ips-cluster-3": 1, "ip add to service-ips-cluster-1": 1,
		}},
		{"no affinity any more", without, map[string]int{
			"ip delete from affinity-ips": 1, "ip delete from affinity-known-ips": 1,
			"delete map ip kube-proxy affinity.default.service-499.tcp":                 1,
			"flush chain ip kube-proxy affinity-known-cluster.default.service-499.tcp":  1,
			"delete chain ip kube-proxy affinity-known-cluster.default.service-499.tcp": 1,
			"flush chain ip kube-proxy affinity-update.default.service-499.tcp":         1,
			"delete chain ip kube-proxy affinity-update.default.service-499.tcp":        1,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{tc.port.ID: tc.port}})
			if diff := cmp.Diff(tc.want, counts(c.Transaction())); diff != "" {
				t.Errorf("transaction (-want +got):\n%s", diff)
			}
			c.Committed()
		})
	}
}
