package evaluator

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// xtMatch runs a match of iptables-nft that is an extension of xtables. Those that are not modelled may match.
func (m *machine) xtMatch(e *expr.Match) result {
	t := maybe
	switch info := e.Info.(type) {
	case *xt.Comment:
		t = yes
	case *xt.ConntrackMtinfo3:
		t = m.conntrack(&info.ConntrackMtinfo2)
	case *xt.ConntrackMtinfo2:
		t = m.conntrack(info)
	case *xt.AddrType:
		t = m.addressTypes(info.Source, info.InvertSource, info.Dest, info.InvertDest)
	case *xt.AddrTypeV1:
		if limits := xt.AddrTypeFlags(1<<2 | 1<<3); info.Flags&limits == 0 {
			t = m.addressTypes(info.Source, info.Flags&1 != 0, info.Dest, info.Flags&2 != 0)
		}
	case *xt.Tcp:
		t = maybe
		if info.Option == 0 && info.FlagsMask == 0 {
			t = m.ports(info.SrcPorts, info.DstPorts, uint8(info.InvFlags))
		}
	case *xt.Udp:
		t = m.ports(info.SrcPorts, info.DstPorts, uint8(info.InvFlags))
	case *xt.Unknown:
		t = m.xtUnknown(e.Name, e.Rev, *info)
	}
	return result{matches: t}
}

// xtUnknown runs matches that google/nftables does not decode.
func (m *machine) xtUnknown(name string, revision uint32, info []byte) truth {
	switch {
	case name == "comment":
		return yes
	case slices.Contains([]string{"rt", "frag", "hbh", "dst", "ah", "esp", "mh"}, name):
		return no // the packet has no such header
	case name == "mark" && revision == 1 && len(info) >= 9:
		mark, mask := binary.NativeEndian.Uint32(info), binary.NativeEndian.Uint32(info[4:])
		return truthOf((m.mark&mask == mark) != (info[8] != 0))
	case name == "multiport" && revision == 1 && len(info) >= 48:
		return m.multiport(info)
	}
	return maybe
}

// conntrack compares the state. Other conditions are not modelled.
func (m *machine) conntrack(info *xt.ConntrackMtinfo2) truth {
	if info.MatchFlags&^uint16(xt.ConntrackState|xt.ConntrackStateAlias) != 0 {
		return maybe
	}
	// The masks have the bits of ct state, and those of a changed source and destination.
	state := uint16(expr.CtStateBitINVALID)
	if m.tracked {
		state = uint16(expr.CtStateBitNEW)
		if m.packet.Connection != nil {
			state = uint16(expr.CtStateBitESTABLISHED)
		}
		if m.changed[source] {
			state |= 1 << 6
		}
		if m.changed[destination] {
			state |= 1 << 7
		}
	}
	return truthOf((state&info.StateMask != 0) != (info.InvertFlags&uint16(xt.ConntrackState) != 0))
}

func (m *machine) addressTypes(from uint16, notFrom bool, to uint16, notTo bool) truth {
	is := func(addr netip.Addr, types uint16, not bool) bool {
		typ := unix.RTN_UNICAST
		switch {
		case types == 0:
			return true
		case !addr.IsValid() || m.host.isLocal(addr):
			typ = unix.RTN_LOCAL
		case addr.IsMulticast():
			typ = unix.RTN_MULTICAST
		}
		return (types&(1<<typ) != 0) != not
	}
	return truthOf(is(m.source.Addr(), from, notFrom) && is(m.walk.destination.Addr(), to, notTo))
}

// ports compares the ports with ranges. The bits of inverted say which one is inverted.
func (m *machine) ports(from, to [2]uint16, inverted uint8) truth {
	t := yes
	for i, part := range []struct {
		port  uint16
		is    [2]uint16
		whole bool
	}{{m.source.Port(), from, from == [2]uint16{0, 0xffff}}, {m.walk.destination.Port(), to, to == [2]uint16{0, 0xffff}}} {
		switch in := part.port >= part.is[0] && part.port <= part.is[1]; {
		case part.whole:
		case part.port == 0:
			t = min(t, maybe)
		default:
			t = min(t, truthOf(in != (inverted&(1<<i) != 0)))
		}
	}
	return t
}

// multiport reads struct xt_multiport_v1: kind, count, 15 ports, 15 marks of ranges, inverted.
func (m *machine) multiport(info []byte) truth {
	const bySource, byDestination = 0, 1
	ports := []uint16{m.source.Port(), m.walk.destination.Port()}
	if info[0] == bySource || info[0] == byDestination {
		ports = ports[info[0] : info[0]+1]
	}
	in := false
	for _, port := range ports {
		if port == 0 {
			return maybe
		}
		for i := 0; i < min(int(info[1]), 15); i++ {
			low := binary.NativeEndian.Uint16(info[2+2*i:])
			high := low
			if info[32+i] != 0 && i < 14 {
				i++
				high = binary.NativeEndian.Uint16(info[2+2*i:])
			}
			in = in || port >= low && port <= high
		}
	}
	return truthOf(in != (info[47] != 0))
}

// xtTarget runs a target of iptables-nft that is an extension of xtables.
func (m *machine) xtTarget(e *expr.Target) result {
	info, _ := e.Info.(*xt.Unknown)
	switch e.Name {
	case "LOG", "NFLOG", "TCPMSS", "CHECKSUM", "TRACE", "AUDIT", "CT", "SET", "CLASSIFY":
		return goesOn
	case "REJECT":
		return m.refuse()
	case "MASQUERADE":
		return result{matches: yes, verdict: nft.Accept, effect: m.masquerade}
	case "MARK":
		if e.Rev == 2 && info != nil && len(*info) >= 8 {
			mark, mask := binary.NativeEndian.Uint32(*info), binary.NativeEndian.Uint32((*info)[4:])
			return result{matches: yes, effect: func() { m.mark = m.mark&^mask ^ mark }}
		}
	case "DNAT", "SNAT":
		if r, ok := natRange(e.Info); ok {
			if to, ok := m.target(e.Name == "DNAT", r); ok {
				return m.translate(e.Name == "DNAT", to)
			}
		}
	}
	return result{matches: yes, undecided: "the target " + e.Name + " is not modelled"}
}

// natRange returns the range of addresses and ports of a target.
func natRange(info xt.InfoAny) (r xt.NatRange, ok bool) {
	switch info := info.(type) {
	case *xt.NatRange:
		return *info, true
	case *xt.NatRange2:
		return info.NatRange, true
	case *xt.NatIPv4MultiRangeCompat:
		if len(*info) == 1 {
			return xt.NatRange((*info)[0]), true
		}
	}
	return r, false
}

// target returns where a target translates to, if that is a single address and port.
func (m *machine) target(isDestination bool, r xt.NatRange) (to netip.AddrPort, ok bool) {
	to = m.source
	if isDestination {
		to = m.walk.destination
	}
	if xt.NatRangeFlags(r.Flags)&xt.NatRangeMapIPs != 0 {
		addr, valid := netip.AddrFromSlice(r.MinIP)
		if !valid || !r.MinIP.Equal(r.MaxIP) {
			return to, false
		}
		to = netip.AddrPortFrom(addr.Unmap(), to.Port())
	}
	if xt.NatRangeFlags(r.Flags)&xt.NatRangeProtoSpecified != 0 {
		if r.MinPort != r.MaxPort {
			return to, false
		}
		to = netip.AddrPortFrom(to.Addr(), r.MinPort)
	}
	return to, true
}
