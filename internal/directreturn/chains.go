package directreturn

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// The chains.
const (
	chainPrerouting = "filter-prerouting-direct"
	chainFind       = "direct-find"
	chainForward    = "direct-forward"
	chainAgain      = "direct-again"
	chainAsk        = "direct-ask"
	chainLeave      = "direct-leave"
	chainErrors     = "direct-errors"
	// ChainOwn translates the packets of this node's slots.
	ChainOwn = "direct-own"
)

// Forwards reports whether a chain, or one to which it leads, forwards packets to other nodes.
func Forwards(chain string) bool { return strings.HasPrefix(chain, "direct-") && chain != ChainOwn }

const (
	// The first node forwards a packet with forwardTTL: enough for the next node to ask others about it. A node asks others
	// about a packet with askTTL: enough to reach the pod of another node, and less than any client's packet has.
	forwardTTL, askTTL = 17, 8
	// seed of the hash of a client; the same on all nodes.
	seed = 0x6e667470
)

var affinities = [...]bool{false, true}

func frontendKey(f nft.Family) nft.Concat { return nft.Concat{f.Daddr(), nft.MetaL4proto, nft.ThDport} }

// quoted returns the fields of an ICMP error that quotes an answer of a frontend to a client.
func quoted(f nft.Family) (frontend nft.Concat, client, port nft.Field) {
	if f == nft.FamilyIP6 {
		return nft.Concat{f.Daddr(), nft.IP6QuotedProtocol, nft.IP6QuotedSport}, nft.IP6QuotedDaddr, nft.IP6QuotedDport
	}
	return nft.Concat{f.Daddr(), nft.IPQuotedProtocol, nft.IPQuotedSport}, nft.IPQuotedDaddr, nft.IPQuotedDport
}

// slotOf is the slot of a client.
func slotOf(addr, port nft.Field, rank int, affinity bool) nft.JHash {
	if affinity {
		port = 0
	}
	return nft.JHash{Field: addr, And: port, Mod: slotCount, Seed: seed, Offset: uint32(slotNumber(0, rank, affinity))}
}

func (p *Planner) key(rank int, affinity bool) nft.Concat {
	return append(frontendKey(p.family), slotOf(p.family.Saddr(), nft.ThSport, rank, affinity))
}

func (p *Planner) ttlBelow(hops int) nft.Match {
	return nft.Match{Field: p.family.TTL(), Op: nft.Less, Value: hops}
}

func (p *Planner) inSet(s *nft.Set) nft.InSet {
	return nft.InSet{Key: frontendKey(p.family), Set: s.Name}
}

// counted returns a rule, with a set of frontends that counts its packets before the statement at some place.
func (p *Planner) counted(by *nft.Set, at int, statements ...nft.Statement) nft.Rule {
	if len(p.sets.counters) > 0 {
		statements = slices.Insert(statements, at, nft.Statement(p.inSet(by)))
	}
	return nft.NewRule(statements...)
}

// Services returns the rules with which the chain of new connections to Services begins. They translate packets of this
// node's slots, for clients that local does not match.
func (p *Planner) Services() []nft.Rule {
	if !p.prefix.IsValid() {
		return nil
	}
	return p.toAddresses(nft.Jump(ChainOwn))
}

// toAddresses returns a rule that matches all packets to addresses with direct return, and few others.
func (p *Planner) toAddresses(v nft.Verdict) []nft.Rule {
	if cheap := cheapPrefix(p.prefix); cheap.Bits() > 0 {
		return []nft.Rule{nft.NewRule(nft.Match{Field: p.family.Daddr(), Value: cheap}, v)}
	}
	return []nft.Rule{nft.NewRule(v)}
}

// Chains returns the chains. Clients that local matches are of the cluster, and are served as under policy Cluster. The
// chains that forward run after conntrack: a connection that this node translated stays, even if its slot has moved. The
// entry of any other connection goes with the packet, because it is never confirmed. Before packets of connections that this
// node does not know are forwarded, they pass the rules of guard.
func (p *Planner) Chains(local []nft.Statement, guard []nft.Rule) []*nft.Chain {
	if !p.prefix.IsValid() {
		return nil
	}
	chains := []*nft.Chain{
		{Name: chainPrerouting, Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: nft.PriorityMangle, Rules: p.toAddresses(nft.Jump(chainFind))},
		{Name: chainFind, Rules: p.find()},
		{Name: chainForward, Rules: p.forward(local, guard)},
		{Name: chainAgain, Rules: p.again()},
		{Name: chainAsk, Rules: p.ask()},
		{Name: chainErrors, Rules: p.icmpErrors()},
		{Name: ChainOwn, Rules: p.translateOwn(local)},
	}
	if p.sets.leaving.Len() > 0 {
		chains = append(chains, &nft.Chain{Name: chainLeave, Rules: []nft.Rule{opensReturn(), nft.NewRule(nft.Goto(chainForward))}})
	}
	return chains
}

// find finds the packets, and the ICMP errors, to addresses with direct return.
func (p *Planner) find() (rules []nft.Rule) {
	if p.prefix != cheapPrefix(p.prefix) {
		rules = append(rules, nft.NewRule(nft.Match{Field: p.family.Daddr(), Op: nft.NotEqual, Value: p.prefix}, nft.Return))
	}
	rules = append(rules, nft.NewRule(p.inSet(p.sets.addresses), nft.Goto(chainForward)))
	if p.sets.leaving.Len() > 0 {
		rules = append(rules, nft.NewRule(p.inSet(p.sets.leaving), nft.Goto(chainLeave)))
	}
	protocol, field, types := "icmp", nft.ICMPType, []int{nft.ICMPDestinationUnreachable}
	if p.family == nft.FamilyIP6 {
		protocol, field, types = "ipv6-icmp", nft.ICMPv6Type, []int{nft.ICMPv6DestinationUnreachable, nft.ICMPv6PacketTooBig}
	}
	for _, t := range types { // conntrack relates these types to connections
		rules = append(rules, nft.NewRule(nft.Match{Field: nft.MetaL4proto, Value: protocol}, nft.Match{Field: field, Value: t}, nft.Goto(chainErrors)))
	}
	return rules
}

func (p *Planner) forward(local []nft.Statement, guard []nft.Rule) []nft.Rule {
	var rules []nft.Rule
	if len(p.sets.counters) > 0 {
		rules = append(rules, p.counted(p.sets.answered, 2, p.ttlBelow(askTTL), isKnown, nft.Return))
	}
	// A flow without answers is not established, although this node has translated it.
	isOwn := nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}
	rules = slices.Concat(rules, returnAll(isKnown, isOwn), returnAll(local...), guard)
	rules = append(rules, nft.NewRule(p.ttlBelow(forwardTTL), nft.Goto(chainAgain)))
	if p.mute {
		return rules
	}
	for _, device := range p.inside {
		rules = append(rules, nft.NewRule(nft.Match{Field: nft.MetaIifname, Value: device}, nft.Return))
	}
	rules = append(rules, nft.NewRule(nft.SetTTL(p.family, forwardTTL)))
	for _, affinity := range affinities {
		rules = append(rules, nft.NewRule(nft.Dup{Key: p.key(0, affinity), Map: p.sets.hops.Name}, nft.Drop))
	}
	return append(rules, nft.NewRule(nft.Goto(chainAgain)))
}

func returnAll(matches ...nft.Statement) (rules []nft.Rule) {
	for _, match := range matches {
		rules = append(rules, nft.NewRule(match, nft.Return))
	}
	return rules
}

// again drops packets about which another node asks and whose connection this node does not know, and asks about packets of
// TCP.
func (p *Planner) again() []nft.Rule {
	rules := []nft.Rule{p.counted(p.sets.unknown, 1, p.ttlBelow(askTTL), nft.Drop)}
	if !p.mute {
		rules = append(rules, nft.NewRule(isTCP, nft.Goto(chainAsk)))
	}
	return append(rules, p.dropInvalid())
}

var (
	isTCP   = nft.Match{Field: nft.MetaL4proto, Value: nft.ProtoData(uint8(model.TCP))}
	isKnown = nft.Match{Field: nft.CTState, Value: nft.CTStateEstablished | nft.CTStateRelated}
)

// dropInvalid drops packets that no rule would translate: they would go back to the router, again and again.
func (p *Planner) dropInvalid() nft.Rule {
	return p.counted(p.sets.unknown, 1, nft.Match{Field: nft.CTState, Value: nft.CTStateInvalid}, nft.Drop)
}

// ask sends a packet of a TCP connection that this node does not know to the endpoints that may know it.
func (p *Planner) ask() []nft.Rule {
	rules := []nft.Rule{opensReturn(), p.counted(p.sets.asked, 0, nft.SetTTL(p.family, askTTL))}
	for _, affinity := range affinities {
		for rank := asked - 1; rank >= 0; rank-- {
			send := nft.NewRule(nft.Dup{Key: p.key(rank, affinity), Map: p.sets.others.Name})
			if rank == 0 {
				send.Statements = append(send.Statements, nft.Drop)
			}
			rules = append(rules, send)
		}
	}
	return append(rules, p.dropInvalid())
}

// opensReturn leaves TCP packets that open connections to later chains.
func opensReturn() nft.Rule {
	return nft.NewRule(isTCP, nft.Match{Field: nft.TCPFlags, Value: nft.TCPFlagSYN}, nft.Return)
}

// icmpErrors send ICMP errors to the node whose conntrack knows the connection, once: an endpoint may have the address of
// a node, and the error would go round until its TTL ends.
func (p *Planner) icmpErrors() []nft.Rule {
	if p.mute {
		return nil
	}
	rules := append(returnAll(isKnown), nft.NewRule(p.ttlBelow(forwardTTL), nft.Drop), nft.NewRule(nft.SetTTL(p.family, forwardTTL)))
	for _, affinity := range affinities {
		frontend, client, port := quoted(p.family)
		key := append(frontend, slotOf(client, port, 0, affinity))
		rules = append(rules, nft.NewRule(nft.Dup{Key: key, Map: p.sets.errorHops.Name}, nft.Drop))
	}
	return rules
}

// translateOwn translates packets of this node's slots, and keeps their source. It drops packets of other slots that a node
// has forwarded to this node: the client retransmits, and by then the nodes agree. Other packets go on as under policy
// Cluster.
func (p *Planner) translateOwn(local []nft.Statement) []nft.Rule {
	isNode := nft.Match{Field: nft.FibSaddrType, Value: nft.IntegerData(unix.RTN_LOCAL)}
	rules := append(returnAll(local...), returnAll(isNode)...)
	for _, affinity := range affinities {
		rules = append(rules, nft.NewRule(nft.DNAT(p.family, p.key(0, affinity), p.sets.own.Name)))
	}
	return append(rules, p.counted(p.sets.unknown, 2, p.inSet(p.sets.addresses), p.ttlBelow(forwardTTL), nft.Drop))
}

// cheapPrefix shortens a prefix to one that the kernel compares inline: it loads 1, 2 or 4 bytes, with or without a mask.
// Others cost twice the time, because nft loads 3 bytes for 24 bits, and masks 16 bytes of an IPv6 address or loads more
// than 4. A lookup in a set costs three times as much.
func cheapPrefix(p netip.Prefix) netip.Prefix {
	bits := p.Bits()
	switch {
	case p.Addr().Is4() && bits == 24:
		bits = 23
	case p.Addr().Is6():
		bits = min(bits, 32) / 8 * 8
		if bits == 24 {
			bits = 16
		}
	}
	return netip.PrefixFrom(p.Addr(), bits).Masked()
}
