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

// echo tells whoever awaits an echo by its identifier, wherever it went: that an answer comes from
// elsewhere is just what they want to know.
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
