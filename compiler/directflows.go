package compiler

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// A UDP packet does not say whether it opens a flow, and so does one of SCTP for conntrack. So of a slot that has just
// moved to this node, the node asks the endpoint that had it before (direct-previous) about each flow that it does not
// know: it sends the packet on. That endpoint's node keeps the flows that it knows, and sends the packets of others back.
// The new owner remembers which flows it has asked about and did not get back (direct-flows). It asks about all flows
// for flowTimeout (direct-moved), and about those that it remembers for as long as they last.
//
// If the slot moves again meanwhile, the node that is asked asks the one before it, once.
//
//	chain direct-unknown {           # from direct-again
//		ip ttl < 8 goto direct-here      # it came back
//		ip ttl < 11 goto direct-back     # two nodes were asked
//		ip ttl < 14 goto direct-asked
//		ip daddr . meta l4proto . th dport . jhash ip saddr . th sport mod 4093 seed … @direct-moved goto direct-ask
//		ip daddr . meta l4proto . th dport . jhash ip saddr mod 4093 seed … offset 4093 @direct-moved goto direct-ask
//		ip saddr . th sport . ip daddr . th dport @direct-flows goto direct-ask
//		ip ttl < 17 goto direct-owner    # from a node with another list of endpoints
//		ct state invalid drop
//	}
//	chain direct-ask {
//		update @direct-flows { ip saddr . th sport . ip daddr . th dport timeout 3m }
//		ip ttl set 14
//		dup to … jhash … map @direct-previous drop
//		goto direct-back                 # the endpoint is gone
//	}
//	chain direct-asked {
//		ip ttl set 11
//		dup to … jhash … map @direct-previous drop
//		goto direct-back
//	}
//	chain direct-owner {             # which may ask on
//		ip ttl set 14
//		dup to … jhash … map @direct-hops drop
//		goto direct-here
//	}
//	chain direct-back {
//		ip ttl set 8
//		dup to … jhash … map @direct-hops drop
//		goto direct-here
//	}
//	chain direct-here {
//		delete @direct-flows { ip saddr . th sport . ip daddr . th dport }
//		ct state invalid drop
//	}

const (
	chainDirectUnknown = "direct-unknown"
	chainDirectAsk     = "direct-ask"
	chainDirectAsked   = "direct-asked"
	chainDirectOwner   = "direct-owner"
	chainDirectBack    = "direct-back"
	chainDirectHere    = "direct-here"

	movedSet = "direct-moved"
	flowSet  = "direct-flows"

	// flowTimeout is longer than conntrack remembers a UDP flow that is not used (nf_conntrack_udp_timeout_stream, 120 s).
	// Peers of SCTP send a heartbeat every 30 s.
	flowTimeout = 3 * time.Minute

	// directAskTTL has a packet about which the first node is asked, directAskOnTTL one about which the second is.
	directAskTTL, directAskOnTTL = 14, 11
)

// flowKey identifies a flow. It has no protocol: nft 1.0.6 forgets the type of a set with five fields.
func (p *program) flowKey() nft.Concat {
	return nft.Concat{p.family.Saddr(), nft.ThSport, p.family.Daddr(), nft.ThDport}
}

// movedSlots is the set of slots whose flows this node asks about. No rule adds to it, so it needs no size.
func (p *program) movedSlots() *nft.Set {
	return &nft.Set{Name: movedSet, Key: append(p.key(false), nft.Numgen{Mod: 2}), Dynamic: true}
}

// putFlowSet puts the set that packets fill, as long as there are chains that do so: until then the kernel gives it no size.
func (f *family) putFlowSet() {
	switch has := f.program.has(directRecord, false); {
	case has && f.flows == nil:
		f.flows = &nft.Set{Name: flowSet, Key: f.program.flowKey(), Dynamic: true, Size: nft.DefaultSize}
		f.draft.PutSet(f.flows)
	case !has && f.flows != nil:
		f.flows = nil
		f.draft.RemoveSet(flowSet)
	}
}

func (p *program) flowChains() []*nft.Chain {
	here, back, ask := nft.Goto(chainDirectHere), nft.Goto(chainDirectBack), nft.Goto(chainDirectAsk)
	invalid := nft.NewRule(nft.Match{Field: nft.CTState, Value: nft.CTStateInvalid}, nft.Drop)
	unknown := []nft.Rule{
		nft.NewRule(p.ttlBelow(directTTL), here),
		nft.NewRule(p.ttlBelow(directAskOnTTL), back),
		nft.NewRule(p.ttlBelow(directAskTTL), nft.Goto(chainDirectAsked)),
	}
	for _, affinity := range affinities {
		unknown = append(unknown, nft.NewRule(nft.InSet{Key: append(p.key(false), p.slotOf(0, affinity)), Set: movedSet}, ask))
	}
	unknown = append(unknown,
		nft.NewRule(nft.InSet{Key: p.flowKey(), Set: flowSet}, ask),
		nft.NewRule(p.ttlBelow(directFirstTTL), nft.Goto(chainDirectOwner)),
		invalid)
	remember := nft.NewRule(nft.Update{Map: flowSet, Key: p.flowKey(), Timeout: flowTimeout})
	return []*nft.Chain{
		{Name: chainDirectUnknown, Rules: unknown},
		{Name: chainDirectAsk, Rules: append([]nft.Rule{remember}, p.sendOnOr(back, directAskTTL, previousRecord)...)},
		{Name: chainDirectAsked, Rules: p.sendOnOr(back, directAskOnTTL, previousRecord)},
		{Name: chainDirectOwner, Rules: p.sendOnOr(here, directAskTTL, hopRecord)},
		{Name: chainDirectBack, Rules: p.sendOnOr(here, directTTL, hopRecord)},
		{Name: chainDirectHere, Rules: []nft.Rule{nft.NewRule(nft.Delete{Set: flowSet, Key: p.flowKey()}), invalid}},
	}
}

// IsPreviousSet reports whether the set of that name has the previous endpoints of slots, which do not follow from the
// model.
func IsPreviousSet(name string) bool { return name == previousRecord.set(false) }

// slotsBefore are the slots of a Service port as they were before a change.
type slotsBefore struct {
	// owners are the endpoints on other nodes that had the slots, and previous those that had them before, if they are
	// known. One whose node is not known is none of them: it knows no flow, and sends none back.
	owners, previous [directSlots]netip.Addr
	// here says which slots were this node's.
	here [directSlots]bool
}

func (p *portPlans) slotsBefore() *slotsBefore {
	before := &slotsBefore{}
	for slot, owner := range p.slots.owners {
		e := &p.Cluster[owner]
		if before.here[slot] = e.Local; e.Remote {
			before.owners[slot] = e.AddrPort.Addr()
		}
		if p.slots.previous != nil {
			before.previous[slot] = p.slots.previous[slot]
		}
	}
	return before
}

// follow fills previous: the endpoint that had a slot before it came to this node, or, if that does not serve any more,
// the one that would have it without this node, which may have had it still earlier. A node that loses the slot keeps it
// too until it stops serving, because the next owner may ask.
func (s *portSlots) follow(p *model.ServicePort, before *slotsBefore) {
	// serving are the endpoints that may be asked. Only another node sends back what it does not know.
	serving := map[netip.Addr]bool{}
	var remote []model.Endpoint
	for _, e := range p.Serving {
		serving[e.Addr()] = true
	}
	for i := range p.Cluster {
		e := &p.Cluster[i]
		if serving[e.AddrPort.Addr()] = e.Remote; e.Remote {
			remote = append(remote, *e)
		}
	}
	var without []uint16 // owners without this node
	for slot, owner := range s.owners {
		now, previous := &p.Cluster[owner], before.previous[slot]
		came := now.Local && !before.here[slot]
		if came {
			previous = before.owners[slot]
		}
		if now.Local && (came || previous.IsValid()) && !serving[previous] && len(remote) > 0 {
			if without == nil {
				without = slotOwners(remote)
			}
			previous = remote[without[slot]].AddrPort.Addr()
		}
		if !serving[previous] || previous == now.AddrPort.Addr() {
			continue
		}
		if s.previous == nil {
			s.previous, s.moved = make([]netip.Addr, directSlots), make([]bool, directSlots)
		}
		s.previous[slot], s.moved[slot] = previous, came
	}
}

// followSlots fills the previous endpoints of a port whose plans were old.
func (f *family) followSlots(p, old *portPlans) {
	if p.slots == nil || p.ID.Protocol == model.TCP {
		return
	}
	switch {
	case old != nil && old.slots != nil:
		p.slots.follow(p.ServicePort, old.slotsBefore())
	case f.former != nil:
		p.slots.follow(p.ServicePort, f.former.of(p.ServicePort))
	}
}

// formerSlots are the slots of frontends in the kernel's tables, before the first commit.
type formerSlots map[frontend]*slotsBefore

// of returns the slots of a Service port, whose frontends have the same.
func (f formerSlots) of(p *model.ServicePort) *slotsBefore {
	for _, addr := range slices.Concat(p.LoadBalancerIPs, p.ExternalIPs) {
		if before := f[frontend{addr, p.Port, p.ID.Protocol}]; before != nil {
			return before
		}
	}
	return &slotsBefore{}
}

// RestoreSlots makes the compiler go on from the slots in the kernel's tables: of a slot that they lack it asks other nodes
// about flows. elements returns the elements of one of the kernel's sets, none if there is no such set. Call it before
// the first Apply. Without it, the compiler takes all Services for new ones.
func (c *Compiler) RestoreSlots(elements func(nft.Family, *nft.Set) []nft.Element) {
	if !c.config.DirectReturn {
		return
	}
	for _, f := range c.served() {
		f.former = formerSlots{}
		for _, kind := range []recordKind{slotRecord, previousRecord} {
			for _, e := range elements(f.program.family, f.sets.of(kind, false)) {
				r, ok := readRecord(kind, e)
				slot := r.slot % directSlots
				if !ok || r.frontend.protocol == model.TCP {
					continue
				}
				before := f.former[r.frontend]
				if before == nil {
					before = &slotsBefore{}
					f.former[r.frontend] = before
				}
				if kind == slotRecord {
					before.here[slot] = true
				} else {
					before.previous[slot] = r.addr.Addr()
				}
			}
		}
	}
}

// MovedSlots returns the step that makes the kernel ask the previous endpoints of slots about flows: of those that came to
// this node since the last commit, and of all if the tables are made anew. Commit it together with Transaction.
func (c *Compiler) MovedSlots() (tx nft.Transaction) {
	for _, f := range c.served() {
		var elements []nft.Element
		for _, key := range slices.Sorted(maps.Keys(f.lists.moved)) {
			elements = append(elements, nft.Element{Key: key, Timeout: flowTimeout, Expires: flowTimeout})
		}
		if len(elements) > 0 {
			table := &nft.Table{Family: f.program.family, Name: TableNameFor(c.config.ServiceProxyName)}
			tx.Steps = append(tx.Steps, nft.Step{Op: nft.AddElements, Table: table, Set: f.moved, Elements: elements})
		}
	}
	return tx
}
