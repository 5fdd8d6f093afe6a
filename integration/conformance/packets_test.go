package conformance

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// packets hears the TCP segments that a pod gets, and sends others in its name.
type packets struct {
	pod   *pod
	conns map[bool]*net.IPConn // by whether it is IPv4

	mu sync.Mutex
	// heard is the last segment from each peer.
	heard map[netip.AddrPort]segment
}

// segment has two numbers of a TCP segment (RFC 9293, section 3.1): the sequence number that
// comes next, and the one that its receiver is to send next.
type segment struct{ next, acknowledged uint32 }

const (
	tcpHeaderLen = 20
	flagACK      = 1 << 4
)

// Where a segment may be that is outside of the window: it was in a queue for too long, or it
// is ahead of what its receiver is ready for.
const (
	late  = -100000
	ahead = 1 << 28
)

// listensToTCP returns the packets of the pod.
func (p *pod) listensToTCP() *packets {
	p.c.t.Helper()
	w := &packets{pod: p, conns: map[bool]*net.IPConn{}, heard: map[netip.AddrPort]segment{}}
	for _, addr := range []netip.Addr{p.addrs.IPv4, p.addrs.IPv6} {
		network := "ip6:tcp"
		if addr.Is4() {
			network = "ip4:tcp"
		}
		var conn *net.IPConn
		if err := p.host.Do(func() (err error) {
			conn, err = net.ListenIP(network, &net.IPAddr{IP: addr.AsSlice()})
			return err
		}); err != nil {
			p.c.t.Fatal(err)
		}
		p.c.t.Cleanup(func() { conn.Close() })
		w.conns[addr.Is4()] = conn
		go w.listen(conn)
	}
	return w
}

func (w *packets) listen(conn *net.IPConn) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFromIP(buffer)
		if err != nil {
			return
		}
		if n < tcpHeaderLen {
			continue
		}
		addr, _ := netip.AddrFromSlice(from.IP)
		peer := netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(buffer))
		payload := n - int(buffer[12]>>4)*4
		w.mu.Lock()
		w.heard[peer] = segment{binary.BigEndian.Uint32(buffer[4:]) + uint32(payload), binary.BigEndian.Uint32(buffer[8:])}
		w.mu.Unlock()
	}
}

// strays sends a segment on each connection that is off by so many bytes.
func (w *packets) strays(l *lasting, off int32) {
	w.pod.c.t.Helper()
	for _, conn := range l.conns {
		client := addrPort(conn.LocalAddr())
		w.pod.c.eventually("the pod hears its client", func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if _, ok := w.heard[client]; !ok {
				return fmt.Errorf("nothing from %s", client)
			}
			return nil
		})
		w.mu.Lock()
		last := w.heard[client]
		w.mu.Unlock()
		stray := w.marshal(client, last.acknowledged+uint32(off), last.next)
		if _, err := w.conns[client.Addr().Is4()].WriteToIP(stray, &net.IPAddr{IP: client.Addr().AsSlice()}); err != nil {
			w.pod.c.t.Fatal(err)
		}
	}
}

// marshal makes a segment from the pod's web server to client.
func (w *packets) marshal(client netip.AddrPort, sequence, acknowledged uint32) []byte {
	b := make([]byte, tcpHeaderLen, tcpHeaderLen+4)
	binary.BigEndian.PutUint16(b, web)
	binary.BigEndian.PutUint16(b[2:], client.Port())
	binary.BigEndian.PutUint32(b[4:], sequence)
	binary.BigEndian.PutUint32(b[8:], acknowledged)
	b[12], b[13] = tcpHeaderLen/4<<4, flagACK
	binary.BigEndian.PutUint16(b[14:], 1<<15)
	b = append(b, "boom"...)
	binary.BigEndian.PutUint16(b[16:], tcpChecksum(w.pod.addrs.Like(client.Addr()), client.Addr(), b))
	return b
}

// tcpChecksum is the checksum of a segment whose own is zero. The pseudo header sums up alike in both families.
func tcpChecksum(source, destination netip.Addr, b []byte) uint16 {
	sum := uint32(6 + len(b)) // The protocol number and the length.
	for _, part := range [][]byte{source.AsSlice(), destination.AsSlice(), b} {
		for ; len(part) > 1; part = part[2:] {
			sum += uint32(binary.BigEndian.Uint16(part))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
