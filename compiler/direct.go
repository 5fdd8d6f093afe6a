package compiler

import (
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
// client. Only that node's conntrack knows the connection: others may go, and a router may choose another one.
//
// Connections outlive a move of their slot. A packet that opens no connection, of a slot of this node and of no connection
// that it knows, goes to the endpoints with the next scores for the slot: one of them had the slot before, if this one
// came since. Its node knows the connection, and the others drop the packet. TTL marks it, so that nobody sends it on
// for ever.
//
// A node finds its own slots in the map direct-slots, and those of other nodes in direct-hops:
//
//	chain direct-forward {           # from filter-prerouting-direct, for frontends in direct-ips
//		ct state established,related return
//		dup to ip daddr . meta l4proto . th dport . jhash ip saddr . th sport mod 4093 seed … map @direct-hops drop
//		meta l4proto != tcp return
//		meta l4proto tcp tcp flags syn return
//		ip ttl < 8 drop
//		ip ttl set 8
//		dup to … jhash … offset 8186 map @direct-others
//		dup to … jhash … offset 4093 map @direct-others
//		dup to … jhash … map @direct-others drop
//		ct state invalid drop
//	}
//	chain direct-return-3 {          # from service-ips
//		dnat ip to ip daddr . meta l4proto . th dport . jhash ip saddr . th sport mod 4093 seed … map @direct-slots
//		…                            # as external-3
//	}
//
// A slot that is in neither map has an endpoint whose node is not known. Its packets are translated as under external-3,
// and so are those of clients of the cluster and of this node. docs/direct-return.md says more.

const (
	chainPreroutingDirect = "filter-prerouting-direct"
	chainDirectForward    = "direct-forward"
	directHops            = "direct-hops"

	// directOthers is how many other endpoints may have had a slot before.
	directOthers = 3
	// directTTL is enough for a packet to reach the pod of another node, and too small for one that comes from a client.
	directTTL = 8
)

// IsDirectHops reports whether the map of that name leads to nodes that have other slots.
func IsDirectHops(set string) bool { return set == directHops }

// directSeed must be the same on all nodes.
const directSeed = 0x6e667470

// slotHash is the slot of a packet.
func (p *program) slotHash() nft.JHash {
	return nft.JHash{Field: p.family.Saddr(), And: nft.ThSport, Mod: directSlots, Seed: directSeed}
}

// sendOn sends a packet to the endpoint of its slot in a map. The slots in the map begin at an offset.
func (p *program) sendOn(kind recordKind, offset int) nft.Dup {
	slot := p.slotHash()
	slot.Offset = uint32(offset)
	return nft.Dup{Key: append(p.key(false), slot), Map: kind.set(false)}
}

// directChains send packets of other nodes' slots on. They run after conntrack: connections that this node translated
// stay, whoever has their slot now. An entry for any other connection goes with the packet, because it is never confirmed.
func (p *program) directChains() []*nft.Chain {
	rules := []nft.Rule{nft.NewRule(nft.Match{Field: nft.CTState, Value: nft.CTStateEstablished | nft.CTStateRelated}, nft.Return)}
	for _, client := range p.localClients() {
		rules = append(rules, nft.NewRule(client, nft.Return))
	}
	rules = append(rules, nft.NewRule(p.sendOn(hopRecord, 0), nft.Drop))
	if p.has(otherRecord, false) {
		rules = append(rules,
			nft.NewRule(nft.Match{Field: nft.MetaL4proto, Op: nft.NotEqual, Value: nft.ProtoData(uint8(model.TCP))}, nft.Return),
			nft.NewRule(isProtocol(model.TCP), nft.Match{Field: nft.TCPFlags, Value: nft.TCPFlagSYN}, nft.Return),
			nft.NewRule(nft.Match{Field: p.family.TTL(), Op: nft.Less, Value: directTTL}, nft.Drop),
			nft.NewRule(nft.SetTTL{Family: p.family, Hops: directTTL}))
		for i := directOthers - 1; i > 0; i-- {
			rules = append(rules, nft.NewRule(p.sendOn(otherRecord, i*directSlots)))
		}
		rules = append(rules, nft.NewRule(p.sendOn(otherRecord, 0), nft.Drop))
	}
	// Nobody translates an invalid packet, so it would go back to the router, again and again.
	rules = append(rules, nft.NewRule(nft.Match{Field: nft.CTState, Value: nft.CTStateInvalid}, nft.Drop))
	return []*nft.Chain{
		{Name: chainPreroutingDirect, Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: nft.PriorityMangle, Rules: []nft.Rule{
			nft.NewRule(nft.InSet{Key: p.key(false), Set: directRecord.set(false)}, nft.Jump(chainDirectForward)),
		}},
		{Name: chainDirectForward, Rules: rules},
	}
}

// ownSlots translates packets of this node's slots.
func (p *program) ownSlots() nft.Rule {
	return nft.NewRule(nft.DNAT{Family: p.family, Key: append(p.key(false), p.slotHash()), Map: slotRecord.set(false)})
}

// appendSlotRecords appends the slots of a frontend that are this node's, and those that are other nodes'.
func appendSlotRecords(to []record, p plan, fe frontend) []record {
	if p.kind != kindReturn {
		return to
	}
	for slot, owner := range p.port.slots {
		if e := &p.port.Cluster[owner]; e.Remote {
			to = append(to, record{kind: hopRecord, frontend: fe, slot: slot, addr: netip.AddrPortFrom(e.AddrPort.Addr(), 0)})
		}
	}
	for slot, owner := range p.port.slots {
		if e := &p.port.Cluster[owner]; e.Local {
			to = append(to, record{kind: slotRecord, frontend: fe, slot: slot, addr: e.AddrPort})
		}
	}
	if fe.protocol != model.TCP {
		return to
	}
	for i := range directOthers {
		for slot, others := range p.port.others {
			if i < len(others) {
				to = append(to, record{kind: otherRecord, frontend: fe, slot: i*directSlots + slot, addr: netip.AddrPortFrom(others[i], 0)})
			}
		}
	}
	return to
}

const (
	// directSlots is the number of slots of a frontend, a prime. With 1,021, a second or third endpoint moved up to 2.7 %
	// more slots than its share; with 4,093, 1.6 %.
	directSlots = 4093
	// directLoad is how much more than its share an endpoint may have, in percent.
	directLoad = 4
	// directEndpoints bounds the time for slotOwners: 14 ms for 1,000 endpoints, half a millisecond for 3. Up to some 200
	// endpoints, each has at most 5 % more than its share; beyond, at most one slot more.
	directEndpoints = 1000
	// directAddresses bounds the elements, because anybody who may annotate a Service asks for direct return: a hundred
	// addresses have 680,000 elements on a node with a third of the endpoints, and their first sync takes 4 s.
	directAddresses = 50
)

// directGrants decides which Service ports have direct return. It goes by their IDs, so all nodes decide alike, whatever
// happened before. Endpoints do not matter: their coming and going must not take direct return from another Service.
type directGrants struct {
	// most is the number of addresses that may have direct return.
	most int
	// asking has the number of external addresses of each Service port that asks for direct return.
	asking  map[model.PortID]int
	granted map[model.PortID]bool
	// changed says that asking changed since decide.
	changed bool
}

func newDirectGrants() directGrants {
	return directGrants{most: directAddresses, asking: map[model.PortID]int{}, granted: map[model.PortID]bool{}}
}

// ask takes the present state of a Service port, nil if it is gone. Direct return needs policy Cluster, and has no session
// affinity.
func (g *directGrants) ask(id model.PortID, p *model.ServicePort) {
	addresses := 0
	if p != nil && p.DirectReturn && p.ExternalPolicy == model.PolicyCluster && p.AffinityTimeout == 0 {
		addresses = len(p.LoadBalancerIPs) + len(p.ExternalIPs)
	}
	if addresses == g.asking[id] {
		return
	}
	g.changed = true
	g.asking[id] = addresses
	if addresses == 0 {
		delete(g.asking, id)
		delete(g.granted, id)
	}
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

// ownersOf returns the owner of each slot; nil if there are no endpoints, or more than directEndpoints.
func ownersOf(p *model.ServicePort) []uint16 {
	if n := len(p.Cluster); n == 0 || n > directEndpoints {
		return nil
	}
	return slotOwners(p.Cluster)
}

// slotOwners gives each slot to one of the endpoints and returns their indices. It depends on the set of endpoints only,
// not on their order. A slot goes to the endpoint with the highest score for it (rendezvous hashing). An endpoint with more
// than directLoad percent above its share gives up the slots for which its score is lowest, each to the slot's next choice.
func slotOwners(endpoints []model.Endpoint) []uint16 {
	seeds := make([]uint64, len(endpoints))
	for i := range endpoints {
		seeds[i] = endpointSeed(endpoints[i].AddrPort)
	}
	most := max(directSlots*(100+directLoad)/(100*len(endpoints)), (directSlots+len(endpoints)-1)/len(endpoints))
	slots := make([]choice, directSlots)
	for i := range slots {
		slots[i] = choice{slot: uint64(i), score: ^uint64(0)}
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
	if c.score != other.score {
		if c.score > other.score {
			return -1
		}
		return 1
	}
	return int(c.slot) - int(other.slot)
}

// next turns to the endpoint with the next lower score.
func (c *choice) next(seeds []uint64) {
	below := c.score
	c.score = 0
	for i, seed := range seeds {
		if s := mix(seed ^ mix(c.slot+1)); s < below && s >= c.score {
			c.score, c.owner = s, i
		}
	}
}

// othersOf returns, for each slot of an endpoint on this node, the other endpoints with the highest scores for it, at most
// directOthers: those on other nodes, and those that terminate but still serve, wherever they are.
func othersOf(p *model.ServicePort, owners []uint16) [][]netip.Addr {
	if owners == nil {
		return nil
	}
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
		c := choice{slot: uint64(slot), score: ^uint64(0)}
		for range min(directOthers, len(remote)) {
			if endpoints[owner].Local {
				c.next(seeds)
				others[slot] = append(others[slot], remote[c.owner].Addr())
			}
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
