package directreturn

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
)

const (
	// slotCount is the number of slots of a frontend, a prime. With 1,021, a second or third endpoint moved up to 2.7 %
	// more slots than its share; with 4,093, 1.6 %.
	slotCount = 4093
	// excess is what an endpoint may have above its share, in percent.
	excess = 4
	// maxEndpoints bounds the time for slotOwners: 14 ms for 1,000 endpoints, half a millisecond for 3. Up to some 200
	// endpoints, each has at most 5 % more than its share; beyond, at most one slot more.
	maxEndpoints = 1000
	// asked is the number of endpoints that may have had a slot before.
	asked = 3
)

// choice says why a slot's packets are sent to an endpoint.
type choice uint8

const (
	// hop is the slot's owner, on another node, and here one on this node.
	hop choice = iota
	here
	// firstOther and the choices after it are the endpoints to ask about TCP connections of a slot of this node.
	firstOther
	choices = firstOther + asked
)

// slotNumber is the number of a slot in the maps: with affinity, and for the next choices, it is higher. The rank is 0 for
// the slot's owner and for the endpoint that is asked last.
func slotNumber(slot, rank int, affinity bool) int {
	number := 2 * rank
	if affinity {
		number++
	}
	return number*slotCount + slot
}

// slots are the slots of the frontends of a Service port. They do not change.
type slots struct {
	// cluster and serving are the lists from which newSlots made the slots.
	cluster []model.Endpoint
	serving []netip.AddrPort
	// affinity says that the hash of a client's address alone chooses the slot.
	affinity bool
	// endpoints has the endpoints of cluster, then the terminating endpoints of serving.
	endpoints []netip.AddrPort
	// to has the index in endpoints, plus 1, of each choice for each slot; 0 for none.
	to [choices][slotCount]uint16
}

// newSlots returns the slots of a Service port with endpoints.
func newSlots(p *model.ServicePort) *slots {
	s := &slots{cluster: p.Cluster, serving: p.Serving, affinity: p.AffinityTimeout > 0}
	for i := range p.Cluster {
		s.endpoints = append(s.endpoints, p.Cluster[i].AddrPort)
	}
	owners := slotOwners(s.endpoints)
	for slot, owner := range owners {
		switch e := &p.Cluster[owner]; {
		case e.Remote:
			s.to[hop][slot] = owner + 1
		case e.Local:
			s.to[here][slot] = owner + 1
		}
	}
	if p.ID.Protocol == model.TCP {
		s.ask(owners)
	}
	return s
}

// isOf reports whether newSlots would return the same for a Service port.
func (s *slots) isOf(p *model.ServicePort) bool {
	return s.affinity == (p.AffinityTimeout > 0) && slices.Equal(s.cluster, p.Cluster) && slices.Equal(s.serving, p.Serving)
}

// endpoint returns the endpoint of a slot; the zero value for none.
func (s *slots) endpoint(c choice, slot int) netip.AddrPort {
	if s == nil || s.to[c][slot] == 0 {
		return netip.AddrPort{}
	}
	return s.endpoints[s.to[c][slot]-1]
}

// elsewhere returns the indices of the endpoints of other nodes, and of all endpoints that terminate but still serve.
func (s *slots) elsewhere() (indices []uint16) {
	for i := range s.endpoints {
		if i >= len(s.cluster) || s.cluster[i].Remote {
			indices = append(indices, uint16(i))
		}
	}
	return indices
}

// slotOwners gives each slot to one of the endpoints and returns their indices. It depends on the set of
// endpoints only, not on their order. A slot goes to the endpoint with the highest score for it (rendezvous
// hashing). An endpoint with more than excess percent above its share gives up the slots for which its score
// is lowest, each to the slot's next choice.
func slotOwners(endpoints []netip.AddrPort) []uint16 {
	seeds := seedsOf(endpoints)
	most := max(slotCount*(100+excess)/(100*len(endpoints)), (slotCount+len(endpoints)-1)/len(endpoints))
	slots := make([]candidate, slotCount)
	for i := range slots {
		slots[i] = candidate{slot: uint64(i), score: ^uint64(0), owner: len(seeds)}
	}
	owned := make([][]candidate, len(endpoints))
	for free := slots; len(free) > 0; {
		for _, c := range free {
			c.next(seeds)
			owned[c.owner] = append(owned[c.owner], c)
		}
		free = nil
		for i, have := range owned {
			if len(have) > most {
				slices.SortFunc(have, candidate.compare)
				free = append(free, have[most:]...)
				owned[i] = have[:most]
			}
		}
	}
	owners := make([]uint16, slotCount)
	for i, have := range owned {
		for _, c := range have {
			owners[c.slot] = uint16(i)
		}
	}
	return owners
}

// candidate is a slot and its present choice among the endpoints.
type candidate struct {
	slot, score uint64
	owner       int
}

// compare orders choices by score, highest first.
func (c candidate) compare(other candidate) int {
	return cmp.Or(cmp.Compare(other.score, c.score), cmp.Compare(c.slot, other.slot))
}

// next moves to the endpoint with the next lower score, or with the same score and the next lower index. It skips no
// endpoint: slotOwners would look for an endpoint with free slots for ever. Two endpoints can have one seed, because tenants
// write addresses.
func (c *candidate) next(seeds []uint64) {
	below, before := c.score, c.owner
	c.score = 0
	for i, seed := range seeds {
		if s := mix(seed ^ mix(c.slot+1)); (s < below || s == below && i < before) && s >= c.score {
			c.score, c.owner = s, i
		}
	}
}

// ask sets, for each slot of an endpoint on this node, the endpoints elsewhere with the highest scores for it.
func (s *slots) ask(owners []uint16) {
	for _, serving := range s.serving {
		if !slices.Contains(s.endpoints, serving) {
			s.endpoints = append(s.endpoints, serving)
		}
	}
	indices := s.elsewhere()
	var others []netip.AddrPort
	for _, i := range indices {
		others = append(others, s.endpoints[i])
	}
	seeds := seedsOf(others)
	for slot, owner := range owners {
		if !s.cluster[owner].Local {
			continue
		}
		best := candidate{slot: uint64(slot), score: ^uint64(0), owner: len(seeds)}
		for c := firstOther; c < firstOther+choice(min(asked, len(seeds))); c++ {
			best.next(seeds)
			s.to[c][slot] = indices[best.owner] + 1
		}
	}
}

func seedsOf(endpoints []netip.AddrPort) []uint64 {
	seeds := make([]uint64, len(endpoints))
	for i, endpoint := range endpoints {
		h := fnv.New64a()
		h.Write([]byte(endpoint.String()))
		seeds[i] = mix(h.Sum64())
	}
	return seeds
}

// mix spreads the bits of a number over all bits of another one (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
