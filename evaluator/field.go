package evaluator

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// field returns the current value of a field.
func (s *statements) field(f nft.Field) value {
	if p, is := f.Payload(); is {
		if !f.InFamily(s.walk.family) {
			return unknownValue(f, fmt.Sprintf("packets of family %s have no %s", s.walk.family, f))
		}
		return s.payload(p)
	}
	if of := metadata[f]; of != nil {
		return of(s)
	}
	of := connections[f]
	switch {
	case of == nil:
		return unknownValue(f, f.String()+" is not known")
	case s.Family == nft.FamilyBridge:
		return unknownValue(f, "connection tracking of bridges is not modelled")
	case f != nft.CTState && (s.untracked || !s.tracked):
		return value{absent: true}
	}
	return of(s)
}

// metadata has the functions that return fields of neither the packet's headers nor its connection.
var metadata = map[nft.Field]func(*statements) value{
	nft.MetaL4proto: (*statements).protocol,
	nft.MetaMark: func(s *statements) value {
		return integer(s.mark.bits, s.mark.unknown, "the mark of the packet is not known")
	},
	nft.MetaNfproto: func(s *statements) value {
		if s.Family.Routes() {
			return known([]byte{byte(s.walk.family)})
		}
		return known([]byte{byte(s.Family)})
	},
	nft.MetaProtocol: (*statements).etherType,
	nft.MetaPkttype: func(s *statements) value {
		if s.atDevice || s.walk.destination.Addr().IsMulticast() {
			return unknown(1, "the kind of the frame is not known")
		}
		return known([]byte{unix.PACKET_HOST})
	},
	nft.MetaIifname:  func(s *statements) value { return s.ifname(nft.MetaIifname, s.incoming()) },
	nft.MetaIif:      func(s *statements) value { return s.ifname(nft.MetaIif, s.incoming()) },
	nft.MetaOifname:  func(s *statements) value { return s.ifname(nft.MetaOifname, s.oif) },
	nft.MetaOif:      func(s *statements) value { return s.ifname(nft.MetaOif, s.oif) },
	nft.FibSaddrType: func(s *statements) value { return s.addressType(s.source.Addr()) },
	nft.FibDaddrType: func(s *statements) value { return s.addressType(s.walk.destination.Addr()) },
}

// connections has the functions that return fields of the packet's connection. Without a connection, there is only a state.
var connections = map[nft.Field]func(*statements) value{
	nft.CTState: func(s *statements) value { return known(nft.IntegerData(s.ctState())) },
	nft.CTStatus: func(s *statements) value {
		return integer(s.ctStatus(), ^uint32(nft.CTStatusDNAT|nft.CTStatusSNAT), "the evaluator knows no ct status but snat and dnat")
	},
	nft.CTMark: func(s *statements) value {
		if s.packet.Connection != nil {
			return unknown(4, "ct mark is not known")
		}
		return integer(s.ctMark.bits, s.ctMark.unknown, "the mark of the connection is not known")
	},
	nft.CTZone:             func(*statements) value { return known([]byte{0, 0}) }, // a rule that sets the zone ends the walk
	nft.CTDirection:        func(*statements) value { return known([]byte{0}) },
	nft.CTOriginalIPDaddr:  func(s *statements) value { return s.address(s.packet.Destination.Addr()) },
	nft.CTOriginalIP6Daddr: func(s *statements) value { return s.address(s.packet.Destination.Addr()) },
	nft.CTOriginalIPSaddr:  func(s *statements) value { return s.address(s.packet.Source.Addr()) },
	nft.CTOriginalIP6Saddr: func(s *statements) value { return s.address(s.packet.Source.Addr()) },
	nft.CTOriginalProtoDst: func(s *statements) value { return s.port(s.packet.Destination.Port(), unknownDestinationPort) },
	nft.CTOriginalProtoSrc: func(s *statements) value { return s.port(s.packet.Source.Port(), UnknownSourcePort) },
	nft.CTReplyProtoSrc:    func(s *statements) value { return s.port(s.answerer().Port(), unknownDestinationPort) },
	nft.CTReplyIPSaddr:     func(s *statements) value { return s.address(s.answerer().Addr()) },
	nft.CTReplyIP6Saddr:    func(s *statements) value { return s.address(s.answerer().Addr()) },
}

func (w *walk) ctState() uint32 {
	switch {
	case w.untracked:
		return nft.CTStateUntracked
	case !w.tracked:
		return nft.CTStateInvalid
	case w.packet.Connection != nil && !w.packet.Connection.Unanswered:
		return nft.CTStateEstablished
	}
	return nft.CTStateNew
}

func (w *walk) ctStatus() uint32 {
	var status uint32
	if w.changed[destination] {
		status |= nft.CTStatusDNAT
	}
	if w.changed[source] {
		status |= nft.CTStatusSNAT
	}
	return status
}

// answerer returns the address that answers the connection, as far as the walk has decided yet.
func (w *walk) answerer() netip.AddrPort {
	if c := w.packet.Connection; c != nil && w.changed[destination] {
		return c.Destination
	}
	return w.destination
}

// address returns an address as a value. If it is not known, masquerading chose it.
func (w *walk) address(addr netip.Addr) value {
	if !addr.IsValid() {
		return unknown(w.destination.Addr().BitLen()/8, "the source address after masquerading towards "+w.destination.Addr().String()+" is not known")
	}
	return known(nft.AddrData(addr))
}

// port returns the value of a port field. If the protocol has no ports, it is unknown: the kernel reads whatever bytes
// are in their place.
func (w *walk) port(port uint16, why NotKnown) value {
	switch {
	case !hasPorts(w.packet.Protocol):
		why = NotKnown(nft.ProtocolName(w.packet.Protocol) + " has no ports")
	case port != 0:
		return known(binary.BigEndian.AppendUint16(nil, port))
	}
	return unknown(2, string(why))
}

// etherType is the protocol of an Ethernet frame with the packet.
func (s *statements) etherType() value {
	if s.walk.family == nft.FamilyIP6 {
		return known(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IPV6))
	}
	return known(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
}

// part describes some bytes of a header and returns their value. In packets of another protocol the part has no value.
type part struct {
	base nft.PayloadBase
	// family has the header; 0 for both.
	family     nft.Family
	at, length uint32
	of         func(*statements) value
}

// headers are the known parts of all headers. A later part takes the place of an earlier one.
var headers = []part{
	{nft.LinkHeader, 0, 12, 2, (*statements).etherType},

	{nft.NetworkHeader, nft.FamilyIP, 0, 1, func(*statements) value { return known([]byte{4<<4 | 5}) }}, // the version, and the length without options
	{nft.NetworkHeader, nft.FamilyIP, 6, 2, func(*statements) value {
		return value{data: []byte{0, 0}, known: []byte{0x3f, 0xff}, why: "whether the packet may be fragmented is not known"}
	}},
	{nft.NetworkHeader, nft.FamilyIP, 8, 1, (*statements).hopLimit},
	{nft.NetworkHeader, nft.FamilyIP, 9, 1, (*statements).protocol},
	{nft.NetworkHeader, nft.FamilyIP, 12, 4, func(s *statements) value { return s.address(s.source.Addr()) }},
	{nft.NetworkHeader, nft.FamilyIP, 16, 4, func(s *statements) value { return s.address(s.walk.destination.Addr()) }},

	{nft.NetworkHeader, nft.FamilyIP6, 6, 1, (*statements).protocol},
	{nft.NetworkHeader, nft.FamilyIP6, 7, 1, (*statements).hopLimit},
	{nft.NetworkHeader, nft.FamilyIP6, 8, 16, func(s *statements) value { return s.address(s.source.Addr()) }},
	{nft.NetworkHeader, nft.FamilyIP6, 24, 16, func(s *statements) value { return s.address(s.walk.destination.Addr()) }},

	{nft.TransportHeader, 0, 0, 2, func(s *statements) value { return s.port(s.source.Port(), UnknownSourcePort) }},
	{nft.TransportHeader, 0, 2, 2, func(s *statements) value { return s.port(s.walk.destination.Port(), unknownDestinationPort) }},
	{nft.TransportHeader, 0, 0, 2, (*statements).icmpType},
	{nft.TransportHeader, 0, 13, 1, (*statements).tcpFlags},
}

// payload returns a part of the packet's headers.
func (s *statements) payload(p nft.Payload) value {
	if p.Length > 64 || p.Offset > 1<<16 {
		return unknown(int(min(p.Length, 64)), notModelled(p))
	}
	out := unknown(int(p.Length), "")
	for _, part := range headers {
		if part.base != p.Base || part.family != 0 && part.family != s.walk.family || part.at >= p.Offset+p.Length || p.Offset >= part.at+part.length {
			continue
		}
		v := part.of(s)
		for i := range min(int(part.length), len(v.data)) {
			if at := int(part.at) + i - int(p.Offset); at >= 0 && at < int(p.Length) {
				out.data[at], out.known[at] = v.data[i], v.known[i]
				if v.why != "" {
					out.why = v.why
				}
			}
		}
	}
	for i := int(p.Length); i < len(out.known); i++ { // padding
		out.known[i] = 0xff
	}
	if out.why == "" && !allOnes(out.known) { // each rule of a firewall comes here: no text that nobody reads
		out.why = notModelled(p)
	}
	return out
}

func notModelled(p nft.Payload) string { return "the evaluator does not model " + p.String() }

func (s *statements) protocol() value { return known([]byte{s.packet.Protocol}) }

func (s *statements) hopLimit() value {
	if !s.hopsSet && s.lenient() {
		return unknown(1, "how far the packet has come is not known")
	}
	return known([]byte{s.hops})
}

// icmpType returns type and code of an echo request, the message that begins a connection. ICMP errors belong to other
// connections.
func (s *statements) icmpType() value {
	const echoRequest, echoRequestV6 = 8, 128
	switch {
	case s.packet.Connection != nil:
	case s.packet.Protocol == unix.IPPROTO_ICMP:
		return known([]byte{echoRequest, 0})
	case s.packet.Protocol == unix.IPPROTO_ICMPV6:
		return known([]byte{echoRequestV6, 0})
	}
	return value{}
}

func (s *statements) tcpFlags() value {
	const aboutConnection = 0x3f // the others are about congestion
	switch {
	case s.packet.Protocol != unix.IPPROTO_TCP:
		return value{}
	case s.packet.Connection != nil:
		return unknown(1, "the flags of later packets are not known")
	}
	return value{data: []byte{nft.TCPFlagSYN}, known: []byte{aboutConnection}, why: "flags about congestion are not known"}
}
