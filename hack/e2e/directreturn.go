package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// connectionsOfFamily are how many connections are open to a Service in each family.
	connectionsOfFamily = 100
	// rounds are how many requests each of them gets in a step, one roundInterval after the other.
	rounds        = 5
	roundInterval = time.Second
)

// runDirectReturn takes a node out of the route to two Services' addresses, and puts it back, while connections are open.
func runDirectReturn(ctx context.Context, s *scenarioRun) error {
	made, err := s.serveWithControl(ctx)
	if err != nil {
		return err
	}
	gated, err := s.options.contender("nftproxy")
	if err != nil {
		return err
	}
	gated.name, gated.gates = "nftproxy with direct return", "NFTProxyDirectReturn: true"
	if err := s.step(ctx, "the proxies get the feature gate, node after node", counts, made.all(), func(ctx context.Context) error {
		return s.startProxies(ctx, gated)
	}); err != nil {
		return err
	}
	if err := s.apply("directreturn.yaml"); err != nil {
		return err
	}
	direct, masqueraded := &crowd{service: "direct", kind: counts}, &crowd{service: "masqueraded", kind: control}
	for _, c := range []*crowd{direct, masqueraded} {
		if err := s.gather(ctx, c, made); err != nil {
			return err
		}
		defer c.disperse()
	}
	entrance := s.Nodes[0].Name
	s.later(func(context.Context) error {
		_, err := s.kubectl("", "label", "node", entrance, v1.LabelNodeExcludeBalancers+"-")
		return err
	})
	if err := s.changeRoute(ctx, entrance+" leaves the route", nodeCount-1, v1.LabelNodeExcludeBalancers+"=", direct, masqueraded); err != nil {
		return err
	}
	return s.changeRoute(ctx, entrance+" comes back to the route", nodeCount, v1.LabelNodeExcludeBalancers+"-", direct, masqueraded)
}

// crowd is many connections from outside to a Service's addresses.
type crowd struct {
	service string
	// kind is that of the steps in which the connections are used.
	kind  stepKind
	addrs []netip.Addr
	all   []*member
}

// member is a connection of a crowd.
type member struct {
	path
	kept
	lost bool
}

// gather waits for the Service's addresses and their routes, opens the connections, and sees which client the servers see.
func (s *scenarioRun) gather(ctx context.Context, c *crowd, made servers) error {
	if err := await(ctx, c.service+" has addresses", func() (err error) {
		c.addrs, err = s.balancedAddrs(ctx, c.service)
		return err
	}); err != nil {
		return err
	}
	// Nodes that know a later Service know this one.
	if err := errors.Join(s.awaitRoute(ctx, c, nodeCount), s.serveAnother(ctx, made)); err != nil {
		return err
	}
	for family, addr := range c.addrs {
		p := path{fmt.Sprintf("from outside to Service %s, %s", c.service, families[family]), s.machine().dial, net.JoinHostPort(addr.String(), "80")}
		if err := await(ctx, p.name+" works", func() error { _, err := p.fetch(ctx, "/hostname"); return err }); err != nil {
			return err
		}
		for range connectionsOfFamily {
			c.all = append(c.all, &member{path: p})
		}
	}
	s.record(step{name: "the servers see the client's own address: Service " + c.service, kind: c.kind, tally: c.seen(ctx)})
	return c.open()
}

// balancedAddrs are the load balancer's addresses, by family.
func (s *scenarioRun) balancedAddrs(ctx context.Context, service string) ([]netip.Addr, error) {
	found, err := s.client.CoreV1().Services(scenarioNamespace).Get(ctx, service, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	addrs := addressesOf([]v1.Service{*found})
	if len(addrs) != len(families) {
		return nil, fmt.Errorf("it has %v", addrs)
	}
	return addrs, nil
}

// awaitRoute waits until the Service's addresses lead to this many nodes.
func (s *scenarioRun) awaitRoute(ctx context.Context, c *crowd, nodes int) error {
	return await(ctx, fmt.Sprintf("the addresses of %s lead to %d nodes", c.service, nodes), func() error {
		return s.machine().do(func() error {
			for i, addr := range c.addrs {
				family := []int{netlink.FAMILY_V4, netlink.FAMILY_V6}[i]
				routes, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: ipNet(netip.PrefixFrom(addr, addr.BitLen()))}, netlink.RT_FILTER_DST)
				if err != nil {
					return err
				}
				if len(routes) != 1 || len(routes[0].MultiPath) != nodes {
					return fmt.Errorf("%s has the routes %v", addr, routes)
				}
			}
			return nil
		})
	})
}

// seen makes new connections. One fails if the server does not see the client's own address.
func (c *crowd) seen(ctx context.Context) (t tally) {
	for i, m := range c.all {
		if i%(connectionsOfFamily/10) != 0 {
			continue
		}
		begin := time.Now()
		client, err := m.fetch(ctx, "/clientip")
		if err == nil && !isClient(client) {
			err = fmt.Errorf("%s: the server sees %s", m.name, client)
		}
		t.add(err, time.Since(begin))
	}
	return t
}

// isClient says whether an address with a port is the machine's as a client.
func isClient(address string) bool {
	parsed, err := netip.ParseAddrPort(address)
	return err == nil && slices.ContainsFunc(clientAddrs, func(own netip.Prefix) bool { return own.Addr() == parsed.Addr() })
}

// open opens the connections that are not.
func (c *crowd) open() error {
	for _, m := range c.all {
		m.lost = false
	}
	return errors.Join(c.ask().errors...)
}

// ask sends a request in each connection that is not lost, all at once.
func (c *crowd) ask() (t tally) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, m := range c.all {
		if m.lost {
			continue
		}
		asking.Go(func() {
			begin := time.Now()
			err := m.get(m.path, false)
			if err != nil {
				err = fmt.Errorf("%s: %w", m.name, err)
				m.lost = true
				m.close()
			}
			mu.Lock()
			defer mu.Unlock()
			t.add(err, time.Since(begin))
		})
	}
	asking.Wait()
	return t
}

func (c *crowd) disperse() {
	for _, m := range c.all {
		m.close()
	}
}

// changeRoute labels the first node, and uses all connections before and after the load balancer has changed the routes.
func (s *scenarioRun) changeRoute(ctx context.Context, name string, nodes int, label string, crowds ...*crowd) error {
	for _, c := range crowds {
		if err := c.open(); err != nil {
			return err
		}
	}
	if _, err := s.kubectl("", "label", "node", s.Nodes[0].Name, label); err != nil {
		return err
	}
	for _, c := range crowds {
		if err := s.awaitRoute(ctx, c, nodes); err != nil {
			return err
		}
	}
	for _, c := range crowds {
		used := step{name: fmt.Sprintf("%s: %d open connections to Service %s", name, len(c.all), c.service), kind: c.kind}
		for range rounds {
			used.join(c.ask())
			if err := pause(ctx, roundInterval); err != nil {
				return err
			}
		}
		s.record(used)
	}
	return nil
}
