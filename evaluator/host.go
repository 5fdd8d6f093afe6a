package evaluator

import (
	"net/netip"
	"slices"
)

// Host is what the node's kernel knows besides rules. The zero value has loopback
// addresses only, and knows no route.
type Host struct {
	// Addresses is the node's own addresses on all interfaces. Loopback addresses always are.
	Addresses []netip.Addr
	// Routes says by which interface packets leave. It may be incomplete: where none fits,
	// an error comes of it only if a rule looks at what the route would say.
	Routes []Route
}

// Route says how packets to a range of addresses leave.
type Route struct {
	Destination netip.Prefix
	// Interface is the name of the outgoing interface. Packets to the node itself go by lo,
	// whatever a route says.
	Interface string
	// Source is the address that masquerading gives, if known.
	Source netip.Addr
}

func (h *Host) isLocal(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(h.Addresses, addr)
}

// route returns the route with the longest prefix that contains addr. The zero Route means
// that none does.
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
