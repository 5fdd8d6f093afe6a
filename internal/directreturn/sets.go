package directreturn

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// Addresses is the name of the set of frontends with direct return.
const Addresses = "direct-ips"

// The sets that count.
const (
	Unknown  = "direct-unknown"
	Asked    = "direct-asked"
	Answered = "direct-answered"
)

// sets has the sets and maps of a table. Their keys begin with a frontend, and the keys of maps end with a slot.
type sets struct {
	// addresses has the frontends with direct return, and leaving the frontends that leave it.
	addresses, leaving *nft.Set
	// hops maps a slot to the address of an endpoint on another node. errorHops has the same elements for ICMP errors: nft
	// takes the protocol and the port in a quoted packet for integers, so the type of the key differs.
	hops, errorHops *nft.Set
	// own maps a slot to an endpoint of this node. others maps a slot of this node to the addresses of endpoints that may
	// know its TCP connections.
	own, others *nft.Set
	// counters have all frontends, and count packets; empty unless packets are counted. unknown counts packets that are
	// dropped because their connection is not known, asked packets about which this node asks others, and answered packets
	// about which others ask and whose connection this node knows.
	counters                 []*nft.Set
	unknown, asked, answered *nft.Set
}

func newSets(f nft.Family, counts bool) sets {
	frontends := func(name string, counts bool) *nft.Set {
		return &nft.Set{Name: name, Key: frontendKey(f), Counter: counts}
	}
	slots := func(name string, frontend nft.Concat, to nft.Concat) *nft.Set {
		return &nft.Set{Name: name, Key: append(frontend, nft.Numgen{Mod: 2}), Data: to}
	}
	quoted, _, _ := quoted(f)
	s := sets{
		addresses: frontends(Addresses, false),
		leaving:   frontends("direct-leaving", false),
		hops:      slots("direct-hops", frontendKey(f), nft.Concat{f.Daddr()}),
		errorHops: slots("direct-error-hops", quoted, nft.Concat{f.Daddr()}),
		own:       slots("direct-slots", frontendKey(f), nft.Concat{f.Daddr(), nft.ThDport}),
		others:    slots("direct-others", frontendKey(f), nft.Concat{f.Daddr()}),
		unknown:   frontends(Unknown, true), asked: frontends(Asked, true), answered: frontends(Answered, true),
	}
	if counts {
		s.counters = []*nft.Set{s.unknown, s.asked, s.answered}
	}
	return s
}

func (s *sets) put(draft *nft.Draft) {
	for _, set := range append([]*nft.Set{s.addresses, s.leaving, s.hops, s.errorHops, s.own, s.others}, s.counters...) {
		draft.PutSet(set)
	}
}

// with returns the sets that have the endpoints of a choice, and the rank of its slots' numbers.
func (s *sets) with(c choice) (sets []*nft.Set, rank int) {
	switch c {
	case hop:
		return []*nft.Set{s.hops, s.errorHops}, 0
	case here:
		return []*nft.Set{s.own}, 0
	}
	return []*nft.Set{s.others}, int(c - firstOther)
}

// replace brings the elements of a frontend from one state to another.
func (s *sets) replace(draft *nft.Draft, frontend nft.Data, have, want *slots) {
	if have == want {
		return
	}
	if have != nil && want != nil && have.affinity != want.affinity { // all slots have other numbers
		s.replace(draft, frontend, have, nil)
		have = nil
	}
	either := cmp.Or(want, have)
	for c := range choices {
		sets, rank := s.with(c)
		for slot := range slotCount {
			had, to := have.endpoint(c, slot), want.endpoint(c, slot)
			if had == to {
				continue
			}
			key := frontend + nft.IntegerData(uint32(slotNumber(slot, rank, either.affinity)))
			for _, set := range sets {
				if !to.IsValid() {
					draft.Remove(set, key)
					continue
				}
				value := nft.AddrData(to.Addr())
				if set == s.own {
					value += nft.PortData(to.Port())
				}
				draft.Put(set, nft.Element{Key: key, Value: value})
			}
		}
	}
}

// mark puts a frontend into one of the sets of frontends, and takes it out of the other; out of both for nil.
func (s *sets) mark(draft *nft.Draft, in *nft.Set, frontend nft.Element) {
	for _, set := range append([]*nft.Set{s.addresses, s.leaving}, s.counters...) {
		if set == in || set.Counter && in != nil {
			draft.Put(set, frontend)
		} else {
			draft.Remove(set, frontend.Key)
		}
	}
}

// prefix returns the longest prefix that all frontends have in common; not valid if there are none.
func (s *sets) prefix(f nft.Family) (common netip.Prefix) {
	for _, set := range []*nft.Set{s.addresses, s.leaving} {
		for _, e := range set.Elements() {
			addr, _ := netip.AddrFromSlice([]byte(e.Key[:f.Loopback().Addr().BitLen()/8]))
			if !common.IsValid() {
				common = netip.PrefixFrom(addr, addr.BitLen())
			}
			for !common.Contains(addr) {
				common = netip.PrefixFrom(common.Addr(), common.Bits()-1).Masked()
			}
		}
	}
	return common
}

// read returns the slots of a frontend that elements of the kernel's sets have.
func (s *sets) read(frontend nft.Data, elements func(*nft.Set) []nft.Element) *slots {
	found := &slots{}
	for _, first := range []choice{hop, firstOther} {
		sets, _ := s.with(first)
		for _, e := range elements(sets[0]) {
			slot, is := strings.CutPrefix(string(e.Key), string(frontend))
			addr, ok := netip.AddrFromSlice([]byte(e.Value))
			if !is || !ok || len(slot) != 4 {
				continue
			}
			number := int(binary.NativeEndian.Uint32([]byte(slot)))
			rank := number / slotCount / 2
			if rank >= asked || first == hop && rank > 0 {
				continue
			}
			found.affinity = number/slotCount%2 == 1
			endpoint := netip.AddrPortFrom(addr, 0)
			i := slices.Index(found.endpoints, endpoint)
			if i < 0 {
				i, found.endpoints = len(found.endpoints), append(found.endpoints, endpoint)
			}
			found.to[first+choice(rank)][number%slotCount] = uint16(i + 1)
		}
	}
	return found
}
