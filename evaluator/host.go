package evaluator

import (
	"net/netip"
	"slices"
)

// Host is the state of the machine's kernel besides rules. The zero value has loopback addresses only, and no routes.
type Host struct {
	// Addresses are the machine's own addresses on all interfaces. Loopback addresses need not be named.
	Addresses []netip.Addr
	// Routes may be incomplete. If no route fits, that is an error only if a rule looks at the outgoing interface.
	Routes []Route
}

// Route is a route by which packets leave. Among several, the longest prefix counts.
type Route struct {
	// Destination contains the destinations of the packets.
	Destination netip.Prefix
	// Interface is the name of the outgoing interface. Packets to the machine itself always leave by lo.
	Interface string
	// Source is the address that masquerading chooses; the zero value if it is not known.
	Source netip.Addr
}

func (h *Host) isLocal(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(h.Addresses, addr)
}

// route returns the route with the longest prefix that contains addr; the zero Route if there is none.
func (h *Host) route(addr netip.Addr) Route {
	var best Route
	for _, r := range h.Routes {
		if r.Destination.Contains(addr) && (!best.Destination.IsValid() || r.Destination.Bits() > best.Destination.Bits()) {
			best = r
		}
	}
	if h.isLocal(addr) {
		best.Interface = loopback
	}
	return best
}

const loopback = "lo"
