package evaluator

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// Route is an entry of a routing table. Among several of one table, the longest prefix counts.
type Route struct {
	// Destination contains the destinations of the packets.
	Destination netip.Prefix `json:"to"`
	// Interface is the name of the outgoing interface. Packets to the machine itself always leave by lo.
	Interface string `json:"interface"`
	// Source is the address that masquerading chooses; the zero value if it is not known.
	Source netip.Addr `json:"-"`
	// Type says what else becomes of the packets than that they leave, such as local or blackhole.
	Type RouteType `json:"type,omitempty"`
	// Table is the number of the routing table; 0 is the main one.
	Table uint32 `json:"table,omitempty"`
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

// best returns the route of a table with the longest prefix that contains addr; the zero Route if there is none.
func (h *Host) best(table uint32, addr netip.Addr) (best Route) {
	for _, r := range h.Routes {
		if t := r.Table; t == 0 && table == mainTable || t == table {
			if r.Destination.Contains(addr) && (!best.Destination.IsValid() || r.Destination.Bits() > best.Destination.Bits()) {
				best = r
			}
		}
	}
	return best
}

func (h *Host) isLocal(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(h.Addresses, addr) || h.best(localTable, addr).Type == RouteLocal
}

func (h *Host) isBroadcast(addr netip.Addr) bool {
	return h.best(localTable, addr).Type == RouteBroadcast
}

// routesByMore reports whether routing rules look at more than the destination.
func (h *Host) routesByMore() bool {
	return slices.ContainsFunc(h.Rules, func(r RoutingRule) bool {
		return r.Mask != 0 || r.Iif != "" || r.Unknown != "" || r.From.IsValid() && r.From.Bits() > 0
	})
}

// routeTo returns the route to an address by the rules, as the packet is now. If that is not known, unknown says why. None is
// the zero Route.
func (w *walk) routeTo(addr netip.Addr) (r Route) {
	r, _ = w.findRoute(addr)
	return r
}

func (w *walk) findRoute(addr netip.Addr) (r Route, unknown string) {
	if w.host.isLocal(addr) {
		r = w.host.best(mainTable, addr)
		r.Interface, r.Type = loopback, RouteLocal
		return r, ""
	}
	rules := w.host.Rules
	if len(rules) == 0 {
		rules = []RoutingRule{{Family: w.family, Table: localTable}, {Family: w.family, Table: mainTable}}
	}
	for _, rule := range rules {
		switch applies := w.applies(rule, addr); {
		case applies == no:
			continue
		case applies == maybe:
			return Route{}, "whether the routing rule applies is not known: " + rule.String()
		case rule.Type != "":
			return Route{Type: rule.Type}, ""
		}
		if r = w.host.best(rule.Table, addr); r.Destination.IsValid() && r.Type != RouteThrow {
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

// applies reports whether a routing rule is for the packet.
func (w *walk) applies(r RoutingRule, to netip.Addr) truth {
	iif := w.iif.name
	if w.packet.Local && w.iif == (ifname{}) {
		iif = loopback
	}
	switch {
	case r.Family != w.family, r.To.IsValid() && !r.To.Contains(to), r.From.IsValid() && w.source.IsValid() && !r.From.Contains(w.source.Addr()),
		(w.routingMark.bits^r.Mark)&r.Mask&^w.routingMark.unknown != 0, r.Iif != "" && r.Iif != iif && iif != "":
		return no
	case r.Unknown != "", r.From.IsValid() && !w.source.IsValid(), r.Mask&w.routingMark.unknown != 0, r.Iif != "" && iif == "":
		return maybe
	}
	return yes
}

// leave looks up the outgoing interface. It reports whether there is a route.
func (w *walk) leave() bool { return w.leaveTo(w.destination.Addr()) }

func (w *walk) leaveTo(addr netip.Addr) bool {
	r, unknown := w.findRoute(addr)
	w.oif = ifname{name: r.Interface}
	if w.oif.name == "" {
		w.oif.unknown = fmt.Sprintf("the interface towards %s is not known", addr)
	}
	switch complete := len(w.host.Rules) > 0; {
	case unknown != "":
		w.fate.Result = Undecided
		w.note("routing: " + unknown)
	case r.Type == RouteBlackhole:
		w.note("routing: blackhole")
	case r.Type == RouteUnreachable || r.Type == RouteProhibit:
		w.fate.Result = Refused
		w.note("routing: " + string(r.Type))
	case r.Type != "" && r.Type != RouteLocal:
		w.fate.Result = Undecided
		w.note("routing: a route of type " + string(r.Type) + " is not modelled")
	case !r.Destination.IsValid() && r.Type == "" && complete:
		w.fate.Result = Refused
		w.note("routing: there is no route to " + addr.String())
	default:
		return true
	}
	return false
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
