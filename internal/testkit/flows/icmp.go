package flows

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// notice is something that ICMP said about an exchange.
type notice struct {
	kind noticeKind
	// from is the source address of the message.
	from netip.Addr
	// text describes an error.
	text string
}

type noticeKind int

const (
	portUnreachable noticeKind = iota
	otherError
	echoArrived
	echoAnswered
)

// listener hears all ICMP that a host gets. A socket would tell its owner as well that it was
// refused, but not why: a TCP reset and an ICMP message look the same there, and a raw
// socket hears nothing.
type listener struct {
	conns []*net.IPConn

	// mu guards waiting.
	mu      sync.Mutex
	waiting map[exchange]chan notice
}

func newListener(h *lab.Host) (*listener, error) {
	e := &listener{waiting: map[exchange]chan notice{}}
	err := h.Do(func() error {
		for _, family := range []*icmpFamily{icmpv4, icmpv6} {
			if family == icmpv6 && !lab.HasIPv6 {
				continue
			}
			conn, err := net.ListenIP(family.network, nil)
			if err != nil {
				return err
			}
			e.conns = append(e.conns, conn)
			go e.hear(conn, family)
		}
		return nil
	})
	if err != nil {
		e.close()
		return nil, fmt.Errorf("host %s: listen to ICMP: %w", h.Name, err)
	}
	return e, nil
}

func (e *listener) close() {
	for _, conn := range e.conns {
		conn.Close()
	}
}

// await returns a channel of what will be heard about x, to be called before x is begun,
// and a function that ends it. Notices that nobody takes are lost, never waited for.
func (e *listener) await(x exchange) (<-chan notice, func()) {
	notices := make(chan notice, 8)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting[x] = notices
	return notices, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.waiting, x)
	}
}

func (e *listener) tell(x exchange, n notice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.waiting[x] <- n:
	default:
	}
}

// hear reads until conn is closed. Go takes the IPv4 header off; IPv6 never had one.
func (e *listener) hear(conn *net.IPConn, family *icmpFamily) {
	buffer := make([]byte, 2048)
	for {
		n, peer, err := conn.ReadFromIP(buffer)
		if err != nil {
			return
		}
		from, _ := netip.AddrFromSlice(peer.IP)
		e.understand(buffer[:n], family, from.Unmap())
	}
}

func (e *listener) understand(message []byte, family *icmpFamily, from netip.Addr) {
	if len(message) < icmpHeaderLen {
		return
	}
	kind, code := message[0], message[1]
	identifier := binary.BigEndian.Uint16(message[4:])
	switch {
	case slices.Contains(family.errors, kind):
		if x, ok := family.quoted(message[icmpHeaderLen:]); ok {
			e.tell(x, family.error(kind, code, from))
		}
	case kind == family.echoRequest:
		e.echo(identifier, notice{kind: echoArrived, from: from})
	case kind == family.echoAck:
		e.echo(identifier, notice{kind: echoAnswered, from: from})
	}
}

// echo notifies the sender that awaits an echo with the identifier, wherever the packet went: the
// sender wants to know of an answer from another address too.
func (e *listener) echo(identifier uint16, n notice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for x, notices := range e.waiting {
		if x.protocol != ICMP || x.port != identifier {
			continue
		}
		select {
		case notices <- n:
		default:
		}
	}
}

func (f *icmpFamily) error(kind, code uint8, from netip.Addr) notice {
	n := notice{kind: otherError, from: from, text: f.describe(kind, code)}
	if kind == f.unreachable && code == f.portCode {
		n.kind = portUnreachable
	}
	return n
}

// share passes what e hears about x on to whoever awaits it at other, and returns a function that ends it.
func (e *listener) share(x exchange, other *listener) func() {
	other.mu.Lock()
	notices := other.waiting[x]
	other.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting[x] = notices
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.waiting, x)
	}
}

// exchange names one connection attempt as its sender knows it. Source ports are never
// used twice, so the source address need not be part of it.
type exchange struct {
	protocol Protocol
	// port is the source port, or the identifier of an echo.
	port uint16
	to   netip.AddrPort
}

// icmpFamily has the values in which ICMP and ICMPv6 differ.
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
