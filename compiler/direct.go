package compiler

import (
	"cmp"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Direct return (Config.DirectReturn). A frontend has slots, and each slot has one endpoint, the same on all nodes. The
// hash of a client's address and port chooses the slot. Each node sends a packet, as it is, to where its routes lead to
// the slot's endpoint. The endpoint's own node translates it and keeps the source, so the answer goes straight to the
// client. Only that node's conntrack knows the connection: others may go, and a router may choose another one. With
// session affinity the hash is that of the address alone, and the numbers of its slots follow the others.
//
// Connections outlive a move of their slot. A TCP packet that opens no connection, of a slot of this node and of no connection
// that it knows, goes to the endpoints with the next scores for the slot: one of them had the slot before, if this one
// came since. Its node knows the connection, and the others drop the packet. For UDP and SCTP see directflows.go.
//
// TTL says how often a packet was sent on, so that nodes that disagree send none round: a node sends on what comes from
// outside, and asks other endpoints about what comes from a node, with less each time. The kernel's dup makes 255 of a TTL of 0:
// without these rules two nodes that disagree, or a route that leads back, send a packet around for ever.
//
// A node finds its own slots in the map direct-slots, and those of other nodes in direct-hops:
//
//	chain filter-prerouting-direct { # what every packet pays: one comparison with the prefix of all these addresses
//		ip daddr 203.0.112.0/23 jump direct-find
//	}
//	chain direct-find {
//		ip daddr != 203.0.113.0/24 return
//		ip daddr . meta l4proto . th dport @direct-ips goto direct-forward
//		meta l4proto icmp icmp type destination-unreachable goto direct-errors
//	}
//	chain direct-forward {
//		ct state established,related return
//		ct status dnat return        # of a flow that nobody answers
//		ip ttl < 17 goto direct-again
//		ip ttl set 17
//		dup to ip daddr . meta l4proto . th dport . jhash ip saddr . th sport mod 4093 seed … map @direct-hops drop
//		dup to ip daddr . meta l4proto . th dport . jhash ip saddr mod 4093 seed … offset 4093 map @direct-hops drop
//		goto direct-again
//	}
//	chain direct-again {             # for this node's slots, and for packets that a node has sent on
//		meta l4proto != tcp goto direct-unknown
//		ip ttl < 8 drop
//		meta l4proto tcp tcp flags syn return
//		ip ttl set 8
//		dup to … jhash … offset 16372 map @direct-others
//		dup to … jhash … offset 8186 map @direct-others
//		dup to … jhash … map @direct-others drop
//		…                            # for affinity: with offset 20465, 12279 and 4093
//		ct state invalid drop
//	}
//	chain direct-errors {
//		ct state established,related return
//		ip ttl < 17 drop             # a node has sent it on already
//		ip ttl set 17
//		dup to ip daddr . @th,136,8 . @th,224,16 . jhash @th,192,32 . @th,240,16 mod 4093 seed … map @direct-error-hops drop
//		dup to ip daddr . @th,136,8 . @th,224,16 . jhash @th,192,32 mod 4093 seed … offset 4093 map @direct-error-hops drop
//	}
//	chain direct-return-3 {          # from service-ips
//		ip saddr 10.244.0.0/16 meta mark set meta mark | 0x00004000
//		dnat ip to ip daddr . meta l4proto . th dport . jhash ip saddr . th sport mod 4093 seed … map @direct-slots
//		ip ttl < 17 drop             # a node has sent it here, because it has another list of endpoints for a moment
//		…                            # as external-3
//	}
//
// An ICMP error from the way to a client quotes an answer. The destination of this is the client, and its source port
// is that of the frontend. direct-error-hops has the elements of direct-hops once more, because nft takes the protocol
// and the port that are quoted for integers: it would not load a rule that looks them up in direct-hops.
//
// A slot that is in neither map has an endpoint whose node is not known. Its packets are translated as under
// external-3, and so are those of clients of the cluster and of this node. docs/direct-return.md says more.

const (
	chainPreroutingDirect = "filter-prerouting-direct"
	chainDirectFind       = "direct-find"
	chainDirectForward    = "direct-forward"
	chainDirectAgain      = "direct-again"
	chainDirectErrors     = "direct-errors"

	// directOthers is the number of other endpoints that may have had a slot before.
	directOthers = 3
	// directTTL is enough for a packet to reach the pod of another node, and too small for one that comes from a client. One
	// that is sent on for the first time has directFirstTTL: enough for the second time when it arrives.
	directTTL, directFirstTTL = 8, 17
)

// directSeed must be the same on all nodes.
const directSeed = 0x6e667470

// slotNumber is the number of a slot in the maps: with affinity, and for the next choices, it is higher.
func slotNumber(slot, choice int, affinity bool) int {
	return (2*choice+index(affinity))*directSlots + slot
}

// slotHash is the slot of the packets of a client. Their source or, in a quoted answer, their destination is given.
func slotHash(addr, port nft.Field, choice int, affinity bool) nft.JHash {
	if affinity {
		port = 0
	}
	return nft.JHash{Field: addr, And: port, Mod: directSlots, Seed: directSeed, Offset: uint32(slotNumber(0, choice, affinity))}
}

func (p *program) slotOf(choice int, affinity bool) nft.JHash {
	return slotHash(p.family.Saddr(), nft.ThSport, choice, affinity)
}

// sendOn sends a packet to the endpoint of its slot in a map, to one of several choices.
func (p *program) sendOn(kind recordKind, choice int, affinity bool) nft.Dup {
	return nft.Dup{Key: append(p.key(false), p.slotOf(choice, affinity)), Map: kind.set(false)}
}

// sendOnOr sends packets to the endpoints of their slots, with so many hops, and those without one to a chain.
func (p *program) sendOnOr(otherwise nft.Verdict, hops uint8, kind recordKind) []nft.Rule {
	rules := []nft.Rule{nft.NewRule(nft.SetTTL{Family: p.family, Hops: hops})}
	for _, affinity := range affinities {
		rules = append(rules, nft.NewRule(p.sendOn(kind, 0, affinity), nft.Drop))
	}
	return append(rules, nft.NewRule(otherwise))
}

// quoted returns the fields of an ICMP error that quotes an answer: a frontend's protocol and port, and a client.
func (p *program) quoted() (protocol, port, client, clientPort nft.Field) {
	if p.family == nft.FamilyIP6 {
		return nft.IP6QuotedProtocol, nft.IP6QuotedSport, nft.IP6QuotedDaddr, nft.IP6QuotedDport
	}
	return nft.IPQuotedProtocol, nft.IPQuotedSport, nft.IPQuotedDaddr, nft.IPQuotedDport
}

// quotedKey returns the fields of an ICMP error that identify a frontend, as key does for other packets.
func (p *program) quotedKey() nft.Concat {
	protocol, port, _, _ := p.quoted()
	return nft.Concat{p.family.Daddr(), protocol, port}
}

// icmpErrors returns the matches of the ICMP errors that conntrack relates to connections.
func (p *program) icmpErrors() (matches [][]nft.Statement) {
	protocol, field, types := "icmp", nft.ICMPType, []int{nft.ICMPDestinationUnreachable}
	if p.family == nft.FamilyIP6 {
		protocol, field, types = "ipv6-icmp", nft.ICMPv6Type, []int{nft.ICMPv6DestinationUnreachable, nft.ICMPv6PacketTooBig}
	}
	for _, t := range types {
		matches = append(matches, []nft.Statement{nft.Match{Field: nft.MetaL4proto, Value: protocol}, nft.Match{Field: field, Value: t}})
	}
	return matches
}

var affinities = [...]bool{false, true}

// directChains send packets of other nodes' slots on. They run after conntrack: connections that
// this node translated stay, whoever has their slot now. An entry for any other connection goes with
// the packet, because it is never confirmed.
func (p *program) directChains() []*nft.Chain {
	rules := []nft.Rule{
		knownReturns(),
		nft.NewRule(wasTranslated, nft.Return), // a flow that is not established, because nobody answers it
	}
	for _, client := range p.localClients() {
		rules = append(rules, nft.NewRule(client, nft.Return))
	}
	rules = append(rules, nft.NewRule(p.ttlBelow(directFirstTTL), nft.Goto(chainDirectAgain)))
	rules = append(rules, p.sendOnOr(nft.Goto(chainDirectAgain), directFirstTTL, hopRecord)...)
	return append(p.flowChains(), []*nft.Chain{
		{Name: chainPreroutingDirect, Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: nft.PriorityMangle, Rules: p.directBase()},
		{Name: chainDirectFind, Rules: p.directFind()},
		{Name: chainDirectForward, Rules: rules},
		{Name: chainDirectAgain, Rules: p.directAgain()},
		{Name: chainDirectErrors, Rules: p.directErrors()},
	}...)
}

// directBase returns the rules that run for every packet that a node forwards.
func (p *program) directBase() []nft.Rule {
	find := nft.Jump(chainDirectFind)
	if cheap := cheapPrefix(p.uses.direct); cheap.Bits() > 0 {
		return []nft.Rule{nft.NewRule(nft.Match{Field: p.family.Daddr(), Value: cheap}, find)}
	}
	return []nft.Rule{nft.NewRule(find)}
}

// directFind finds the packets, and the ICMP errors, to addresses with direct return.
func (p *program) directFind() (rules []nft.Rule) {
	if all := p.uses.direct; all != cheapPrefix(all) {
		rules = append(rules, nft.NewRule(nft.Match{Field: p.family.Daddr(), Op: nft.NotEqual, Value: all}, nft.Return))
	}
	rules = append(rules, nft.NewRule(nft.InSet{Key: p.key(false), Set: directRecord.set(false)}, nft.Goto(chainDirectForward)))
	for _, match := range p.icmpErrors() {
		rules = append(rules, nft.NewRule(append(match, nft.Goto(chainDirectErrors))...))
	}
	return rules
}

// commonPrefix returns the longest prefix of the addresses that the sorted elements' keys begin with.
func commonPrefix(family nft.Family, elements []nft.Element) netip.Prefix {
	length := family.Loopback().Addr().BitLen() / 8
	first, _ := netip.AddrFromSlice([]byte(elements[0].Key[:length]))
	last, _ := netip.AddrFromSlice([]byte(elements[len(elements)-1].Key[:length]))
	common := netip.PrefixFrom(first, first.BitLen())
	for !common.Contains(last) {
		common = netip.PrefixFrom(first, common.Bits()-1)
	}
	return common.Masked()
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

// directAgain asks the endpoints that may know a TCP connection which this node does not, once.
func (p *program) directAgain() []nft.Rule {
	rules := []nft.Rule{
		nft.NewRule(nft.Match{Field: nft.MetaL4proto, Op: nft.NotEqual, Value: nft.ProtoData(uint8(model.TCP))}, nft.Goto(chainDirectUnknown)),
		nft.NewRule(p.ttlBelow(directTTL), nft.Drop),
	}
	if p.has(otherRecord, false) {
		rules = append(rules,
			nft.NewRule(isProtocol(model.TCP), nft.Match{Field: nft.TCPFlags, Value: nft.TCPFlagSYN}, nft.Return),
			nft.NewRule(nft.SetTTL{Family: p.family, Hops: directTTL}))
		for _, affinity := range affinities {
			for choice := directOthers - 1; choice > 0; choice-- {
				rules = append(rules, nft.NewRule(p.sendOn(otherRecord, choice, affinity)))
			}
			rules = append(rules, nft.NewRule(p.sendOn(otherRecord, 0, affinity), nft.Drop))
		}
	}
	// Nobody translates an invalid packet, so it would go back to the router, again and again.
	return append(rules, nft.NewRule(nft.Match{Field: nft.CTState, Value: nft.CTStateInvalid}, nft.Drop))
}

// knownReturns leaves packets of connections that this node knows to it.
func knownReturns() nft.Rule {
	return nft.NewRule(nft.Match{Field: nft.CTState, Value: nft.CTStateEstablished | nft.CTStateRelated}, nft.Return)
}

// directErrors send ICMP errors to the node whose conntrack knows the connection, once: an endpoint may have the address
// of a node, and the error would go round until its TTL ends.
func (p *program) directErrors() []nft.Rule {
	rules := []nft.Rule{
		knownReturns(),
		nft.NewRule(p.ttlBelow(directFirstTTL), nft.Drop),
		nft.NewRule(nft.SetTTL{Family: p.family, Hops: directFirstTTL}),
	}
	_, _, client, port := p.quoted()
	for _, affinity := range affinities {
		key := append(p.quotedKey(), slotHash(client, port, 0, affinity))
		rules = append(rules, nft.NewRule(nft.Dup{Key: key, Map: errorHopRecord.set(false)}, nft.Drop))
	}
	return rules
}

func (p *program) ttlBelow(hops int) nft.Match {
	return nft.Match{Field: p.family.TTL(), Op: nft.Less, Value: hops}
}

// ownSlots translates packets of this node's slots. It drops others that a node has sent here: the client sends again,
// when the nodes agree.
func (p *program) ownSlots(affinity bool) []nft.Rule {
	return []nft.Rule{
		nft.NewRule(nft.DNAT{Family: p.family, Key: append(p.key(false), p.slotOf(0, affinity)), Map: slotRecord.set(false)}),
		nft.NewRule(p.ttlBelow(directFirstTTL), nft.Drop),
	}
}

// appendSlotRecords appends the slots of a frontend that are this node's, and those that are other nodes'.
func appendSlotRecords(to []record, p plan, fe frontend) []record {
	if p.kind != kindReturn {
		return to
	}
	affinity := p.port.AffinityTimeout > 0
	for _, kind := range []recordKind{hopRecord, errorHopRecord} {
		for slot, owner := range p.port.slots.owners {
			if e := &p.port.Cluster[owner]; e.Remote {
				to = append(to, record{kind: kind, frontend: fe, slot: slotNumber(slot, 0, affinity), addr: netip.AddrPortFrom(e.AddrPort.Addr(), 0)})
			}
		}
	}
	for slot, owner := range p.port.slots.owners {
		if e := &p.port.Cluster[owner]; e.Local {
			to = append(to, record{kind: slotRecord, frontend: fe, slot: slotNumber(slot, 0, affinity), addr: e.AddrPort})
		}
	}
	for i := range directOthers {
		for slot, others := range p.port.slots.others {
			if i < len(others) {
				to = append(to, record{kind: otherRecord, frontend: fe, slot: slotNumber(slot, i, affinity), addr: netip.AddrPortFrom(others[i], 0)})
			}
		}
	}
	for slot, previous := range p.port.slots.previous {
		if previous.IsValid() {
			to = append(to, record{
				kind: previousRecord, frontend: fe, slot: slotNumber(slot, 0, affinity), addr: netip.AddrPortFrom(previous, 0), moved: p.port.slots.moved[slot],
			})
		}
	}
	return to
}

const (
	// directSlots is the number of slots of a frontend, a prime. With 1,021, a second or third endpoint moved up to 2.7 %
	// more slots than its share; with 4,093, 1.6 %.
	directSlots = 4093
	// directLoad is the excess over its share that an endpoint may have, in percent.
	directLoad = 4
	// directEndpoints bounds the time for slotOwners: 14 ms for 1,000 endpoints, half a millisecond for 3. Up to some 200
	// endpoints, each has at most 5 % more than its share; beyond, at most one slot more.
	directEndpoints = 1000
	// directAddresses bounds the elements, because anybody who may annotate a Service asks for direct return: a hundred
	// addresses have 680,000 elements on a node with a third of the endpoints, and their first sync takes 4 s.
	directAddresses = 50
)

// directGrants decides which Service ports have direct return. It goes by their IDs, so all nodes
// decide alike, whatever happened before. Endpoints do not matter: their coming and going must
// not take direct return from another Service.
type directGrants struct {
	// most is the number of addresses that may have direct return.
	most int
	// asking has the number of external addresses of each Service port that asks for direct return.
	asking  map[model.PortID]int
	granted map[model.PortID]bool
	// without has the Service ports that ask for direct return and have none because of a limit. Those of news were not
	// told yet.
	without map[model.PortID]bool
	news    []model.PortID
	// changed says that asking changed since decide.
	changed bool
}

func newDirectGrants() directGrants {
	return directGrants{most: directAddresses, asking: map[model.PortID]int{}, granted: map[model.PortID]bool{}, without: map[model.PortID]bool{}}
}

// ask takes the present state of a Service port, nil if it is gone. Direct return needs policy Cluster.
func (g *directGrants) ask(id model.PortID, p *model.ServicePort) {
	addresses := 0
	if p != nil && p.DirectReturn && p.ExternalPolicy == model.PolicyCluster {
		addresses = externalAddresses(p)
	}
	if addresses == g.asking[id] {
		return
	}
	g.changed = true
	g.asking[id] = addresses
	if addresses == 0 {
		delete(g.asking, id)
		delete(g.granted, id)
		delete(g.without, id)
	}
}

// note notes whether a Service port that asks for direct return has it. One without endpoints may have it later.
func (g *directGrants) note(p *portPlans) {
	switch {
	case g.asking[p.ID] == 0:
	case p.slots != nil || g.granted[p.ID] && len(p.Cluster) == 0:
		delete(g.without, p.ID)
	case !g.without[p.ID]:
		g.without[p.ID] = true
		g.news = append(g.news, p.ID)
	}
}

// WithoutDirectReturn returns the Service ports that ask for direct return and have none, because others of the family
// have as many addresses as may have it, or because they have too many endpoints. It returns each once, sorted.
func (c *Compiler) WithoutDirectReturn() (ids []model.PortID) {
	for _, f := range c.served() {
		for _, id := range f.direct.news {
			if f.direct.without[id] {
				ids = append(ids, id)
			}
		}
		f.direct.news = nil
	}
	slices.SortFunc(ids, model.PortID.Compare)
	return slices.Compact(ids)
}

// decide returns the Service ports that got direct return, or lost it.
func (g *directGrants) decide() (changed []model.PortID) {
	if !g.changed {
		return nil
	}
	before, free := g.granted, g.most
	g.granted, g.changed = map[model.PortID]bool{}, false
	for _, id := range slices.SortedFunc(maps.Keys(g.asking), model.PortID.Compare) {
		if n := g.asking[id]; n <= free {
			g.granted[id] = true
			free -= n
		}
		if g.granted[id] != before[id] {
			changed = append(changed, id)
		}
	}
	return changed
}

// portSlots are the slots of a Service port with direct return.
type portSlots struct {
	// owners has the index in Cluster of the endpoint of each slot.
	owners []uint16
	// others has the endpoints that may know TCP connections of this node's slots: see othersOf.
	others [][]netip.Addr
	// previous has the endpoints that had slots before, and moved says which of these slots have just come to this node:
	// see follow. Both are nil if there are none.
	previous []netip.Addr
	moved    []bool
}

// slotsOf returns nil if there are no endpoints, or more than directEndpoints.
func slotsOf(p *model.ServicePort) *portSlots {
	if n := len(p.Cluster); n == 0 || n > directEndpoints {
		return nil
	}
	slots := &portSlots{owners: slotOwners(p.Cluster)}
	if p.ID.Protocol == model.TCP {
		slots.others = othersOf(p, slots.owners)
	}
	return slots
}

// slotOwners gives each slot to one of the endpoints and returns their indices. It depends on the set of
// endpoints only, not on their order. A slot goes to the endpoint with the highest score for it (rendezvous
// hashing). An endpoint with more than directLoad percent above its share gives up the slots for which its score
// is lowest, each to the slot's next choice.
func slotOwners(endpoints []model.Endpoint) []uint16 {
	seeds := make([]uint64, len(endpoints))
	for i := range endpoints {
		seeds[i] = endpointSeed(endpoints[i].AddrPort)
	}
	most := max(directSlots*(100+directLoad)/(100*len(endpoints)), (directSlots+len(endpoints)-1)/len(endpoints))
	slots := make([]choice, directSlots)
	for i := range slots {
		slots[i] = choice{slot: uint64(i), score: ^uint64(0), owner: len(seeds)}
	}
	owned := make([][]choice, len(endpoints))
	for free := slots; len(free) > 0; {
		for _, c := range free {
			c.next(seeds)
			owned[c.owner] = append(owned[c.owner], c)
		}
		free = nil
		for i, have := range owned {
			if len(have) > most {
				slices.SortFunc(have, choice.compare)
				free = append(free, have[most:]...)
				owned[i] = have[:most]
			}
		}
	}
	owners := make([]uint16, directSlots)
	for i, have := range owned {
		for _, c := range have {
			owners[c.slot] = uint16(i)
		}
	}
	return owners
}

// choice is a slot and its present choice among the endpoints.
type choice struct {
	slot, score uint64
	owner       int
}

// compare orders choices by score, highest first.
func (c choice) compare(other choice) int {
	return cmp.Or(cmp.Compare(other.score, c.score), cmp.Compare(c.slot, other.slot))
}

// next turns to the endpoint with the next lower score; of those with one score, to the one with the next lower index. It
// leaves out none: slotOwners would seek an endpoint with free slots for ever. Tenants write addresses, so they can find
// two with one seed.
func (c *choice) next(seeds []uint64) {
	below, before := c.score, c.owner
	c.score = 0
	for i, seed := range seeds {
		if s := mix(seed ^ mix(c.slot+1)); (s < below || s == below && i < before) && s >= c.score {
			c.score, c.owner = s, i
		}
	}
}

// othersOf returns, for each slot of an endpoint on this node, the other endpoints with the highest scores for it, at
// most directOthers: those on other nodes, and those that terminate but still serve, wherever they are.
func othersOf(p *model.ServicePort, owners []uint16) [][]netip.Addr {
	endpoints := p.Cluster
	var remote []netip.AddrPort
	for i := range endpoints {
		if endpoints[i].Remote {
			remote = append(remote, endpoints[i].AddrPort)
		}
	}
	for _, serving := range p.Serving {
		byAddr := func(e model.Endpoint, to netip.AddrPort) int { return e.AddrPort.Compare(to) }
		if _, listed := slices.BinarySearchFunc(endpoints, serving, byAddr); !listed {
			remote = append(remote, serving)
		}
	}
	seeds := make([]uint64, len(remote))
	for i := range remote {
		seeds[i] = endpointSeed(remote[i])
	}
	others := make([][]netip.Addr, len(owners))
	for slot, owner := range owners {
		if !endpoints[owner].Local {
			continue
		}
		c := choice{slot: uint64(slot), score: ^uint64(0), owner: len(seeds)}
		for range min(directOthers, len(remote)) {
			c.next(seeds)
			others[slot] = append(others[slot], remote[c.owner].Addr())
		}
	}
	return others
}

func endpointSeed(endpoint netip.AddrPort) uint64 {
	h := fnv.New64a()
	h.Write([]byte(endpoint.String()))
	return mix(h.Sum64())
}

// mix spreads the bits of a number over all bits of another one (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
