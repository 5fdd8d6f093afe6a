package ruledump

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
)

// Pseudonyms replaces IP addresses by others: the same one always by the same one, and addresses that have the first bits
// in common by addresses that have as many in common. So prefixes, and the rules and routes about them, mean the same
// as before. The way back takes the key, which nobody keeps.
type Pseudonyms struct {
	key   [32]byte
	known map[netip.Addr]netip.Addr
}

// NewPseudonyms chooses a key.
func NewPseudonyms() *Pseudonyms {
	p := &Pseudonyms{known: map[netip.Addr]netip.Addr{}}
	_, _ = rand.Read(p.key[:]) // never fails
	return p
}

// Of returns the pseudonym of an address. Unspecified, loopback and multicast addresses are their own.
func (p *Pseudonyms) Of(addr netip.Addr) netip.Addr {
	if isNobodys(addr) {
		return addr
	}
	out, known := p.known[addr]
	if !known {
		// A pseudonym that has a meaning gets another one. No two addresses meet, since each step is one to one.
		for out = p.flip(addr); isNobodys(out); {
			out = p.flip(out)
		}
		p.known[addr] = out
	}
	return out
}

// isNobodys reports whether an address is of a block that identifies nobody: the first and last of all, and loopback.
func isNobodys(addr netip.Addr) bool {
	first := addr.AsSlice()[0]
	return first == 0 || addr.Is4() && (first == 127 || first >= 224) || addr.Is6() && first == 0xff
}

// flip inverts each bit, or not, depending on the key and all bits before it.
func (p *Pseudonyms) flip(addr netip.Addr) netip.Addr {
	out := addr.AsSlice()
	for bit := range addr.BitLen() {
		before, _ := addr.Prefix(bit) // bit is in range
		sum := sha256.Sum256(slices.Concat(p.key[:], []byte{byte(bit)}, before.Addr().AsSlice()))
		out[bit/8] ^= sum[0] & 1 << (7 - bit%8)
	}
	flipped, _ := netip.AddrFromSlice(out) // as long as before
	return flipped
}

func (p *Pseudonyms) ofPrefix(prefix netip.Prefix) netip.Prefix {
	of := netip.PrefixFrom(p.Of(prefix.Addr()), prefix.Bits())
	if prefix == prefix.Masked() {
		return of.Masked()
	}
	return of
}

var (
	ipv6Text = regexp.MustCompile(`\b[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(/[0-9]{1,3})?`)
	ipv4Text = regexp.MustCompile(`\b[0-9]{1,3}(\.[0-9]{1,3}){3}(/[0-9]{1,2}\b)?`)
)

// Text replaces the addresses and prefixes in a text.
func (p *Pseudonyms) Text(text []byte) []byte {
	for _, pattern := range []*regexp.Regexp{ipv6Text, ipv4Text} {
		text = pattern.ReplaceAllFunc(text, func(found []byte) []byte {
			if prefix, err := netip.ParsePrefix(string(found)); err == nil {
				return []byte(p.ofPrefix(prefix).String())
			}
			if addr, err := netip.ParseAddr(string(found)); err == nil {
				return []byte(p.Of(addr).String())
			}
			return found
		})
	}
	return text
}

// Redact returns a snapshot of the same tables, in which pseudonyms stand for addresses. It leaves out the tables of other
// programs, which may have addresses anywhere.
func (s *Snapshot) Redact(p *Pseudonyms) (*Snapshot, error) {
	out := &Snapshot{Header: s.Header, ServiceProxyName: s.ServiceProxyName}
	out.Addresses = nil
	for _, addr := range s.Addresses {
		out.Addresses = append(out.Addresses, p.Of(addr))
	}
	for i, t := range s.Tables {
		recording, err := s.recordings[i].MapAddrs(p.Of)
		if err == nil {
			t, err = recording.Table()
		}
		if err == nil {
			err = out.add(t, recording)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", tableName(t), err)
		}
	}
	for _, r := range s.Host.Routes {
		out.Host.Routes = append(out.Host.Routes, evaluator.Route{Destination: p.ofPrefix(r.Destination), Interface: r.Interface})
	}
	out.Host.Interfaces, out.NotLookedAt = s.Host.Interfaces, s.NotLookedAt
	out.Ordered = out.Tables
	out.otherRecordings = make([]nft.Recording, len(out.Ordered)) // none: these are the proxy's own
	for _, t := range s.Ordered {
		if !slices.Contains(s.Tables, t) {
			out.NotLookedAt = append(out.NotLookedAt, tableName(t)+": a redacted report leaves out the rules of other programs")
		}
	}
	return out, nil
}
