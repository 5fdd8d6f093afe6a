package evaluator

import (
	"cmp"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
)

// walk is one path of a packet through the node: the packet in its current state, with its conntrack entry.
type walk struct {
	*Evaluator
	packet Packet // as it was sent
	family nft.Family
	// changes of sets, by earlier packets and this one.
	changes []change
	draws   *draws
	others  *others
	// statements counts the statements that ran.
	statements int

	// The packet in its current state. A source that masquerading chose may be unknown: the zero AddrPort.
	source, destination netip.AddrPort
	mark, ctMark        mark
	// routingMark is the mark with which the packet was routed last. The node's own packets are routed again where their
	// destination is translated, and behind chains of type route: not where another chain has changed the mark.
	routingMark mark
	// hops is the TTL or hop limit, which is not known unless a rule has set it.
	hops     uint8
	hopsSet  bool
	iif, oif ifname
	// way is the route by which the packet leaves, as of the last routing.
	way Route
	// atDevice says that the hook is one that a device calls: not one of IP.
	atDevice bool
	// tracked says that conntrack has seen the packet, and untracked that a rule keeps it from doing so.
	tracked, untracked bool
	// isCopy says that the packet is one that a rule has made.
	isCopy bool
	// translated says, for each end, whether NAT has decided about it for the connection. changed says whether the
	// decision changed it (ct status snat and dnat).
	translated, changed [2]bool

	hook nft.Hook
	fate Fate
}

// ifname is the name of an interface, or why it is not known.
type ifname struct{ name, unknown string }

// end is the source or the destination of a packet. NAT decides about each by itself.
type end int

const (
	source end = iota
	destination
	neither
)

// translates returns the end that NAT decides about at a hook; neither at forward.
func translates(hook nft.Hook) end {
	switch hook {
	case nft.HookPrerouting, nft.HookOutput:
		return destination
	case nft.HookInput, nft.HookPostrouting:
		return source
	}
	return neither
}

// commonHops is the TTL with which most systems send packets. The rules of the proxy are followed with it.
const commonHops = 64

func newWalk(e *Evaluator, p Packet, added []Added, d *draws) *walk {
	w := &walk{
		Evaluator: e, packet: p, family: p.family(), draws: d,
		source: p.Source, destination: p.Destination, mark: mark{bits: p.Mark}, hops: cmp.Or(p.Hops, commonHops), hopsSet: p.Hops > 0,
	}
	for _, a := range added {
		w.changes = append(w.changes, change{Added: a})
	}
	if c := p.Connection; c != nil {
		w.changed[destination] = c.Destination.IsValid() && c.Destination != p.Destination
		w.changed[source] = c.Masqueraded
	}
	return w
}

// run walks the packet and fills in the fate.
func (w *walk) run() error {
	var arrived bool
	var err error
	if w.packet.Local {
		arrived, err = w.send()
	} else {
		w.iif = ifname{name: w.packet.Interface}
		if w.packet.Interface == "" {
			w.iif.unknown = "the interface that the packet comes in by is not known"
		}
		arrived, err = w.arrive()
	}
	if err != nil {
		return err
	}
	if arrived {
		w.fate.Result = Delivered
	}
	w.fate.Source, w.fate.Destination, w.fate.Mark = w.source, w.destination, w.mark.bits
	w.fate.Masqueraded = w.changed[source]
	w.fate.sent = w.packet.Destination
	return nil
}

// send walks a packet that a process of the node sends. A packet to the node itself comes back in by the loopback
// interface.
func (w *walk) send() (bool, error) {
	w.routingMark = w.mark
	if !w.leave() || !w.permits("out") {
		return false, nil
	}
	if on, err := w.traverse(nft.HookOutput); !on {
		return false, err
	}
	// A translated packet is routed again.
	if !w.leave() {
		return false, nil
	}
	back := w.isLocal(w.destination.Addr())
	if back {
		w.note("routing: to the node itself, out and in by lo")
	} else {
		w.noteWay("out of the node")
	}
	if on, err := w.traverse(nft.HookPostrouting); !on {
		return false, err
	}
	if !w.permits("out") {
		return false, nil
	}
	if on, err := w.pass(w.device(w.oif, w.destination.Addr()).departure()...); !on {
		return false, err
	}
	if back {
		w.iif, w.oif = ifname{name: loopback}, ifname{}
		return w.arrive()
	}
	w.fate.Interface = w.oif.name
	return true, nil
}

// arrive walks a packet that arrives by an interface.
func (w *walk) arrive() (bool, error) {
	in := w.device(w.incoming(), w.packet.Source.Addr())
	if on, err := w.pass(in.arrival()...); !on {
		return false, err
	}
	if on, err := w.traverse(nft.HookPrerouting); !on {
		return false, err
	}
	w.routingMark = w.mark
	switch to := w.destination.Addr(); {
	case w.isLocal(to) && w.packet.Local: // it has the route by which it left
		return w.deliver(in)
	case in.filtered && !w.isLocal(to) && to != w.packet.Destination.Addr():
		return w.forwardTranslated(in)
	case in.filtered && !w.isLocal(to) && w.isBehind(in, to):
		return w.bridgeOrForward(in)
	}
	return w.forward(in)
}

// deliver walks a packet to a process of the node, behind prerouting.
func (w *walk) deliver(in device) (bool, error) {
	if on, err := w.pass(in.handedUp()...); !on {
		return false, err
	}
	w.note("routing: to a process of the node")
	on, err := w.traverse(nft.HookInput)
	on = on && w.permits("in")
	w.fate.Local = on
	return on, err
}

// forward walks a packet that the node routes, to another host or to itself, behind prerouting.
func (w *walk) forward(in device) (bool, error) {
	d := w.decide(w.destination.Addr())
	switch {
	case !w.obeys(d):
		return false, nil
	case d.Type == RouteLocal:
		return w.deliver(in)
	}
	w.leaveBy(d.Route)
	return w.forwardRouted(in)
}

// forwardRouted is forward behind the routing decision.
func (w *walk) forwardRouted(in device) (bool, error) {
	if on, err := w.pass(in.handedUp()...); !on {
		return false, err
	}
	w.noteWay("forwarded")
	if !w.permits("fwd") || !w.permits("out") {
		return false, nil
	}
	if w.hopsSet && w.hops <= 1 {
		w.note("routing: the packet has no hops left")
		return false, nil
	}
	if on, err := w.traverse(nft.HookForward); !on {
		return false, err
	}
	if on, err := w.traverse(nft.HookPostrouting); !on {
		return false, err
	}
	if !w.permits("out") {
		return false, nil
	}
	on, err := w.pass(w.device(w.oif, w.destination.Addr()).departure()...)
	if on {
		w.fate.Interface = w.oif.name
	}
	return on, err
}

// traverse runs the base chains of a hook. It reports whether the packet continues.
func (w *walk) traverse(hook nft.Hook) (bool, error) {
	w.hook = hook
	chains, err := w.baseChains(w.family, hook)
	if err != nil {
		return false, err
	}
	if on, err := w.runHook(chains); !on || err != nil {
		return false, err
	}
	at := translates(hook)
	w.tracked = !w.untracked
	w.continueConnection(at)
	if at != neither {
		w.translated[at] = true
	}
	return true, nil
}

// runHook runs the base chains of a hook. It reports whether the packet continues.
func (w *walk) runHook(chains []baseChain) (bool, error) {
	for len(chains) > 0 {
		together, last := 1, chains[0] // the last NAT chain, if there is one
		for together < len(chains) && compareBaseChains(chains[0], chains[together]) == 0 && compareBaseChains(last, chains[together]) == 0 {
			if chains[together].chain.Type == nft.TypeNAT {
				last = chains[together]
			}
			together++
		}
		if on, err := w.runTogether(chains[:together]); !on || err != nil {
			return false, err
		}
		chains = chains[together:]
	}
	return true, nil
}

// runChains runs base chains in this order. It reports whether the packet continues.
func (w *walk) runChains(chains []baseChain) (bool, error) {
	at := translates(w.hook)
	for _, c := range chains {
		w.tracked = w.tracked || runsAt(c.chain) > priorityConntrack && !w.atDevice && !w.untracked
		if runsAt(c.chain) > natPriority(w.hook) {
			w.continueConnection(at)
		}
		if c.chain.Type == nft.TypeNAT && (at == neither || w.untracked || w.packet.Connection != nil || w.translated[at]) {
			continue
		}
		mark, destination := w.mark, w.destination
		v, err := w.baseChain(c)
		if err != nil {
			return false, err
		}
		if v.Kind == nft.VerdictDrop {
			return false, nil // unless the packet is refused, the Result is Dropped, the zero value
		}
		if w.hook == nft.HookOutput && (w.destination != destination || c.chain.Type == nft.TypeRoute && w.mark != mark) && !w.rerouted() {
			return false, nil
		}
	}
	return true, nil
}

// rerouted routes one of the node's own packets again. The interface that later chains of the hook see stays.
func (w *walk) rerouted() bool {
	oif := w.oif
	w.routingMark = w.mark
	on := w.leave() && w.permits("out")
	w.oif = oif
	return on
}

// priorityConntrack is the priority at which conntrack first sees packets (NF_IP_PRI_CONNTRACK).
const priorityConntrack = -200

// continueConnection translates a packet of an established connection as the first one was.
func (w *walk) continueConnection(at end) {
	c := w.packet.Connection
	if c == nil || at == neither || w.translated[at] {
		return
	}
	w.translated[at] = true
	if !w.changed[at] {
		return
	}
	if at == destination {
		w.destination = c.Destination
		w.note("conntrack: " + c.state() + ", goes to " + formatAddrPort(c.Destination))
		return
	}
	w.masquerade()
	w.note("conntrack: " + c.state() + ", masqueraded")
}

func (w *walk) setDestination(to netip.AddrPort) {
	w.translated[destination] = true
	if to != w.destination {
		w.changed[destination] = true
		w.destination = to
	}
}

// masquerade gives the packet an address of the outgoing interface and an unknown port.
func (w *walk) masquerade() {
	w.translated[source], w.changed[source] = true, true
	w.source = netip.AddrPort{}
	if addr := w.routeTo(w.destination.Addr()).Source; addr.IsValid() {
		w.source = netip.AddrPortFrom(addr, 0)
	}
}
