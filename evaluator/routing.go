package evaluator

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// Route is an entry of a routing table. Among several of one table, the longest prefix counts; of equal ones the first.
type Route struct {
	// Destination contains the destinations of the packets.
	Destination netip.Prefix `json:"to"`
	// Interface is the name of the outgoing interface; empty if it is not known, or if Hops differ. Packets to the machine
	// itself always leave by lo.
	Interface string `json:"interface"`
	// Gateway is the next hop; the zero Addr if the destination is one itself.
	Gateway netip.Addr `json:"via,omitzero"`
	// Hops are those of a route with several (multipath). The kernel chooses one for each connection.
	Hops []Hop `json:"hops,omitempty"`
	// MTU is that of the route, in bytes; 0 if the device's counts.
	MTU uint32 `json:"mtu,omitempty"`
	// Source is the address that masquerading chooses; the zero value if it is not known.
	Source netip.Addr `json:"-"`
	// Type says what else becomes of the packets than that they leave, such as local or blackhole.
	Type RouteType `json:"type,omitempty"`
	// Table is the number of the routing table; 0 is the main one.
	Table uint32 `json:"table,omitempty"`
}

// Hop is a next hop of a Route.
type Hop struct {
	Gateway   netip.Addr `json:"via,omitzero"`
	Interface string     `json:"interface"`
}

// String returns the way to the next hop, such as "via 192.168.0.2 dev eth0".
func (r Route) String() string {
	hops := r.Hops
	if len(hops) == 0 {
		hops = []Hop{{r.Gateway, r.Interface}}
	}
	var ways []string
	for _, h := range hops {
		way := "dev " + h.Interface
		if h.Gateway.IsValid() {
			way = "via " + h.Gateway.String() + " " + way
		}
		ways = append(ways, way)
	}
	return strings.Join(ways, " or ")
}

// leavesBy reports whether packets leave by an interface, or may do so.
func (r Route) leavesBy(name string) bool {
	return r.Interface == name || slices.ContainsFunc(r.Hops, func(h Hop) bool { return h.Interface == name })
}

// RouteType is the type of a route, in the words of ip-route(8); empty means unicast.
type RouteType string

// The types of routes that packets do not leave by. Any other type makes the fate of a packet unknown.
const (
	RouteLocal       RouteType = "local"
	RouteBroadcast   RouteType = "broadcast"
	RouteBlackhole   RouteType = "blackhole"
	RouteUnreachable RouteType = "unreachable"
	RouteProhibit    RouteType = "prohibit"
	RouteThrow       RouteType = "throw"
)

// RoutingRule is a routing rule, as `ip rule` lists it.
type RoutingRule struct {
	// From and To contain the packet's addresses, if they are valid.
	From netip.Prefix `json:"from,omitzero"`
	To   netip.Prefix `json:"to,omitzero"`
	// Iif is the name of the interface that the packet comes in by: lo for the node's own. Empty means any.
	Iif string `json:"iif,omitempty"`
	// Mark is compared with the bits of the packet mark that Mask has.
	Mark uint32 `json:"mark,omitempty"`
	Mask uint32 `json:"mask,omitempty"`
	// Family is that of the packets.
	Family nft.Family `json:"family"`
	// Table is the number of the table to search; 0 if Type says what becomes of the packets.
	Table uint32    `json:"table,omitempty"`
	Type  RouteType `json:"type,omitempty"`
	// Unknown says that the rule has conditions besides. It is how ip rule prints them.
	Unknown string `json:"unknown,omitempty"`
}

// Policy is a policy of IPsec (xfrm), in the order of their priorities.
type Policy struct {
	// Direction is "in", "fwd" or "out".
	Direction   string       `json:"direction"`
	Source      netip.Prefix `json:"source"`
	Destination netip.Prefix `json:"destination"`
	// Protocol and the ports are 0 for all.
	Protocol        uint8  `json:"protocol,omitempty"`
	SourcePort      uint16 `json:"sourcePort,omitempty"`
	DestinationPort uint16 `json:"destinationPort,omitempty"`
	// Block drops the packets, and Transform is for those that IPsec protects. Without both they pass.
	Block     bool `json:"block,omitempty"`
	Transform bool `json:"transform,omitempty"`
	// Unknown says that the policy has conditions besides.
	Unknown bool `json:"unknown,omitempty"`
}

// Numbers of routing tables.
const localTable, mainTable = 255, 254

const loopback = "lo"

// routingTable finds the routes of a routing table.
type routingTable struct {
	routes map[netip.Prefix]Route
	// lengths are those of the prefixes, the longest first.
	lengths []int
}

func routingTables(routes []Route) map[uint32]*routingTable {
	tables := map[uint32]*routingTable{}
	for _, r := range routes {
		number := cmp.Or(r.Table, mainTable)
		t := tables[number]
		if t == nil {
			t = &routingTable{routes: map[netip.Prefix]Route{}}
			tables[number] = t
		}
		to := r.Destination.Masked()
		if _, known := t.routes[to]; !known {
			t.routes[to] = r
			if !slices.Contains(t.lengths, to.Bits()) {
				t.lengths = append(t.lengths, to.Bits())
			}
		}
	}
	for _, t := range tables {
		slices.SortFunc(t.lengths, func(a, b int) int { return cmp.Compare(b, a) })
	}
	return tables
}

// best returns the route of a table with the longest prefix that contains addr; the zero Route if there is none.
func (e *Evaluator) best(table uint32, addr netip.Addr) Route {
	t := e.routes[table]
	if t == nil {
		return Route{}
	}
	for _, length := range t.lengths {
		to, err := addr.Prefix(length)
		if r, is := t.routes[to]; is && err == nil {
			return r
		}
	}
	return Route{}
}

func (e *Evaluator) isLocal(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(e.host.Addresses, addr) || e.best(localTable, addr).Type == RouteLocal
}

func (e *Evaluator) isBroadcast(addr netip.Addr) bool {
	return e.best(localTable, addr).Type == RouteBroadcast
}

// routesByMore reports whether routing rules look at more than the destination.
func (h *Host) routesByMore() bool {
	return slices.ContainsFunc(h.Rules, func(r RoutingRule) bool {
		return r.Mask != 0 || r.Iif != "" || r.Unknown != "" || r.From.IsValid() && r.From.Bits() > 0
	})
}

// query has the properties of a packet that routing rules and routes compare.
type query struct {
	// from is the zero Addr if it is not known.
	from, to netip.Addr
	// iif is the interface that the packet comes in by, lo for the node's own packets; empty if it is not known.
	iif  string
	mark mark
}

// query is about the packet as it is now, to an address.
func (w *walk) query(to netip.Addr) query {
	q := query{w.source.Addr(), to, w.iif.name, w.routingMark}
	if w.packet.Local && w.iif == (ifname{}) {
		q.iif = loopback
	}
	return q
}

// routeTo returns the route to an address by the rules, as the packet is now. If that is not known, unknown says why. None is
// the zero Route.
func (w *walk) routeTo(addr netip.Addr) (r Route) {
	r, _ = w.findRoute(addr)
	return r
}

func (w *walk) findRoute(addr netip.Addr) (r Route, unknown string) { return w.lookup(w.query(addr)) }

// lookup finds a route in the tables that the routing rules name.
func (e *Evaluator) lookup(q query) (r Route, unknown string) {
	if e.isLocal(q.to) {
		r = e.best(mainTable, q.to)
		r.Interface, r.Type = loopback, RouteLocal
		return r, ""
	}
	family := familyOf(q.to)
	rules := e.host.Rules
	if len(rules) == 0 {
		rules = []RoutingRule{{Family: family, Table: localTable}, {Family: family, Table: mainTable}}
	}
	for _, rule := range rules {
		switch applies := rule.applies(family, q); {
		case applies == no:
			continue
		case applies == maybe:
			return Route{}, "whether the routing rule applies is not known: " + rule.String()
		case rule.Type != "":
			return Route{Type: rule.Type}, ""
		}
		if r = e.best(rule.Table, q.to); r.Destination.IsValid() && r.Type != RouteThrow {
			return r, ""
		}
	}
	return Route{}, ""
}

// String returns the rule much as ip-rule(8) lists it.
func (r RoutingRule) String() string {
	text := fmt.Sprintf("lookup %d", r.Table)
	if r.Type != "" {
		text = string(r.Type)
	}
	if r.Iif != "" {
		text = "iif " + r.Iif + " " + text
	}
	if r.Mask != 0 {
		text = fmt.Sprintf("fwmark 0x%x/0x%x ", r.Mark, r.Mask) + text
	}
	if r.Unknown != "" {
		text = r.Unknown + " " + text
	}
	return text
}

// applies reports whether a routing rule is for a packet.
func (r RoutingRule) applies(family nft.Family, q query) truth {
	switch {
	case r.Family != family, r.To.IsValid() && !r.To.Contains(q.to), r.From.IsValid() && q.from.IsValid() && !r.From.Contains(q.from),
		(q.mark.bits^r.Mark)&r.Mask&^q.mark.unknown != 0, r.Iif != "" && r.Iif != q.iif && q.iif != "":
		return no
	case r.Unknown != "", r.From.IsValid() && r.From.Bits() > 0 && !q.from.IsValid(), r.Mask&q.mark.unknown != 0, r.Iif != "" && q.iif == "":
		return maybe
	}
	return yes
}

// leave looks up the outgoing interface. It reports whether the kernel routes the packet.
func (w *walk) leave() bool { return w.leaveTo(w.destination.Addr()) }

func (w *walk) leaveTo(addr netip.Addr) bool {
	d := w.decide(addr)
	w.leaveBy(d.Route)
	return w.obeys(d)
}

// leaveBy takes a route.
func (w *walk) leaveBy(r Route) {
	w.way, w.oif = r, ifname{name: r.Interface}
	if r.Interface == "" {
		w.oif.unknown = fmt.Sprintf("the interface towards %s is not known", w.destination.Addr())
	}
}

// permits reports whether the policies of IPsec let the packet pass in a direction.
func (w *walk) permits(direction string) bool {
	source, destination := w.source, w.destination
	if direction != "out" { // the kernel compares what the connection was before it was translated
		source, destination = w.packet.Source, w.packet.Destination
	}
	for _, p := range w.host.Policies {
		switch {
		case p.Direction != direction || p.Source.IsValid() && p.Source.Addr().Is4() != destination.Addr().Is4(),
			source.IsValid() && !p.Source.Contains(source.Addr()), !p.Destination.Contains(destination.Addr()),
			p.Protocol != 0 && p.Protocol != w.packet.Protocol,
			p.DestinationPort != 0 && destination.Port() != 0 && p.DestinationPort != destination.Port(), p.SourcePort != 0 && source.Port() != 0 && p.SourcePort != source.Port():
			continue
		case p.Transform || p.Unknown || !source.IsValid() || p.SourcePort != 0 && source.Port() == 0:
			w.fate.Result = Undecided
			w.note("xfrm: whether a policy " + direction + " lets the packet pass is not known")
			return false
		case p.Block:
			w.note("xfrm: a policy " + direction + " blocks the packet")
			return false
		}
		return true
	}
	return true
}
