package flows

import (
	"errors"
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
