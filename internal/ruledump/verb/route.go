package verb

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/evaluator"
)

// The reasons of packets that the kernel does not route: those of evaluator.RoutingFailure.
const (
	ReasonNoRoute       Reason = "no-route"
	ReasonUnreachable   Reason = "route-unreachable" // a route of type unreachable
	ReasonProhibited    Reason = "route-prohibit"
	ReasonBlackholed    Reason = "route-blackhole"
	ReasonForwardingOff Reason = "forwarding-off" // ip_forward, or forwarding of the interface that the packet came in by
	ReasonReversePath   Reason = "rp-filter"
	ReasonMartian       Reason = "martian" // an address that may not come this way
	// ReasonRoutingUnknown: what the kernel's routing does with the packet is not known.
	ReasonRoutingUnknown Reason = "routing-unknown"
)

// leaving is the route by which a packet leaves the node.
type leaving struct {
	Destination netip.Addr `json:"destination"` // after translation
	evaluator.Route
}

// remark is something unusual about an outcome, which need not be wrong.
type remark struct {
	Kind remarkKind `json:"kind"`
	// Destinations: the destinations that it is about, after translation
	Destinations []netip.Addr `json:"destinations"`
	Text         string       `json:"text"` // in words
}

// remarkKind is the kind of a remark, in a word.
type remarkKind string

const (
	// An endpoint leaves by the default route. Networks of clouds route addresses of pods; others do not.
	remarkDefaultRoute remarkKind = "default-route"
	// The next hop has not answered when the kernel asked for its Ethernet address.
	remarkFailedNeighbour remarkKind = "failed-neighbour"
)

// String returns the remark in a line.
func (r *remark) String() string {
	text := join(r.Destinations[:min(len(r.Destinations), explainShown)], ", ")
	if more := len(r.Destinations) - explainShown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + ": " + r.Text
}

// remarkOn adds a remark on a destination, together with other destinations of the same.
func (o *Outcome) remarkOn(to netip.Addr, kind remarkKind, text string) {
	at := slices.IndexFunc(o.Remarks, func(r remark) bool { return r.Kind == kind && r.Text == text })
	if at < 0 {
		at = len(o.Remarks)
		o.Remarks = append(o.Remarks, remark{Kind: kind, Text: text})
	}
	o.Remarks[at].Destinations = append(o.Remarks[at].Destinations, to)
}

// addRoutes adds the routes of the destinations, and what is unusual about them.
func (o *Outcome) addRoutes(from *evaluator.Outcome, host *evaluator.Host) {
	for _, d := range from.Destinations {
		to := d.Addr()
		r, known := from.Routes[to]
		if !known || slices.ContainsFunc(o.Routes, func(l leaving) bool { return l.Destination == to }) {
			continue
		}
		o.Routes = append(o.Routes, leaving{to, r})
		if r.Destination.Bits() == 0 && o.Result == "delivered" {
			o.remarkOn(to, remarkDefaultRoute, "leaves by the default route, "+r.String()+": either the network there routes pods' addresses, or a route is missing here")
		}
		hop := evaluator.Hop{Gateway: r.Gateway, Interface: r.Interface}
		if !hop.Gateway.IsValid() {
			hop.Gateway = to
		}
		if slices.Contains(host.FailedNeighbours, hop) {
			o.remarkOn(to, remarkFailedNeighbour, fmt.Sprintf("its next hop %s on %s has not answered the kernel's question for its Ethernet address", hop.Gateway, hop.Interface))
		}
	}
}
