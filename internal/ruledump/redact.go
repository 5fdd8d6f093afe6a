package ruledump

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
)

// Pseudonyms replaces IP addresses by others: the same one always by the same one, and addresses that have the first
// bits in common by addresses that have as many in common. So prefixes, and the rules and routes about them, mean the
// same as before. The way back takes the key, which nobody keeps.
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
	switch {
	case addr.Is4In6():
		return netip.AddrFrom16(p.Of(addr.Unmap()).As16())
	case isNobodys(addr):
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

// isNobodys reports whether an address identifies nobody: it is unspecified, loopback or multicast, or of the first or
// the last IPv4 addresses. Those of NAT64 begin with zeros too and have a client's IPv4 address.
func isNobodys(addr netip.Addr) bool {
	if addr.Is6() {
		return addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast()
	}
	first := addr.AsSlice()[0]
	return first == 0 || first == 127 || first >= 224
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
	if !prefix.IsValid() {
		return prefix
	}
	of := netip.PrefixFrom(p.Of(prefix.Addr()), prefix.Bits())
	if prefix == prefix.Masked() {
		return of.Masked()
	}
	return of
}

// maxAddressText is the length of the longest text of an address, an IPv6 address that ends in an IPv4 address.
const maxAddressText = 45

// Text replaces the addresses and prefixes in a text.
func (p *Pseudonyms) Text(text []byte) []byte {
	var out []byte
	copied := 0
	for at := 0; at < len(text); at++ {
		if isPartOfAddress(text[at]) && text[at] != '.' {
			if with, length := p.addressAt(text, at); length > 0 {
				out = append(append(out, text[copied:at]...), with...)
				copied = at + length
				at = copied - 1
			}
		}
	}
	return append(out, text[copied:]...)
}

// addressAt returns the pseudonym of the longest address or prefix that begins at a place of a
// text, and its length; 0 for none. No IPv6 address begins within a word, as in "cache::add". What
// follows may be anything: "fd00::1: no route".
func (p *Pseudonyms) addressAt(text []byte, at int) (with string, length int) {
	end := at
	for end < min(len(text), at+maxAddressText) && isPartOfAddress(text[end]) {
		end++
	}
	run := text[at:end]
	switch {
	case bytes.Count(run, []byte(".")) < 3 && bytes.Count(run, []byte(":")) < 7 && !bytes.Contains(run, []byte("::")):
		return "", 0
	case run[0] == ':' && (!bytes.HasPrefix(run, []byte("::")) || bytes.HasPrefix(run, []byte(":::"))):
		return "", 0
	}
	inWord := at > 0 && isWord(text[at-1]) && !endsEscape(text[:at])
	if inWord && !isLetter(text[at-1]) {
		return "", 0
	}
	for ; len(run) > 1; run = run[:len(run)-1] {
		addr, err := netip.ParseAddr(string(run))
		switch {
		case err != nil:
			continue
		case inWord && !addr.Is4():
			return "", 0
		}
		whole := text[at : at+len(run)+len(lengthOfPrefix.Find(text[at+len(run):]))]
		if prefix, err := netip.ParsePrefix(string(whole)); err == nil {
			return p.ofPrefix(prefix).String(), len(whole)
		}
		return p.Of(addr).String(), len(run)
	}
	return "", 0
}

var lengthOfPrefix = regexp.MustCompile(`^/[0-9]{1,3}`)

func isPartOfAddress(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'f' || b >= 'A' && b <= 'F' || b == ':' || b == '.'
}

func isLetter(b byte) bool { return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' }

func isWord(b byte) bool { return isLetter(b) || b >= '0' && b <= '9' }

// escapes are the ends of a text that stand for one character, in JSON and in URLs.
var escapes = regexp.MustCompile(`(\\[bfnrt]|%[0-9A-Fa-f]{2})$`)

func endsEscape(text []byte) bool { return escapes.Match(text[max(0, len(text)-3):]) }

func (p *Pseudonyms) ofValid(addr netip.Addr) netip.Addr {
	if !addr.IsValid() {
		return addr
	}
	return p.Of(addr)
}

func (p *Pseudonyms) hops(hops []evaluator.Hop) []evaluator.Hop {
	hops = slices.Clone(hops)
	for i := range hops {
		hops[i].Gateway = p.ofValid(hops[i].Gateway)
	}
	return hops
}

// host replaces the addresses that routes, rules, policies and bridges have.
func (p *Pseudonyms) host(h evaluator.Host) evaluator.Host {
	h.Routes, h.Rules, h.Policies = slices.Clone(h.Routes), slices.Clone(h.Rules), slices.Clone(h.Policies)
	for i := range h.Routes {
		r := &h.Routes[i]
		r.Destination, r.Gateway, r.Hops = p.ofPrefix(r.Destination), p.ofValid(r.Gateway), p.hops(r.Hops)
	}
	h.FailedNeighbours = p.hops(h.FailedNeighbours)
	for i := range h.Rules {
		r := &h.Rules[i]
		r.From, r.To = p.ofPrefix(r.From), p.ofPrefix(r.To)
	}
	for i := range h.Policies {
		policy := &h.Policies[i]
		policy.Source, policy.Destination = p.ofPrefix(policy.Source), p.ofPrefix(policy.Destination)
	}
	ports := h.BridgePorts
	h.BridgePorts = map[netip.Addr]string{}
	for addr, port := range ports {
		h.BridgePorts[p.Of(addr)] = port
	}
	return h
}

// Redact returns a snapshot of the same tables, in which pseudonyms stand for addresses. It leaves out the tables of
// other programs, which may have addresses anywhere.
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
	out.Host = p.host(s.Host)
	for _, what := range s.NotLookedAt {
		out.NotLookedAt = append(out.NotLookedAt, string(p.Text([]byte(what))))
	}
	out.Ordered = out.Tables
	out.otherRecordings = make([]nft.Recording, len(out.Ordered)) // none: these are the proxy's own
	for _, t := range s.Ordered {
		if !slices.Contains(s.Tables, t) {
			out.NotLookedAt = append(out.NotLookedAt, string(p.Text([]byte(tableName(t))))+": a redacted report leaves out the rules of other programs")
		}
	}
	return out, nil
}
