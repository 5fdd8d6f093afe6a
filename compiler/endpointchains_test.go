package compiler

import (
	"fmt"
	"net/netip"
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
	c := newCrowd(t, spareChainsFrom-1)
	expect := func(want bool) {
		t.Helper()
		for n := 1; n <= spareChains; n++ {
			if has := c.compiler.Tables()[0].Chain(fmt.Sprintf("cluster-%d", n)) != nil; has != (want || n == 2) {
				t.Errorf("%d Services: chain cluster-%d is there: %v", c.services, n, has)
			}
		}
	}
	expect(false)
	c.expectAtOnce()
	c.become(spareChainsFrom)
	expect(true)
	c.expectAtOnce()
	t.Run("a Service that comes and goes leaves them in place", func(t *testing.T) {
		for range 3 {
			c.expectSmall(c.become(spareChainsFrom - 1))
			c.expectSmall(c.become(spareChainsFrom))
		}
	})
	t.Run("a Node that changes no rule is not committed", func(t *testing.T) {
		c.compiler.Apply(&model.Changes{Node: &model.Node{Name: "node-1"}, ServiceCIDRsChanged: true})
		if tx := c.compiler.Transaction(); !tx.Empty() {
			t.Errorf("the transaction is\n%s", tx)
		}
	})
	c.become(spareChainsUntil)
	expect(true)
	c.become(spareChainsUntil - 1)
	expect(false)
	c.expectAtOnce()
}

func TestChainSet(t *testing.T) {
	const name = "service-ips-cluster-2"
	c := newCrowd(t, chainSetFrom-1)
	set := func() *nft.Set { return c.compiler.Tables()[0].Set(name) }
	if set() != nil {
		t.Errorf("%d Services have the set", c.services)
	}
	last := c.become(chainSetFrom)
	if n := last["ip add to "+name]; n != chainSetFrom || set().Len() != chainSetFrom {
		t.Errorf("%d elements were added to the set, and it has %d; want %d", n, set().Len(), chainSetFrom)
	}
	c.expectAtOnce()
	t.Run("a Service that comes and goes moves no other", func(t *testing.T) {
		for range 3 {
			c.expectSmall(c.become(chainSetFrom - 1))
			c.expectSmall(c.become(chainSetFrom))
		}
	})
	c.become(chainSetUntil)
	if set() == nil || c.compiler.Tables()[0].Set("service-ips").Len() > 0 {
		t.Errorf("%d Services are not in the set any more", c.services)
	}
	last = c.become(chainSetUntil - 1)
	if n := last["ip add to service-ips"]; n != chainSetUntil-1 || set() != nil {
		t.Errorf("%d elements were added to service-ips, want %d", n, chainSetUntil-1)
	}
	c.expectAtOnce()
	t.Run("a Service that goes and comes moves no other", func(t *testing.T) {
		for range 3 {
			c.expectSmall(c.become(chainSetUntil))
			c.expectSmall(c.become(chainSetUntil - 1))
		}
	})
}

// Where many Services have session affinity, elements with a verdict have the kernel walk the chains of all of them.
func TestTransactionSizeWithAffinity(t *testing.T) {
	const last = spareSetsFrom - 1
	port := func(i int, endpoints int) *model.ServicePort {
		p := numbered(i, model.IPv4)
		p.AffinityTimeout = time.Hour
		for slot := range endpoints {
			p.Cluster = append(p.Cluster[:slot], model.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 250, byte(slot), 1}), 80), Remote: true})
		}
		return p
	}
	without := port(last, 2)
	without.AffinityTimeout = 0
	c := newCompiler(t)
	all := &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}}
	for i := range spareSetsFrom {
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
