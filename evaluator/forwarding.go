package evaluator

import (
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
)

// Device has the settings of an interface that decide whether the kernel forwards packets.
type Device struct {
	// MTU is in bytes; 0 if it is not known.
	MTU uint32 `json:"mtu,omitempty"`
	// Forwarding and Forwarding6 are On or Off, for IPv4 and IPv6 packets that come in by the device.
	Forwarding  Setting `json:"forwarding,omitempty" jsonschema:"enum=on,enum=off"`
	Forwarding6 Setting `json:"forwarding6,omitempty" jsonschema:"enum=on,enum=off"`
	// RPFilter is Off, Strict or Loose: the larger value of net.ipv4.conf.all.rp_filter and the device's own. IPv6 has none.
	RPFilter Setting `json:"rpFilter,omitempty" jsonschema:"enum=off,enum=strict,enum=loose"`
	// NoIPv4 says that the device has no IPv4 address. Then Loose means Strict.
	NoIPv4 bool `json:"noIPv4,omitempty"`
}

// Setting is the value of a sysctl; empty if it is not known.
type Setting string

// The settings. Strict and Loose are 1 and 2 of rp_filter (RFC 3704).
const (
	On     Setting = "on"
	Off    Setting = "off"
	Strict Setting = "strict"
	Loose  Setting = "loose"
)

// RoutingFailure says why the kernel does not route a packet; empty if it does.
type RoutingFailure string

// The failures. At the first three the sender gets an ICMP error; the others are silent.
const (
	NoRoute       RoutingFailure = "no-route"
	Unreachable   RoutingFailure = "route-unreachable"
	Prohibited    RoutingFailure = "route-prohibit"
	Blackholed    RoutingFailure = "route-blackhole"
	ForwardingOff RoutingFailure = "forwarding-off"
	ReversePath   RoutingFailure = "rp-filter"
	// Martian means that no packet with such a source or destination may come this way.
	Martian RoutingFailure = "martian"
)

// result returns the Result of packets that the kernel does not route.
func (f RoutingFailure) result() Result {
	if f == NoRoute || f == Unreachable || f == Prohibited {
		return Refused
	}
	return Dropped
}

// failuresOfTypes are the failures at routes that packets do not leave by.
var failuresOfTypes = map[RouteType]RoutingFailure{RouteUnreachable: Unreachable, RouteProhibit: Prohibited, RouteBlackhole: Blackholed}

// Answer is the kernel's answer to the question how it routes a packet.
type Answer struct {
	// Route has the prefix and the next hops.
	Route Route
	// Failure says that the kernel does not route the packet.
	Failure RoutingFailure
}

// decision is the kernel's routing decision about a packet.
type decision struct {
	Route
	failure RoutingFailure
	// why are the failure's words. unknown, if not empty, says why the decision is not known.
	why, unknown string
	to           netip.Addr
}

// decide routes the packet to an address.
func (w *walk) decide(addr netip.Addr) decision {
	asked, is := w.ask(addr)
	if is && asked.Failure == "" {
		d := decision{Route: asked.Route, to: addr}
		if !w.packet.Local && d.Type != RouteLocal && w.family == nft.FamilyIP6 { // the kernel looks at forwarding later
			w.mayForward(&d)
		}
		return d
	}
	d := w.model(addr) // which has more words for a refusal than the kernel
	if is && d.failure == "" {
		d.fail(asked.Failure, "the kernel says "+string(asked.Failure))
		if asked.Failure == Martian {
			d.why = fmt.Sprintf("the kernel does not take %s from %s by %s (rp_filter, or no address that may come so)", addr, w.source.Addr(), w.inDevice())
		}
	}
	return d
}

// ask asks the kernel, if the packet is known well enough. What the node sends to itself needs no route.
func (w *walk) ask(to netip.Addr) (Answer, bool) {
	p := Packet{Source: w.source, Destination: netip.AddrPortFrom(to, w.destination.Port()), Protocol: w.packet.Protocol, Local: w.packet.Local, Mark: w.routingMark.bits}
	if !p.Local {
		p.Interface = w.inDevice()
	}
	if w.host.Ask == nil || !p.Source.IsValid() || w.routingMark.unknown != 0 || !p.Local && p.Interface == "" || p.Local && w.isLocal(to) {
		return Answer{}, false
	}
	a, err := w.host.Ask(p)
	return a, err == nil
}

// inDevice is the interface that the packet has come in by, as IP sees it; empty if it is not known.
func (w *walk) inDevice() string {
	name := w.incoming().name
	if bridge := w.host.Bridges[name]; bridge != "" {
		return bridge
	}
	return name
}

// model routes the packet by what is known of the host.
func (w *walk) model(to netip.Addr) decision {
	q := w.query(to)
	if !w.packet.Local {
		q.iif = w.inDevice()
	}
	r, unknown := w.lookup(q)
	d := decision{Route: r, unknown: unknown, to: to}
	switch failure := failuresOfTypes[r.Type]; {
	case unknown != "":
	case failure != "":
		d.fail(failure, "there is only a route of type "+string(r.Type))
	case r.Type != "" && r.Type != RouteLocal:
		d.unknown = "a route of type " + string(r.Type) + " is not modelled"
	case !r.Destination.IsValid() && r.Type == "" && len(w.host.Rules) > 0:
		d.fail(NoRoute, "there is no route")
	}
	if w.packet.Local {
		return d
	}
	if r.Type != RouteLocal && (w.family == nft.FamilyIP || d.failure == "") {
		w.mayForward(&d)
	}
	if w.family == nft.FamilyIP && d.failure == "" && d.unknown == "" {
		w.checkReversePath(&d)
	}
	return d
}

func (d *decision) fail(f RoutingFailure, why string) { d.failure, d.why, d.unknown = f, why, "" }

// mayForward looks whether the kernel forwards what comes in by the packet's interface. IPv4 looks before there is a route.
func (w *walk) mayForward(d *decision) {
	setting := func(of Device) Setting {
		if w.family == nft.FamilyIP6 {
			return of.Forwarding6
		}
		return of.Forwarding
	}
	in, some, all := w.inDevice(), false, len(w.host.Devices) > 0
	for name, device := range w.host.Devices {
		off := setting(device) == Off
		some, all = some || off, all && (off || name == loopback)
	}
	switch off := setting(w.host.Devices[in]) == Off; {
	case all && w.family == nft.FamilyIP6:
		d.fail(ForwardingOff, "net.ipv6.conf.all.forwarding is 0")
	case all:
		d.fail(ForwardingOff, "ip_forward is 0")
	case off:
		d.fail(ForwardingOff, fmt.Sprintf("forwarding of %s is 0", in))
	case some && in == "":
		d.unknown = "the kernel does not forward what comes in by some interfaces, and " + w.iif.unknown
	}
}

// checkReversePath does what rp_filter does: the way back to the source must lead by the interface that the packet came in by
// (strict), or exist (loose). The kernel looks at the destination after translation, and the mark counts only with
// src_valid_mark (fib_validate_source in net/ipv4/fib_frontend.c).
func (w *walk) checkReversePath(d *decision) {
	in, from := w.inDevice(), w.source.Addr()
	device := w.host.Devices[in]
	mode, text := device.RPFilter, string(device.RPFilter)
	if mode == Loose && device.NoIPv4 {
		mode, text = Strict, "loose, which is strict without an address,"
	}
	if mode == "" || mode == Off || !from.IsValid() {
		return
	}
	q := query{from: w.destination.Addr(), to: from, iif: loopback}
	if w.routingMark != (mark{}) {
		q.mark.unknown = ^uint32(0)
	}
	back, unknown := w.lookup(q)
	switch known := back.Interface != "" || len(back.Hops) > 0; {
	case unknown != "":
		d.unknown = fmt.Sprintf("rp_filter of %s is %s: %s", in, text, unknown)
	case back.Type == RouteLocal:
		d.fail(Martian, fmt.Sprintf("the source %s is the node's own", from))
	case !back.Destination.IsValid() || back.Type != "":
		d.fail(ReversePath, fmt.Sprintf("rp_filter of %s is %s and there is no way back to %s", in, text, from))
	case mode == Strict && !known:
		d.unknown = fmt.Sprintf("rp_filter of %s is %s and the interface of the way back to %s is not known", in, text, from)
	case mode == Strict && !back.leavesBy(in):
		d.fail(ReversePath, fmt.Sprintf("rp_filter of %s is %s and the way back to %s is by %s", in, text, from, back.Interface))
	}
}

// obeys ends the walk unless the kernel routes the packet.
func (w *walk) obeys(d decision) bool {
	switch {
	case d.unknown != "":
		w.fate.Result = Undecided
		w.note(routing + d.unknown)
	case d.failure != "":
		w.fate.Result, w.fate.Failure = d.failure.result(), d.failure
		s := Step{Kind: StepKernel, Hook: w.hook, Verdict: routing + d.why}
		if d.failure.result() == Refused || d.failure == Blackholed {
			s.Elements = []string{"to " + d.to.String()}
		}
		w.add(s)
	default:
		return true
	}
	return false
}
