package evaluator

import (
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
)

// walk is one way of a packet through the node: the packet as it is at the moment, and what
// the kernel knows of it.
type walk struct {
	*Evaluator
	packet Packet // as it was sent
	family nft.Family
	added  []Added // by earlier packets and this one
	draws  *draws
	// statements counts those that ran.
	statements int

	// The packet now. A source that masquerading chose may be unknown: the zero AddrPort.
	source, destination netip.AddrPort
	mark                uint32
	iif, oif            ifname
	// tracked says that conntrack has seen the packet.
	tracked bool
	// translated says for each end whether NAT has decided about it for the connection,
	// changed whether it decided on something else than the packet said (the ct status).
	translated, changed [2]bool

	hook nft.Hook
	fate Fate
}

// ifname is the name of an interface, or why it is not known.
type ifname struct{ name, unknown string }

// end is one of a packet's ends, which NAT changes apart from each other.
type end int

const (
	source end = iota
	destination
	neither
)

// translates returns the end that NAT decides about at a hook; neither where packets are forwarded.
func translates(hook nft.Hook) end {
	switch hook {
	case nft.HookPrerouting, nft.HookOutput:
		return destination
	case nft.HookInput, nft.HookPostrouting:
		return source
	}
	return neither
}

func newWalk(e *Evaluator, p Packet, added []Added, d *draws) *walk {
	w := &walk{
		Evaluator: e, packet: p, family: p.family(), added: added[:len(added):len(added)], draws: d,
		source: p.Source, destination: p.Destination, mark: p.Mark,
	}
	if c := p.Connection; c != nil {
		w.changed[destination] = c.Destination.IsValid() && c.Destination != p.Destination
		w.changed[source] = c.Masqueraded
	}
	return w
}

// run walks the packet to its end and fills in the fate.
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
	w.fate.Source, w.fate.Destination, w.fate.Mark = w.source, w.destination, w.mark
	w.fate.Masqueraded = w.changed[source]
	w.fate.sent = w.packet.Destination
	return nil
}

// send walks a packet that a process of the node sends. What goes to the node itself comes
// back in by the loopback interface.
func (w *walk) send() (bool, error) {
	w.leave()
	if on, err := w.traverse(nft.HookOutput); !on {
		return false, err
	}
	// NAT sends what it translated another way.
	w.leave()
	back := w.host.isLocal(w.destination.Addr())
	if back {
		w.note("routing: to the node itself, out and in by lo")
	} else {
		w.note("routing: out of the node")
	}
	if on, err := w.traverse(nft.HookPostrouting); !on {
		return false, err
	}
	if back {
		w.iif, w.oif = ifname{name: loopback}, ifname{}
		return w.arrive()
	}
	w.fate.Interface = w.oif.name
	return true, nil
}

// arrive walks a packet that comes in by an interface.
func (w *walk) arrive() (bool, error) {
	if on, err := w.traverse(nft.HookPrerouting); !on {
		return false, err
	}
	if w.host.isLocal(w.destination.Addr()) {
		w.note("routing: to a process of the node")
		on, err := w.traverse(nft.HookInput)
		w.fate.Local = on
		return on, err
	}
	w.leave()
	w.note("routing: forwarded")
	if on, err := w.traverse(nft.HookForward); !on {
		return false, err
	}
	on, err := w.traverse(nft.HookPostrouting)
	if on {
		w.fate.Interface = w.oif.name
	}
	return on, err
}

// leave looks up the interface that the packet leaves by.
func (w *walk) leave() {
	w.oif = ifname{name: w.host.route(w.destination.Addr()).Interface}
	if w.oif.name == "" {
		w.oif.unknown = fmt.Sprintf("the interface towards %s is not known", w.destination.Addr())
	}
}

// traverse runs the base chains of a hook. It reports whether the packet goes on.
func (w *walk) traverse(hook nft.Hook) (bool, error) {
	w.hook = hook
	at := translates(hook)
	chains, err := w.baseChains(w.family, hook)
	if err != nil {
		return false, err
	}
	for _, c := range chains {
		w.tracked = w.tracked || runsAt(c.chain) > priorityConntrack
		if runsAt(c.chain) > natPriority(hook) {
			w.continueConnection(at)
		}
		if c.chain.Type == nft.TypeNAT && (at == neither || w.packet.Connection != nil || w.translated[at]) {
			continue
		}
		v, err := w.baseChain(c)
		if err != nil {
			return false, err
		}
		if v.Kind == nft.VerdictDrop {
			w.fate.Result = Dropped
			if v.refused {
				w.fate.Result = Refused
			}
			return false, nil
		}
	}
	w.tracked = true
	w.continueConnection(at)
	if at != neither {
		w.translated[at] = true
	}
	return true, nil
}

// priorityConntrack is where packets are first seen by conntrack (NF_IP_PRI_CONNTRACK).
const priorityConntrack = -200

// continueConnection does to a packet of an established connection what was done to the first.
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
		w.note("conntrack: established, goes to " + formatAddrPort(c.Destination))
		return
	}
	w.masquerade()
	w.note("conntrack: established, masqueraded")
}

func (w *walk) setDestination(to netip.AddrPort) {
	w.translated[destination] = true
	if to != w.destination {
		w.changed[destination] = true
		w.destination = to
	}
}

// masquerade gives the packet an address of the outgoing interface, and a port that nobody can foretell.
func (w *walk) masquerade() {
	w.translated[source], w.changed[source] = true, true
	w.source = netip.AddrPort{}
	if addr := w.host.route(w.destination.Addr()).Source; addr.IsValid() {
		w.source = netip.AddrPortFrom(addr, 0)
	}
}
