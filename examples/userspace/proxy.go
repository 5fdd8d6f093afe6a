package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// frontend is an address that clients dial.
type frontend struct {
	protocol model.Protocol
	at       netip.AddrPort
}

func (f frontend) compare(o frontend) int {
	return cmp.Or(int(f.protocol)-int(o.protocol), f.at.Compare(o.at))
}

// The kinds of a frontend's address.
const clusterIP, loadBalancerIP, externalIP, nodePort = 0, 1, 2, 3

// target is the Service port behind a frontend, and the kind of the frontend's address.
type target struct {
	port *model.ServicePort
	kind int
	// inside has the addresses of clients to which traffic policy Local does not apply: pods, and the node itself.
	inside []netip.Prefix
}

func (t target) equal(o target) bool { return t.kind == o.kind && t.port.Equal(o.port) }
func (t target) usable() bool        { return len(t.port.Cluster) > 0 || len(t.port.Local) > 0 }

// precedes says which of two targets gets a frontend that both claim: by kind, then the one with endpoints. Else the first stays.
func (t target) precedes(o target) bool {
	return t.kind < o.kind || t.kind == o.kind && t.usable() && !o.usable()
}

// proxy works out all frontends anew with each change, and its DiffStores tell which to open and close.
type proxy struct {
	clusterCIDRs []netip.Prefix // the ranges of the pods
	frontends    *model.DiffStore[frontend, target]
	addresses    *model.DiffStore[netip.Addr, struct{}]
	servers      map[frontend]*server
}

func newProxy(clusterCIDRs []netip.Prefix) (*proxy, error) {
	p := &proxy{
		clusterCIDRs: clusterCIDRs,
		frontends:    model.NewDiffStoreFunc(frontend.compare, target.equal),
		addresses:    model.NewDiffStoreFunc(netip.Addr.Compare, func(a, b struct{}) bool { return true }),
		servers:      map[frontend]*server{},
	}
	// What an earlier run has left is there already, or goes with the first Sync.
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, localRoute(netip.Addr{}), netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	for _, r := range routes {
		addr, _ := netip.AddrFromSlice(r.Dst.IP)
		p.addresses.Adopt(addr.Unmap(), struct{}{})
	}
	return p, err
}

// sync is called with all there is. A failure does not keep the rest from being done; the next call tries again.
func (p *proxy) sync(_ context.Context, all *model.Changes) error {
	p.claim(all)
	err := errors.Join(p.addresses.Apply(removeAddress, addAddress), p.frontends.Apply(p.close, p.serve))
	log.Printf("synced: %d Service ports, %d open frontends, error %v", len(all.Ports), len(p.servers), err)
	return err
}

func addAddress(addr netip.Addr, _ struct{}) error {
	if err := netlink.RouteAdd(localRoute(addr)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add a local route to %s: %w", addr, err)
	}
	return nil // one that the machine has anyway stays as it is
}

func removeAddress(addr netip.Addr, _ struct{}) error {
	if err := netlink.RouteDel(localRoute(addr)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete the local route to %s: %w", addr, err)
	}
	return nil
}

// localRoute makes the machine take packets to addr for its own. "ip route list table local proto 78" shows those of this program.
func localRoute(addr netip.Addr) *netlink.Route {
	return &netlink.Route{
		Dst: netlink.NewIPNet(addr.AsSlice()), LinkIndex: 1, Protocol: 78, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST,
	}
}

// serve opens a frontend, or changes where new connections of an open one go. Nobody listens for
// a Service port without endpoints, so the kernel refuses.
func (p *proxy) serve(f frontend, t target) error {
	if s := p.servers[f]; s != nil && t.usable() {
		s.target.Store(&t)
		return nil
	}
	p.close(f, t)
	if !t.usable() || f.protocol == model.SCTP {
		return nil
	}
	s := &server{at: f.at, flows: map[netip.AddrPort]*net.UDPConn{}}
	s.target.Store(&t)
	if err := s.listen(f.protocol); err != nil {
		return fmt.Errorf("%s: %w", t.port.ID, err)
	}
	p.servers[f] = s
	return nil
}

// close ends a frontend. Its TCP connections go on.
func (p *proxy) close(f frontend, _ target) error {
	if s := p.servers[f]; s != nil {
		s.Close()
		delete(p.servers, f)
	}
	return nil
}

// claim writes the frontends of all Service ports, and the addresses that must be local.
func (p *proxy) claim(all *model.Changes) {
	p.frontends.Begin()
	p.addresses.Begin()
	inside := slices.Clone(p.clusterCIDRs)
	for _, ip := range all.Node.IPs {
		inside = append(inside, netip.PrefixFrom(ip, ip.BitLen()))
	}
	for _, id := range slices.SortedFunc(maps.Keys(all.Ports), model.PortID.Compare) {
		port := all.Ports[id]
		for kind, addrs := range [][]netip.Addr{{port.ClusterIP}, port.LoadBalancerIPs, port.ExternalIPs, all.Node.IPs} {
			for _, addr := range addrs {
				t, f := target{port, kind, inside}, frontend{id.Protocol, netip.AddrPortFrom(addr, port.Port)}
				if kind != nodePort {
					p.addresses.Set(addr, struct{}{})
				} else if f.at = netip.AddrPortFrom(addr, port.NodePort); port.NodePort == 0 || model.FamilyOf(addr) != id.Family {
					continue
				}
				if other, taken := p.frontends.Get(f); !taken || t.precedes(other) {
					p.frontends.Set(f, t)
				}
			}
		}
	}
}

var seed = maphash.MakeSeed()

// choose returns the endpoint for a new connection from client to the address dialed: the zero value if there is none.
func (t target) choose(client, dialed netip.Addr) netip.AddrPort {
	contains := func(p netip.Prefix) bool { return p.Contains(client) }
	self := client == dialed // over IPv4 the machine calls itself by the address that it dials
	endpoints, policy := t.port.Cluster, t.port.InternalPolicy
	if t.kind != clusterIP {
		policy = t.port.ExternalPolicy
	}
	if policy == model.PolicyLocal && (t.kind == clusterIP || !self && !slices.ContainsFunc(t.inside, contains)) {
		endpoints = t.port.Local
	}
	ranges := t.port.LoadBalancerSourceRanges
	if len(endpoints) == 0 || t.kind == loadBalancerIP && ranges != nil && !self && !slices.ContainsFunc(ranges, contains) {
		return netip.AddrPort{}
	}
	if t.port.AffinityTimeout == 0 {
		return endpoints[rand.IntN(len(endpoints))].AddrPort
	}
	// The endpoint that fits the client best, by a hash of both: the same as long as it is there.
	fit := func(e model.Endpoint) uint64 {
		return maphash.Comparable(seed, [2]netip.AddrPort{netip.AddrPortFrom(client, 0), e.AddrPort})
	}
	return slices.MaxFunc(endpoints, func(a, b model.Endpoint) int { return cmp.Compare(fit(a), fit(b)) }).AddrPort
}
