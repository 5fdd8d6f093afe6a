package directreturn

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
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

// sets are those of a table in which frontends may have direct return, or leave it.
type sets struct {
	// addresses has the frontends with direct return, and leaving those that leave it.
	addresses, leaving *nft.Set
	// hops leads from a frontend and a slot to the address of an endpoint on another node. errorHops has the same elements
	// for ICMP errors, because nft takes the protocol and the port that these quote for integers.
	hops, errorHops *nft.Set
	// own leads to an endpoint of this node, and others to the addresses of endpoints that may know TCP connections of this
	// node's slots.
	own, others *nft.Set
	// counters have all frontends, and count packets: unknown those that are dropped because nodes do not know their
	// connection, asked those about which this node asks others, and answered those about which others asked, and which are
	// of a connection of this node. Empty unless packets are counted.
	counters                 []*nft.Set
	unknown, asked, answered *nft.Set
}

func newSets(f nft.Family, counts bool) sets {
	frontend := frontendKey(f)
	slot := func(key nft.Concat) nft.Concat { return append(key, nft.Numgen{Mod: 2}) }
	s := sets{
		addresses: &nft.Set{Name: Addresses, Key: frontend},
		leaving:   &nft.Set{Name: "direct-leaving", Key: frontend},
		hops:      &nft.Set{Name: "direct-hops", Key: slot(frontendKey(f)), Data: nft.Concat{f.Daddr()}},
		errorHops: &nft.Set{Name: "direct-error-hops", Key: slot(quotedFrontend(f)), Data: nft.Concat{f.Daddr()}},
		own:       &nft.Set{Name: "direct-slots", Key: slot(frontendKey(f)), Data: nft.Concat{f.Daddr(), nft.ThDport}},
		others:    &nft.Set{Name: "direct-others", Key: slot(frontendKey(f)), Data: nft.Concat{f.Daddr()}},
		unknown:   &nft.Set{Name: Unknown, Key: frontend, Counter: true},
		asked:     &nft.Set{Name: Asked, Key: frontend, Counter: true},
		answered:  &nft.Set{Name: Answered, Key: frontend, Counter: true},
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

// replace brings the elements of a frontend from one state to another.
func (s *sets) replace(draft *nft.Draft, fe Frontend, have, want *slots) {
	if have != nil && want != nil && have.affinity != want.affinity { // all slots have other numbers
		s.replace(draft, fe, have, nil)
		have = nil
	}
	key, state := fe.key(), have
	if want != nil {
		state = want
	}
	for c := range choices {
		for slot := range slotCount {
			had, to := have.endpoint(c, slot), want.endpoint(c, slot)
			if had == to {
				continue
			}
			full := key + nft.IntegerData(uint32(slotNumber(slot, c.rank(), state.affinity)))
			for _, set := range s.holding(c) {
				if !to.IsValid() {
					draft.Remove(set, full)
					continue
				}
				value := nft.AddrData(to.Addr())
				if set == s.own {
					value += nft.PortData(to.Port())
				}
				draft.Put(set, nft.Element{Key: full, Value: value})
			}
		}
	}
}

// holding returns the sets that have the endpoints of a choice.
func (s *sets) holding(c choice) []*nft.Set {
	switch c {
	case hop:
		return []*nft.Set{s.hops, s.errorHops}
	case here:
		return []*nft.Set{s.own}
	}
	return []*nft.Set{s.others}
}

// mark puts a frontend into one of the sets of frontends, and takes it out of the other; out of both for nil.
func (s *sets) mark(draft *nft.Draft, fe Frontend, in *nft.Set, comment string) {
	for _, set := range []*nft.Set{s.addresses, s.leaving} {
		if set == in {
			draft.Put(set, nft.Element{Key: fe.key(), Comment: comment})
		} else {
			draft.Remove(set, fe.key())
		}
	}
	for _, set := range s.counters {
		if in != nil {
			draft.Put(set, nft.Element{Key: fe.key(), Comment: comment})
		} else {
			draft.Remove(set, fe.key())
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

// key returns the frontend as the start of a key.
func (fe Frontend) key() nft.Data {
	return nft.AddrData(fe.Addr.Addr()) + nft.ProtoData(uint8(fe.Protocol)) + nft.PortData(fe.Addr.Port())
}

// parseFrontend is the inverse of key.
func parseFrontend(key nft.Data) (fe Frontend, ok bool) {
	at := len(key) - 8
	if at < 0 {
		return fe, false
	}
	addr, ok := netip.AddrFromSlice([]byte(key[:at]))
	return Frontend{netip.AddrPortFrom(addr, binary.BigEndian.Uint16([]byte(key[at+4:]))), model.Protocol(key[at])}, ok
}

// read returns the slots of a frontend that elements of the kernel's sets have.
func (s *sets) read(fe Frontend, elements func(*nft.Set) []nft.Element) *slots {
	found, key := &slots{}, fe.key()
	for _, set := range []*nft.Set{s.hops, s.others} {
		for _, e := range elements(set) {
			if len(e.Key) != len(key)+4 || e.Key[:len(key)] != key {
				continue
			}
			addr, ok := netip.AddrFromSlice([]byte(e.Value))
			number := int(binary.NativeEndian.Uint32([]byte(e.Key[len(key):])))
			if ok && number < 2*asked*slotCount {
				found.affinity = number/slotCount%2 == 1
				c := choice(number / slotCount / 2)
				if set == s.others {
					c += firstOther
				}
				i := slices.Index(found.endpoints, netip.AddrPortFrom(addr, 0))
				if i < 0 {
					i, found.endpoints = len(found.endpoints), append(found.endpoints, netip.AddrPortFrom(addr, 0))
				}
				found.set(c, number%slotCount, uint16(i))
			}
		}
	}
	return found
}
