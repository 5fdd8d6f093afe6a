package flows

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// exchange names one connection attempt as its sender knows it. Source ports are never
// used twice, so the source address need not be part of it.
type exchange struct {
	protocol Protocol
	// port is the source port, or the identifier of an echo.
	port uint16
	to   netip.AddrPort
}

// icmpFamily is what ICMP and ICMPv6 do not have in common.
type icmpFamily struct {
	network              string
	echoRequest, echoAck uint8
	// errors are the types that report an error, and quote the packet that caused it.
	errors []uint8
	// unreachable and portCode are the type and code that say that nothing serves a port.
	unreachable, portCode uint8
}

var (
	icmpv4 = &icmpFamily{network: "ip4:icmp", echoRequest: 8, echoAck: 0, errors: []uint8{3, 4, 5, 11, 12}, unreachable: 3, portCode: 3}
	icmpv6 = &icmpFamily{network: "ip6:ipv6-icmp", echoRequest: 128, echoAck: 129, errors: []uint8{1, 2, 3, 4}, unreachable: 1, portCode: 4}
)

func icmpOf(addr netip.Addr) *icmpFamily {
	if addr.Is4() {
		return icmpv4
	}
	return icmpv6
}

const icmpHeaderLen = 8

// echo returns an echo request. The kernel fills in the checksum of ICMPv6 only.
func (f *icmpFamily) echo(identifier uint16) []byte {
	b := make([]byte, icmpHeaderLen)
	b[0] = f.echoRequest
	binary.BigEndian.PutUint16(b[4:], identifier)
	binary.BigEndian.PutUint16(b[6:], 1)
	if f == icmpv4 {
		binary.BigEndian.PutUint16(b[2:], internetChecksum(b))
	}
	return b
}

func internetChecksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// describe names an error the way people do who read packet captures.
func (f *icmpFamily) describe(kind, code uint8) string {
	name := "ICMP"
	if f == icmpv6 {
		name = "ICMPv6"
	}
	return fmt.Sprintf("%s type %d code %d", name, kind, code)
}

// quoted returns the exchange that the packet belongs to which an ICMP error quotes.
func (f *icmpFamily) quoted(packet []byte) (exchange, bool) {
	if f == icmpv4 {
		return quotedIPv4(packet)
	}
	return quotedIPv6(packet)
}

func quotedIPv4(packet []byte) (exchange, bool) {
	if len(packet) < 20 {
		return exchange{}, false
	}
	headerLen := int(packet[0]&0xf) * 4
	if headerLen < 20 || len(packet) < headerLen {
		return exchange{}, false
	}
	to := netip.AddrFrom4([4]byte(packet[16:20]))
	return quotedTransport(packet[9], to, packet[headerLen:])
}

// quotedIPv6 knows no extension headers: nothing here sends any.
func quotedIPv6(packet []byte) (exchange, bool) {
	if len(packet) < 40 {
		return exchange{}, false
	}
	to := netip.AddrFrom16([16]byte(packet[24:40]))
	return quotedTransport(packet[6], to, packet[40:])
}

func quotedTransport(number uint8, to netip.Addr, header []byte) (exchange, bool) {
	if len(header) < 8 {
		return exchange{}, false
	}
	protocol, known := map[uint8]Protocol{1: ICMP, 6: TCP, 17: UDP, 58: ICMP, 132: SCTP}[number]
	if protocol == ICMP {
		return exchange{ICMP, binary.BigEndian.Uint16(header[4:]), netip.AddrPortFrom(to, 0)}, known
	}
	port := binary.BigEndian.Uint16(header[2:])
	return exchange{protocol, binary.BigEndian.Uint16(header), netip.AddrPortFrom(to, port)}, known
}
