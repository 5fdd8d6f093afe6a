package evaluator

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// script reads choices from bytes; when they are used up it always chooses 0.
type script struct{ rest []byte }

// choose returns a number from 0 to n-1.
func (s *script) choose(n int) int {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return int(b) % n
}

func pick[T any](s *script, from ...T) T { return from[s.choose(len(from))] }

// Tables of the fuzzer need make no sense: rules lead to chains and sets that are not there, or
// that have other keys, or in circles.

func (s *script) addr() netip.Addr {
	return pick(s, netip.MustParseAddr(nodeAddr), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr(client),
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00::1"))
}

func (s *script) field() nft.Field { return nft.Field(1 + s.choose(int(nft.CTReplyProtoSrc))) }

func (s *script) concat() nft.Concat {
	var c nft.Concat
	for range 1 + s.choose(3) {
		if s.choose(4) == 0 {
			c = append(c, nft.Numgen{Mod: pick[uint32](s, 0, 1, 2, 3, 1<<31)})
			continue
		}
		c = append(c, s.field())
	}
	return c
}

func (s *script) data(length int) nft.Data {
	d := nft.AddrData(s.addr()) + nft.PortData(80) + nft.IntegerData(uint32(s.choose(3)))
	return d[:min(len(d), length+s.choose(2))]
}

func (s *script) set(name string) *nft.Set {
	set := &nft.Set{Name: name, Key: s.concat(), Interval: s.choose(4) == 0, Dynamic: s.choose(4) == 0, Size: uint32(s.choose(3)), Verdicts: s.choose(2) == 0}
	if !set.Verdicts && s.choose(2) == 0 {
		set.Data = s.concat()
	}
	for range s.choose(4) {
		set.Put(nft.Element{Key: s.data(set.Key.Len()), KeyEnd: pick(s, "", s.data(set.Key.Len())), Value: s.data(20), Verdict: s.verdict()})
	}
	return set
}

func (s *script) verdict() nft.Verdict {
	return nft.Verdict{Kind: nft.VerdictKind(s.choose(8)), Chain: s.chainName()}
}

func (s *script) chainName() string { return fmt.Sprint("c", s.choose(6)) }
func (s *script) setName() string   { return fmt.Sprint("s", s.choose(4)) }

func (s *script) statement() nft.Statement {
	op := pick(s, nft.Equal, nft.NotEqual)
	switch s.choose(17) {
	case 0:
		return nft.Match{Field: s.field(), Op: op, Value: s.data(4)}
	case 1:
		return nft.Match{Field: s.field(), Op: op, Value: netip.PrefixFrom(s.addr(), s.choose(200))}
	case 2:
		return nft.Match{Field: s.field(), Value: uint32(s.choose(256))}
	case 3:
		return nft.MatchMark(uint32(s.choose(4)), uint32(s.choose(4)))
	case 4:
		return nft.Match{Field: s.field(), Op: op, Value: pick(s, "lo", "eth*", "")}
	case 5:
		return nft.InSet{Key: s.concat(), Op: op, Set: s.setName()}
	case 6:
		return nft.Vmap{Key: s.concat(), Map: s.setName()}
	case 7:
		return nft.SetMark(uint32(s.choose(4)))
	case 8:
		return nft.FlipMark(uint32(s.choose(4)))
	case 9:
		return nft.DNAT(pick(s, nft.FamilyIP, nft.FamilyIP6), s.concat(), s.setName())
	case 10:
		return nft.Masquerade
	case 11:
		return nft.Reject{Family: pick(s, nft.FamilyIP, nft.FamilyIP6)}
	case 12:
		return nft.Update{Map: s.setName(), Key: s.concat(), Data: s.concat(), Timeout: 1e9}
	case 13:
		return nft.Counter{}
	case 14:
		return nft.Unknown{Name: "x"}
	}
	return s.verdict()
}

func (s *script) table() *nft.Table {
	t := &nft.Table{Family: pick(s, nft.FamilyIP, nft.FamilyIP6), Name: "fuzz"}
	for i := range s.choose(4) {
		t.Sets = append(t.Sets, s.set(fmt.Sprint("s", i)))
	}
	for i := range s.choose(7) {
		c := &nft.Chain{Name: fmt.Sprint("c", i), DropPolicy: s.choose(3) == 0}
		if s.choose(2) == 0 {
			c.Hook = pick(s, nft.HookPrerouting, nft.HookInput, nft.HookForward, nft.HookOutput, nft.HookPostrouting)
			c.Type = pick[nft.ChainType](s, nft.TypeFilter, nft.TypeNAT, "route")
			c.Priority = int32(i) + pick[int32](s, -300, -150, -100, 0, 100, 200)
		}
		for range s.choose(5) {
			var r nft.Rule
			for range s.choose(4) {
				r.Statements = append(r.Statements, s.statement())
			}
			c.Rules = append(c.Rules, r)
		}
		t.Chains = append(t.Chains, c)
	}
	return t
}

func (s *script) packet() Packet {
	p := Packet{
		Source:      netip.AddrPortFrom(s.addr(), uint16(s.choose(2))),
		Destination: netip.AddrPortFrom(s.addr(), uint16(80*s.choose(2))),
		Protocol:    pick[uint8](s, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, 0),
		Local:       s.choose(2) == 0,
		Interface:   pick(s, "", "eth0"),
		Mark:        uint32(s.choose(4)),
	}
	if s.choose(4) == 0 {
		p.Connection = &Connection{Destination: netip.AddrPortFrom(s.addr(), 80), Masqueraded: s.choose(2) == 0}
	}
	return p
}

// Whatever the tables, a packet comes to an end or to an error, to the same one each time, and it prints.
func FuzzFates(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("chains lead to chains, sets and maps decide, and packets come to an end"))
	f.Add([]byte{1, 0, 0, 0, 3, 0, 2, 0, 3, 0, 4, 1, 16, 4, 1, 16, 4, 1, 1, 2, 1, 16, 5, 1, 3, 1, 16, 4, 2, 1, 1, 0, 0, 1, 1})
	f.Add(slices.Repeat([]byte{3, 5, 2, 1, 0, 4, 7, 11}, 40))
	f.Add(slices.Repeat([]byte{200, 13, 77, 3, 9, 250, 31, 5, 1}, 60))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &script{rest: data}
		e := New([]*nft.Table{s.table(), s.table()}, host)
		p := s.packet()
		fates, err := e.Fates(p)
		if (err == nil) != (len(fates) > 0) {
			t.Fatalf("%d fates, error %v", len(fates), err)
		}
		again, errAgain := e.Fates(p)
		if diff := cmp.Diff(fates.String(), again.String()); diff != "" || fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Fatalf("the same packet again (-once +twice): %v, %v\n%s", err, errAgain, diff)
		}
		if len(fates) > 0 && fates.String() == "" {
			t.Fatal("fates that do not print")
		}
	})
}
