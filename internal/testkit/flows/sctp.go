package flows

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// sctpServer answers for all SCTP ports of one address, as a kernel with SCTP would: with
// an INIT ACK where something is served and an ABORT elsewhere.
type sctpServer struct {
	addr    netip.Addr
	conn    *net.IPConn
	arrived *arrivals

	// mu guards ports.
	mu    sync.Mutex
	ports map[uint16]bool
}

// serveSCTP must be called inside the host that has addr.
func serveSCTP(addr netip.Addr, arrived *arrivals) (*sctpServer, error) {
	conn, err := net.ListenIP(sctpNetwork(addr), &net.IPAddr{IP: addr.AsSlice()})
	if err != nil {
		return nil, err
	}
	if addr.Is6() {
		if err := tellDestination(conn); err != nil {
			conn.Close()
			return nil, err
		}
	}
	s := &sctpServer{addr: addr, conn: conn, arrived: arrived, ports: map[uint16]bool{}}
	go s.serve()
	return s, nil
}

func (s *sctpServer) open(port uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports[port] = true
}

func (s *sctpServer) serves(port uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ports[port]
}

func (s *sctpServer) serve() {
	buffer, control := make([]byte, 2048), make([]byte, 128)
	for {
		n, controlLen, _, peer, err := s.conn.ReadMsgIP(buffer, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || !s.mine(buffer[:n], control[:controlLen]) {
			continue
		}
		packet, ok := parseSCTP(s.payload(buffer[:n]))
		if !ok || packet.chunk != chunkInit {
			continue
		}
		s.conn.WriteToIP(s.reply(packet, ipAddr(peer)).marshal(), peer)
	}
}

// mine reports whether a message was sent to the server's address. In the instant before it was bound
// to that, the socket got what came for other addresses of the host as well.
func (s *sctpServer) mine(message, control []byte) bool {
	if s.addr.Is4() {
		return len(message) >= 20 && netip.AddrFrom4([4]byte(message[16:20])) == s.addr
	}
	parts, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(parts) != 1 || len(parts[0].Data) < 16 {
		return false
	}
	return netip.AddrFrom16([16]byte(parts[0].Data[:16])) == s.addr
}

// payload takes off the header that a raw IPv4 socket hands over; an IPv6 one does not.
func (s *sctpServer) payload(message []byte) []byte {
	if s.addr.Is6() {
		return message
	}
	return message[min(int(message[0]&0xf)*4, len(message)):]
}

// tellDestination makes an IPv6 socket say where messages were sent to.
func tellDestination(conn *net.IPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = raw.Control(func(fd uintptr) {
		failure = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	return errors.Join(err, failure)
}

func (s *sctpServer) reply(init sctpPacket, peer netip.Addr) sctpPacket {
	reply := sctpPacket{source: init.destination, destination: init.source, tag: init.initTag, chunk: chunkAbort}
	if !s.serves(init.destination) {
		return reply
	}
	at := netip.AddrPortFrom(s.addr, init.destination)
	s.arrived.add(init.initTag, at)
	reply.chunk, reply.initTag = chunkInitAck, init.initTag
	reply.cookie = answer{at, netip.AddrPortFrom(peer, init.source)}.String()
	return reply
}

func sctpNetwork(addr netip.Addr) string {
	if addr.Is4() {
		return "ip4:132"
	}
	return "ip6:132"
}

func ipAddr(addr *net.IPAddr) netip.Addr {
	parsed, _ := netip.AddrFromSlice(addr.IP)
	return parsed.Unmap()
}

// An SCTP association is opened with two chunks, which is all of SCTP that is spoken here:
// it tells where a packet ends and how it got there, without the kernel having SCTP (RFC 9260).
const (
	chunkInit    = 1
	chunkInitAck = 2
	chunkAbort   = 6

	// parameterCookie is the field of an INIT ACK that may hold anything: here, the answer.
	parameterCookie = 7
)

const (
	sctpHeaderLen = 12
	chunkInitLen  = 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpPacket is a packet with one chunk.
type sctpPacket struct {
	source, destination uint16
	// tag is the one that the receiver told the sender to put into its packets, 0 in an INIT.
	tag   uint32
	chunk uint8
	// initTag is the tag that the sender of an INIT or INIT ACK wants to see.
	initTag uint32
	cookie  string
}

func (p sctpPacket) marshal() []byte {
	length := 4
	if p.chunk != chunkAbort {
		length = chunkInitLen
	}
	if p.cookie != "" {
		length += 4 + len(p.cookie)
	}
	b := make([]byte, sctpHeaderLen+(length+3)/4*4)
	binary.BigEndian.PutUint16(b[0:], p.source)
	binary.BigEndian.PutUint16(b[2:], p.destination)
	binary.BigEndian.PutUint32(b[4:], p.tag)
	chunk := b[sctpHeaderLen:]
	chunk[0] = p.chunk
	binary.BigEndian.PutUint16(chunk[2:], uint16(length))
	if p.chunk != chunkAbort {
		p.putInit(chunk)
	}
	binary.LittleEndian.PutUint32(b[8:], sctpChecksum(b))
	return b
}

// putInit fills in what INIT and INIT ACK have in common.
func (p sctpPacket) putInit(chunk []byte) {
	binary.BigEndian.PutUint32(chunk[4:], p.initTag)
	binary.BigEndian.PutUint32(chunk[8:], 1<<16)
	binary.BigEndian.PutUint16(chunk[12:], 1)
	binary.BigEndian.PutUint16(chunk[14:], 1)
	binary.BigEndian.PutUint32(chunk[16:], p.initTag)
	if p.cookie != "" {
		parameter := chunk[chunkInitLen:]
		binary.BigEndian.PutUint16(parameter[0:], parameterCookie)
		binary.BigEndian.PutUint16(parameter[2:], uint16(4+len(p.cookie)))
		copy(parameter[4:], p.cookie)
	}
}

// parseSCTP reports false for what an SCTP stack would ignore, a wrong checksum above all:
// whoever rewrites ports has to mend it.
func parseSCTP(b []byte) (sctpPacket, bool) {
	if len(b) < sctpHeaderLen+4 || binary.LittleEndian.Uint32(b[8:]) != sctpChecksum(b) {
		return sctpPacket{}, false
	}
	p := sctpPacket{
		source:      binary.BigEndian.Uint16(b[0:]),
		destination: binary.BigEndian.Uint16(b[2:]),
		tag:         binary.BigEndian.Uint32(b[4:]),
		chunk:       b[sctpHeaderLen],
	}
	chunk := b[sctpHeaderLen:]
	length := int(binary.BigEndian.Uint16(chunk[2:]))
	if length < 4 || length > len(chunk) {
		return sctpPacket{}, false
	}
	if p.chunk != chunkInit && p.chunk != chunkInitAck {
		return p, true
	}
	if length < chunkInitLen {
		return sctpPacket{}, false
	}
	p.initTag = binary.BigEndian.Uint32(chunk[4:])
	p.cookie = parseCookie(chunk[chunkInitLen:length])
	return p, true
}

// parseCookie returns the cookie that is the first parameter of a chunk, empty when there is none.
func parseCookie(parameter []byte) string {
	if len(parameter) < 4 || binary.BigEndian.Uint16(parameter) != parameterCookie {
		return ""
	}
	length := int(binary.BigEndian.Uint16(parameter[2:]))
	if length < 4 || length > len(parameter) {
		return ""
	}
	return string(parameter[4:length])
}

// sctpChecksum is computed as if the checksum field were zero.
func sctpChecksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:8])
	sum = crc32.Update(sum, castagnoli, []byte{0, 0, 0, 0})
	return crc32.Update(sum, castagnoli, b[12:])
}
