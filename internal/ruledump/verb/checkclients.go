package verb

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
)

// The kinds of clients.
const (
	clientPod       = "pod"
	clientElsewhere = "pod-elsewhere"
	clientNode      = "node"
	clientOutside   = "outside"
)

// clientKind is a kind of client with addresses that stand for it, by IP family.
type clientKind struct {
	CheckClient
	sources map[nft.Family][]clientSource
}

// clientSource is an address of a client and the interface that its packets come in by; empty if it is not known.
type clientSource struct {
	addr  netip.Addr
	iface string
}

// String returns the source as explain's --from takes it.
func (s clientSource) String() string {
	if s.iface == "" {
		return s.addr.String()
	}
	return s.addr.String() + "%" + s.iface
}

// Bounds of the kinds of clients.
const (
	// maxOutside bounds the devices that lead outside; a check of each of them costs as much as one of the node's pods.
	maxOutside = 4
	// maxSources bounds the addresses of one kind: another one is needed only where the first is the Service's endpoint.
	maxClientSources = 2
)

// documentation are addresses that nobody has (RFC 5737, RFC 3849), to stand for clients behind a default route.
var documentation = []netip.Addr{
	netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("192.0.2.7"),
	netip.MustParseAddr("2001:db8:51::7"), netip.MustParseAddr("2001:db8:52::7"), netip.MustParseAddr("2001:db8:53::7"),
}

// network is what a node's routes tell of pods and of the world outside.
type network struct {
	rules *ruledump.Snapshot
	node  []netip.Addr
	// pods are the ranges of the cluster's clients, as far as the proxy's rules tell. Without routes or endpoints in them, they
	// do not count: then detect-local is wrong.
	pods []netip.Prefix
	// endpoints are all endpoints, each once.
	endpoints []netip.Addr
	routes    *evaluator.Evaluator
	// uplinks are the devices by which packets leave to gateways.
	uplinks map[string]bool
}

func newNetwork(s *ruledump.Snapshot, frontends []*compiler.Frontend, routes *evaluator.Evaluator) *network {
	n := &network{rules: s, routes: routes, uplinks: map[string]bool{}}
	for _, r := range s.Host.Routes {
		for _, hop := range append(slices.Clip(r.Hops), evaluator.Hop{Gateway: r.Gateway, Interface: r.Interface}) {
			if hop.Gateway.IsValid() {
				n.uplinks[hop.Interface] = true
			}
		}
	}
	node := compiler.NodeFromTables(s.Tables...)
	n.node = append(node.IPs, s.Addresses...)
	seen := map[netip.Addr]bool{}
	for _, f := range frontends {
		for _, e := range slices.Concat(f.Endpoints, f.LocalEndpoints) {
			if !seen[e.Addr()] {
				seen[e.Addr()] = true
				n.endpoints = append(n.endpoints, e.Addr())
			}
		}
	}
	for _, p := range node.PodCIDRs {
		if slices.ContainsFunc(n.endpoints, p.Contains) || slices.ContainsFunc(s.Host.Routes, func(r evaluator.Route) bool { return routesInto(r, p) }) {
			n.pods = append(n.pods, p)
		}
	}
	return n
}

// routesInto reports whether a route is one into a range, and not one to everywhere.
func routesInto(r evaluator.Route, pods netip.Prefix) bool {
	return r.Destination.Bits() > 0 && r.Destination.Overlaps(pods) && !isFailure(r.Type)
}

func isFailure(t evaluator.RouteType) bool {
	return slices.Contains([]evaluator.RouteType{evaluator.RouteBlackhole, evaluator.RouteUnreachable, evaluator.RouteProhibit, evaluator.RouteThrow}, t)
}

// isPod reports whether an address may be a pod's.
func (n *network) isPod(addr netip.Addr) bool {
	return !slices.Contains(n.node, addr) && (!n.knowsPods(addr) || n.isInPods(addr))
}

func (n *network) isInPods(addr netip.Addr) bool {
	return slices.ContainsFunc(n.pods, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func (n *network) knowsPods(of netip.Addr) bool {
	return slices.ContainsFunc(n.pods, func(p netip.Prefix) bool { return p.Addr().Is4() == of.Is4() })
}

// isHere reports whether a pod's address is behind a device of this node, by the route to it.
func (n *network) isHere(addr netip.Addr) (clientSource, bool) {
	if place, known := n.rules.Places[addr]; known && n.rules.Host.Routes == nil {
		return clientSource{addr, ""}, place.Node == n.rules.Node
	}
	r, known := n.routes.RouteTo(addr)
	here := known && n.isPod(addr) && r.Type == "" && r.Interface != "" && !r.Gateway.IsValid() && r.Destination.Bits() > 0 && !n.uplinks[r.Interface]
	return clientSource{addr, r.Interface}, here
}

// isElsewhere reports whether a pod's address is behind another node.
func (n *network) isElsewhere(addr netip.Addr) (clientSource, bool) {
	if place, known := n.rules.Places[addr]; known && n.rules.Host.Routes == nil {
		return clientSource{addr, ""}, place.Node != "" && place.Node != n.rules.Node
	}
	r, known := n.routes.RouteTo(addr)
	away := known && n.isPod(addr) && r.Type == "" && r.Interface != "" && (r.Gateway.IsValid() || n.uplinks[r.Interface]) && r.Destination.Bits() > 0
	return clientSource{addr, r.Interface}, away
}

// clients returns the kinds of clients that the node has, each with its addresses.
func (n *network) clients() []clientKind {
	kinds := []clientKind{n.kind("pods here", clientPod, n.isHere), n.kind("pods elsewhere", clientElsewhere, n.isElsewhere), n.theNode()}
	kinds = append(kinds, n.outside()...)
	kinds = slices.DeleteFunc(kinds, func(k clientKind) bool { return len(k.sources) == 0 })
	for i := range kinds {
		k := &kinds[i]
		for family, text := range map[nft.Family]*string{nft.FamilyIP: &k.From, nft.FamilyIP6: &k.From6} {
			if len(k.sources[family]) > 0 {
				*text = k.sources[family][0].String()
			}
		}
	}
	return kinds
}

func (k *clientKind) add(s clientSource) {
	family := nft.FamilyIP
	if s.addr.Is6() {
		family = nft.FamilyIP6
	}
	if len(k.sources[family]) < maxClientSources && !slices.Contains(k.sources[family], s) {
		k.sources[family] = append(k.sources[family], s)
	}
}

func newKind(name, kind string) clientKind {
	return clientKind{CheckClient{Name: name, Kind: kind}, map[nft.Family][]clientSource{}}
}

// kind returns pods: addresses in routes first, which may be pods that serve nothing, then endpoints.
func (n *network) kind(name, kind string, is func(netip.Addr) (clientSource, bool)) clientKind {
	k := newKind(name, kind)
	for _, r := range n.rules.Host.Routes {
		if r.Type != "" || r.Destination.Bits() == 0 || !n.knowsPods(r.Destination.Addr()) {
			continue
		}
		if s, yes := is(n.someone(r.Destination)); yes {
			k.add(s)
		}
	}
	for _, addr := range n.endpoints {
		if s, yes := is(addr); yes {
			k.add(s)
		}
	}
	return k
}

// someone returns an address of a network that is not the node's own.
func (n *network) someone(in netip.Prefix) netip.Addr {
	addr := in.Masked().Addr()
	if in.IsSingleIP() {
		return addr
	}
	for addr = addr.Next(); in.Contains(addr) && slices.Contains(n.node, addr); addr = addr.Next() {
	}
	return addr
}

// theNode returns processes of the node.
func (n *network) theNode() clientKind {
	k := newKind("this node", clientNode)
	for _, addr := range n.node {
		if !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			k.add(clientSource{addr: addr})
		}
	}
	return k
}

// outside returns clients behind each device that leads out of the cluster. Without routes there is one of each family.
func (n *network) outside() (kinds []clientKind) {
	if n.rules.Host.Routes == nil {
		k := newKind("outside", clientOutside)
		for _, addr := range documentation {
			k.add(clientSource{addr: addr})
		}
		return []clientKind{k}
	}
	byDevice := map[string]int{}
	add := func(r evaluator.Route, addr netip.Addr) {
		device := r.Interface
		if len(r.Hops) > 0 {
			device = r.Hops[0].Interface
		}
		at, known := byDevice[device]
		if !known {
			if at = len(kinds); at == maxOutside {
				return
			}
			byDevice[device] = at
			kinds = append(kinds, newKind(fmt.Sprintf("outside by %s", device), clientOutside))
		}
		kinds[at].add(clientSource{addr, device})
	}
	for _, addr := range documentation {
		if r, known := n.routes.RouteTo(addr); known && r.Type == "" && r.Destination.IsValid() {
			add(r, addr)
		}
	}
	for _, r := range n.rules.Host.Routes {
		to := r.Destination
		if r.Type != "" || r.Interface == "" || to.Bits() == 0 || to.Addr().IsMulticast() || to.Addr().IsLinkLocalUnicast() {
			continue
		}
		addr := n.someone(to)
		if slices.Contains(n.node, addr) {
			continue
		}
		_, here := n.isHere(addr)
		_, elsewhere := n.isElsewhere(addr)
		if best, known := n.routes.RouteTo(addr); known && best.Destination == to && !here && !elsewhere && !slices.ContainsFunc(n.pods, to.Overlaps) {
			add(r, addr)
		}
	}
	return kinds
}

// routesPods reports whether the node has routes to some pods like addr: to networks of other nodes in the range of pods that
// has addr.
func (n *network) routesPods(addr netip.Addr) bool {
	in := slices.IndexFunc(n.pods, func(p netip.Prefix) bool { return p.Contains(addr) })
	return in >= 0 && slices.ContainsFunc(n.rules.Host.Routes, func(r evaluator.Route) bool {
		return routesInto(r, n.pods[in]) && r.Type == "" && (r.Gateway.IsValid() || n.uplinks[r.Interface])
	})
}
