package nft

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Data is a value as the kernel holds it in registers and set elements: addresses and
// ports in network byte order, marks and integers in the host's, every field of a
// concatenation padded with zeros to a multiple of four bytes. It is a string so that it
// can be compared and be a map key; it is not text.
type Data string

// AddrData returns addr as Data, four or sixteen bytes; empty if it is not valid. An IPv4 address that is mapped to
// IPv6 has sixteen: Unmap it first.
func AddrData(addr netip.Addr) Data {
	if !addr.IsValid() {
		return ""
	}
	var buf [16]byte
	return Data(AppendAddr(buf[:0], addr))
}

// PortData returns a transport port as Data, padded.
func PortData(port uint16) Data { return Data([]byte{byte(port >> 8), byte(port), 0, 0}) }

// ProtoData returns an IP protocol number as Data, padded.
func ProtoData(proto uint8) Data { return Data([]byte{proto, 0, 0, 0}) }

// IntegerData returns a host-endian integer, such as a numgen slot or a mark, as Data.
func IntegerData(v uint32) Data { return Data(binary.NativeEndian.AppendUint32(nil, v)) }

// AppendAddr, AppendProto, AppendPort and AppendInteger append to b the bytes that AddrData, ProtoData, PortData and
// IntegerData return. They are for code that makes so many keys that the cost of the strings in between counts.

// AppendAddr appends an address to b: four or sixteen bytes, or sixteen zeros if it is not valid.
func AppendAddr(b []byte, addr netip.Addr) []byte {
	if addr.Is4() {
		a := addr.As4()
		return append(b, a[:]...)
	}
	a := addr.As16()
	return append(b, a[:]...)
}

// AppendProto appends an IP protocol number to b, padded.
func AppendProto(b []byte, proto uint8) []byte { return append(b, proto, 0, 0, 0) }

// AppendPort appends a transport port to b, padded.
func AppendPort(b []byte, port uint16) []byte { return append(b, byte(port>>8), byte(port), 0, 0) }

// AppendInteger appends a host-endian integer to b.
func AppendInteger(b []byte, v uint32) []byte { return binary.NativeEndian.AppendUint32(b, v) }

// dataType is one of nft's data types: how its values are named, stored and printed.
type dataType struct {
	name   string
	id     uint32 // enum datatypes in nft's datatype.h; kept by the kernel for nft only
	length int    // bytes
	order  uint32 // byte order as in nft's userdata
	format func(string) string
	// pack returns a Go value as Data of that length. Its error says which values it takes.
	pack func(any) (Data, error)
}

// Byte orders in the userdata of a set (nft's enum byteorder).
const (
	orderNone = 0
	orderHost = 1
	orderBig  = 2
)

// verdictType is the data type that the kernel calls NFT_DATA_VERDICT.
const verdictType = 0xffffff00

var (
	typeInteger  = dataType{"integer", 4, 4, orderHost, formatInteger, packHostOrder}
	typeIPv4     = dataType{"ipv4_addr", 7, 4, orderBig, formatAddr, packAddr(netip.Addr.Is4)}
	typeIPv6     = dataType{"ipv6_addr", 8, 16, orderBig, formatAddr, packAddr(netip.Addr.Is6)}
	typeProto    = dataType{"inet_proto", 12, 1, orderBig, formatProto, packProto}
	typePort     = dataType{"inet_service", 13, 2, orderBig, formatPort, packPort}
	typeMark     = dataType{"mark", 19, 4, orderHost, formatMark, packHostOrder}
	typeCTState  = dataType{"ct_state", 26, 4, orderHost, formatFlags(ctStateNames), packHostOrder}
	typeCTStat   = dataType{"ct_status", 28, 4, orderHost, formatFlags(ctStatusNames), packHostOrder}
	typeFib      = dataType{"fib_addrtype", 40, 4, orderHost, formatAddrType, packHostOrder}
	typeByte     = dataType{"integer", 4, 1, orderBig, formatByte, packByte}
	typeTCPFlags = dataType{"tcp_flag", 15, 1, orderBig, formatTCPFlags, packByte}
	typeICMP     = dataType{"icmp_type", 14, 1, orderBig, formatICMP(icmpNames), packByte}
	typeICMPv6   = dataType{"icmpv6_type", 29, 1, orderBig, formatICMP(icmpv6Names), packByte}
	typeIfname   = dataType{"ifname", 41, 16, orderHost, formatIfname, packName}
)

// Types that only rules of other programs have.
var (
	typeEther     = dataType{"ether_addr", 9, 6, orderBig, func(b string) string { return net.HardwareAddr(b).String() }, packNothing}
	typeEtherType = dataType{"ether_type", 10, 2, orderBig, formatEtherType, packPort}
	typeNfproto   = dataType{"nf_proto", 2, 1, orderHost, func(b string) string { return cmp.Or(map[byte]string{2: "ipv4", 10: "ipv6"}[b[0]], formatByte(b)) }, packByte}
	typePresent   = dataType{"present", 0, 4, orderHost, formatPresent, packHostOrder}
)

func packNothing(any) (Data, error) { return "", errors.New("not for values of Go") }

func formatEtherType(b string) string {
	number := uint32(b[0])<<8 | uint32(b[1])
	return cmp.Or(map[uint32]string{unix.ETH_P_IP: "ip", unix.ETH_P_IPV6: "ip6", unix.ETH_P_ARP: "arp", unix.ETH_P_8021Q: "8021q"}[number], fmt.Sprintf("0x%04x", number))
}

func formatPresent(b string) string {
	if strings.Trim(b, "\x00") == "" {
		return "missing"
	}
	return "exists"
}

// typeBytes is the type of a value whose length alone is known.
func typeBytes(length int) dataType {
	return dataType{"", 0, length, orderNone, func(b string) string { return fmt.Sprintf("0x%x", b) }, packNothing}
}

// typeRaw is the type of payload that nft has no name for.
func typeRaw(length int) dataType {
	format := func(b string) string { return "0x" + cmp.Or(strings.TrimLeft(fmt.Sprintf("%x", b), "0"), "0") }
	pack := func(v any) (Data, error) {
		n, err := integer(v, 1<<(8*length)-1)
		return Data(binary.BigEndian.AppendUint64(nil, n)[8-length:]), err
	}
	if length > 4 {
		pack = func(any) (Data, error) { return "", fmt.Errorf("an integer of %d bytes cannot be compared", length) }
	}
	return dataType{"integer", 4, length, orderBig, format, pack}
}

func hostOrder(b string) uint32 { return binary.NativeEndian.Uint32([]byte(b)) }

func formatInteger(b string) string { return strconv.FormatUint(uint64(hostOrder(b)), 10) }

func formatMark(b string) string { return fmt.Sprintf("0x%08x", hostOrder(b)) }

func formatAddr(b string) string {
	addr, _ := netip.AddrFromSlice([]byte(b))
	return addr.String()
}

var protocolNames = map[uint32]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp", unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "ipv6-icmp"}

// ProtocolName returns the name of an IP protocol, such as "tcp" or "icmpv6"; "protocol 47" for one without a name here.
func ProtocolName(number uint8) string {
	name, known := protocolNames[uint32(number)]
	switch {
	case number == unix.IPPROTO_ICMPV6:
		return "icmpv6" // as in the names of fields; nft calls the number otherwise
	case known:
		return name
	}
	return "protocol " + strconv.Itoa(int(number))
}

func formatProto(b string) string { return formatName(uint32(b[0]), protocolNames) }

func formatByte(b string) string { return strconv.Itoa(int(b[0])) }

// Types of ICMP and ICMPv6 errors about packets that did not arrive.
const (
	ICMPDestinationUnreachable   = 3
	ICMPv6DestinationUnreachable = 1
	ICMPv6PacketTooBig           = 2
)

var (
	icmpNames   = map[uint32]string{ICMPDestinationUnreachable: "destination-unreachable"}
	icmpv6Names = map[uint32]string{ICMPv6DestinationUnreachable: "destination-unreachable", ICMPv6PacketTooBig: "packet-too-big"}
)

func formatICMP(names map[uint32]string) func(string) string {
	return func(b string) string { return formatName(uint32(b[0]), names) }
}

// TCPFlagSYN is the bit of TCPFlags that opens a connection.
const TCPFlagSYN = 2

var tcpFlagNames = map[uint32]string{
	1: "fin", TCPFlagSYN: "syn", 4: "rst", 8: "psh", 16: "ack", 32: "urg", 64: "ecn", 128: "cwr",
}

func formatTCPFlags(b string) string { return formatBits(uint32(b[0]), tcpFlagNames, ",") }

func formatPort(b string) string { return strconv.Itoa(int(b[0])<<8 | int(b[1])) }

func formatIfname(b string) string { return strconv.Quote(strings.TrimRight(b, "\x00")) }

func formatName(v uint32, names map[uint32]string) string {
	return cmp.Or(names[v], strconv.FormatUint(uint64(v), 10))
}

// Address types of the fib expression (RTN_* of the kernel's rtnetlink.h).
var addrTypeNames = map[uint32]string{
	unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast",
	unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast",
}

func formatAddrType(b string) string { return formatName(hostOrder(b), addrTypeNames) }

// Bits of ct state: a packet belongs to no connection and cannot open one, belongs to a connection that has seen
// packets in both directions, belongs to another connection (such as an ICMP error), or opens a connection.
const (
	CTStateInvalid     = 1 << 0
	CTStateEstablished = 1 << 1
	CTStateRelated     = 1 << 2
	CTStateNew         = 1 << 3
	// CTStateUntracked is for packets that a rule keeps from conntrack.
	CTStateUntracked = 1 << 6
)

// CTStatusSNAT and CTStatusDNAT are the bits of ct status that say that the source or the destination was translated.
const (
	CTStatusSNAT = 1 << 4
	CTStatusDNAT = 1 << 5
)

var (
	ctStateNames = map[uint32]string{
		CTStateInvalid: "invalid", CTStateEstablished: "established",
		CTStateRelated: "related", CTStateNew: "new", CTStateUntracked: "untracked",
	}
	ctStatusNames = map[uint32]string{
		1: "expected", 2: "seen-reply", 4: "assured", 8: "confirmed", CTStatusSNAT: "snat", CTStatusDNAT: "dnat", 512: "dying",
	}
)

// formatDuration prints whole milliseconds as nft does: "3h", "1d2h3m4s500ms".
func formatDuration(d time.Duration) string {
	var b strings.Builder
	for _, unit := range []struct {
		name   string
		length time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}} {
		if n := d / unit.length; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, unit.name)
			d -= n * unit.length
		}
	}
	if b.Len() == 0 {
		return "0s"
	}
	return b.String()
}

func formatFlags(names map[uint32]string) func(string) string {
	return func(b string) string { return formatBits(hostOrder(b), names, ",") }
}

// formatBits prints the names of the bits of v; if one has none, v as a number.
func formatBits(v uint32, names map[uint32]string, separator string) string {
	var words []string
	for bit := uint32(1); bit != 0; bit <<= 1 {
		if v&bit == 0 {
			continue
		}
		name, ok := names[bit]
		if !ok {
			return fmt.Sprintf("0x%08x", v)
		}
		words = append(words, name)
	}
	return strings.Join(words, separator)
}
