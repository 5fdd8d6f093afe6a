package evaluator

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// NotKnown is the error about a rule that depends on something that is not known. The text says what.
type NotKnown string

// Error implements error.
func (n NotKnown) Error() string { return string(n) }

// UnknownSourcePort is the error about a rule that looks at the source port of a packet without one.
const UnknownSourcePort NotKnown = "the source port is not known"

const unknownDestinationPort NotKnown = "the destination port is not known"

// value is what is known of an expression's value, with padding.
type value struct {
	// data and known are of the same length: known has a bit for each bit of data that is known, and the others of data
	// are 0.
	data, known []byte
	// why says why bits are not known.
	why string
	// never, if set, is a value that it certainly does not have.
	never []byte
	// absent says that the kernel ends the rule: the packet has no such value.
	absent bool
}

func known[T string | nft.Data | []byte](data T) value {
	padded := make([]byte, (len(data)+3)/4*4)
	copy(padded, data)
	return value{data: padded, known: bytes.Repeat([]byte{0xff}, len(padded))}
}

func unknown(length int, why string) value {
	length = (max(length, 0) + 3) / 4 * 4
	return value{data: make([]byte, length), known: make([]byte, length), why: why}
}

// integer is a number in host byte order of which some bits may be unknown.
func integer(v, unknown uint32, why string) value {
	return value{data: binary.NativeEndian.AppendUint32(nil, v&^unknown), known: binary.NativeEndian.AppendUint32(nil, ^unknown), why: why}
}

func (v value) isKnown() bool { return allOnes(v.known) }

func allOnes(b []byte) bool {
	for _, x := range b {
		if x != 0xff {
			return false
		}
	}
	return true
}

// truth is the result of a comparison: no, maybe or yes.
type truth int8

const (
	no truth = iota
	maybe
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// compare compares the value as the kernel does.
func (v value) compare(c nft.Comparison) truth {
	n := min(len(c.First), len(v.data))
	data, known := v.data[:n], v.known[:n]
	if c.Mask != nil {
		data, known = bytes.Clone(data), bytes.Clone(known)
	}
	for i := range c.Mask {
		if i < n {
			data[i], known[i] = data[i]&c.Mask[i], known[i]|^c.Mask[i]
		}
	}
	all := allOnes(known)
	if c.Last != nil {
		if !all {
			return maybe
		}
		in := bytes.Compare(data, c.First) >= 0 && bytes.Compare(data, c.Last) <= 0
		return truthOf(in == (c.Op == nft.Equal))
	}
	if c.Op == nft.Equal || c.Op == nft.NotEqual {
		t := maybe
		if all {
			t = yes
		}
		for i, want := range c.First[:n] {
			if (data[i]^want)&known[i] != 0 {
				t = no
			}
		}
		if t == maybe && c.Mask == nil && v.never != nil && len(c.First) > len(loopback) && bytes.HasPrefix(v.never, c.First) {
			t = no
		}
		if c.Op == nft.NotEqual {
			t = yes - t
		}
		return t
	}
	if !all {
		return maybe
	}
	order := bytes.Compare(data, c.First)
	return truthOf(map[nft.Op]bool{nft.Less: order < 0, nft.LessOrEqual: order <= 0, nft.Greater: order > 0, nft.GreaterOrEqual: order >= 0}[c.Op])
}

// value evaluates an expression.
func (s *statements) value(e nft.Expr) value {
	switch e := e.(type) {
	case nft.Field:
		return s.field(e)
	case nft.Payload:
		return s.payload(e)
	case nft.Constant:
		return known(nft.Data(e))
	case nft.Bits:
		return s.bits(e)
	case nft.Swapped:
		return s.swapped(e)
	case nft.Mapped:
		return s.mapped(e)
	case nft.Fib:
		return s.fib(e)
	case nft.Numgen:
		if e.Mod == 0 {
			return unknownValue(e, "there is no number below 0")
		}
		if e.Mod > maxBranches && s.lenient() {
			return unknownValue(e, "there are too many numbers to draw")
		}
		return known(nft.IntegerData(e.Offset + s.draws.draw(e.Mod)))
	case nft.JHash:
		return s.hash(e)
	}
	return unknownValue(e, "the evaluator does not model "+e.String())
}

// unknownValue is a value of an expression.
func unknownValue(e nft.Expr, why string) value { return unknown(nft.Concat{e}.Len(), why) }

// evaluate returns the value of a concatenation.
func (s *statements) evaluate(c nft.Concat) (all value) {
	for _, e := range c {
		v := s.value(e)
		all.data, all.known, all.absent = append(all.data, v.data...), append(all.known, v.known...), all.absent || v.absent
		if all.why == "" && !v.isKnown() {
			all.why = v.why
		}
	}
	return all
}

func (s *statements) bits(e nft.Bits) value {
	v := s.value(e.Of)
	v.data, v.known, v.never = bytes.Clone(v.data), bytes.Clone(v.known), nil
	for i := range min(len(v.data), len(e.Mask), len(e.Xor)) {
		v.data[i], v.known[i] = v.data[i]&e.Mask[i]^e.Xor[i], v.known[i]|^e.Mask[i]
		v.data[i] &= v.known[i]
	}
	return v
}

func (s *statements) swapped(e nft.Swapped) value {
	v := s.value(e.Of)
	v.data, v.known, v.never = bytes.Clone(v.data), bytes.Clone(v.known), nil
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 || e.Size <= 0 {
		return v
	}
	for at := 0; at+e.Size <= len(v.data); at += e.Size {
		for i, j := at, at+e.Size-1; i < j; i, j = i+1, j-1 {
			v.data[i], v.data[j] = v.data[j], v.data[i]
			v.known[i], v.known[j] = v.known[j], v.known[i]
		}
	}
	return v
}

// incoming is the interface that the packet comes in by. If nobody has named it, it is that of the route to the source.
func (w *walk) incoming() ifname {
	if w.iif.unknown == "" || w.atDevice {
		return w.iif
	}
	from := w.packet.Source.Addr()
	back, why := w.lookup(query{from: w.destination.Addr(), to: from, iif: loopback})
	if why != "" && w.host.Ask != nil {
		if a, err := w.host.Ask(Packet{Destination: netip.AddrPortFrom(from, 0), Local: true}); err == nil {
			back = a.Route
		}
	}
	if back.Interface != "" {
		return ifname{name: back.Interface}
	}
	return w.iif
}

// loopbackIndex is the number of lo in every network namespace.
const loopbackIndex = 1

// ifname returns the name or the number of an interface. A hook without such an interface sees an empty name.
func (w *walk) ifname(f nft.Field, of ifname) value {
	var name [unix.IFNAMSIZ]byte
	copy(name[:], of.name)
	v, never := known(name[:]), []byte(loopback+string(make([]byte, unix.IFNAMSIZ-len(loopback))))
	if f == nft.MetaIif || f == nft.MetaOif {
		index, is := w.host.Interfaces[of.name]
		if !is && of.name != "" {
			of.unknown = "the number of the interface " + of.name + " is not known"
		}
		v, never = known(nft.IntegerData(index)), []byte(nft.IntegerData(loopbackIndex))
	}
	if of.unknown != "" {
		v = unknown(len(v.data), of.unknown)
	}
	if of.name != loopback { // packets that come in by lo are the node's own, and packets to the node leave by lo
		v.never = never
	}
	return v
}

// addressType returns the type of an address, as the routing tables say.
func (w *walk) addressType(addr netip.Addr) value {
	switch {
	case !addr.IsValid() || w.isLocal(addr): // masquerading chose it
		return known(nft.IntegerData(unix.RTN_LOCAL))
	case addr.IsMulticast():
		return known(nft.IntegerData(unix.RTN_MULTICAST))
	case w.isBroadcast(addr):
		return known(nft.IntegerData(unix.RTN_BROADCAST))
	}
	if r, why := w.findRoute(addr); why == "" && r.Destination.IsValid() && r.Type == "" {
		return known(nft.IntegerData(unix.RTN_UNICAST))
	}
	v := unknown(4, "the evaluator knows no address type but local")
	v.never = []byte(nft.IntegerData(unix.RTN_LOCAL))
	return v
}

// fib returns the type of an address, or the interface of the route to it: perhaps only if that is the one that the packet
// comes in by.
func (s *statements) fib(e nft.Fib) value {
	length := nft.Concat{e}.Len()
	addr := s.walk.destination.Addr()
	if e.Saddr {
		addr = s.source.Addr()
	}
	if e.Result == nft.FibType && !e.Iif && !e.Oif {
		return s.addressType(addr)
	}
	r, why := s.findRoute(addr)
	name := r.Interface
	if e.Result == nft.FibType || len(s.host.Routes) == 0 || name == loopback || e.Oif || !addr.IsValid() || s.hook == nft.HookOutput ||
		why != "" || r.Type != "" || s.host.routesByMore() || r.Destination.IsValid() && name == "" {
		return unknown(length, e.String()+" is not known")
	}
	if e.Iif {
		in := s.incoming()
		if in.unknown != "" {
			return unknown(length, in.unknown)
		}
		if in.name != name {
			name = ""
		}
	}
	index, is := s.host.Interfaces[name]
	switch {
	case e.Result == nft.FibExists:
		return known(nft.IntegerData(uint32(min(len(name), 1))))
	case e.Result == nft.FibOifname:
		return known(append([]byte(name), make([]byte, unix.IFNAMSIZ-min(len(name), unix.IFNAMSIZ))...))
	case is || name == "":
		return known(nft.IntegerData(index))
	}
	return unknown(length, e.String()+" is not known")
}
