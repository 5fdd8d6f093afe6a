package flows

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/nftproxy/nftproxy/integration/lab"
)

// service is a place where something is served.
type service struct {
	host     *lab.Host
	protocol Protocol
	at       netip.AddrPort
}

// answer is what every server says to every client: where it was reached, and by whom.
type answer struct {
	reached, peer netip.AddrPort
}

func (a answer) String() string {
	return a.reached.String() + " " + a.peer.String()
}

func parseAnswer(text string) (answer, error) {
	reached, peer, _ := strings.Cut(strings.TrimSpace(text), " ")
	var a answer
	var err1, err2 error
	a.reached, err1 = netip.ParseAddrPort(reached)
	a.peer, err2 = netip.ParseAddrPort(peer)
	if err := errors.Join(err1, err2); err != nil {
		return answer{}, fmt.Errorf("%q is not an answer: %w", text, err)
	}
	return a, nil
}

// arrivals remembers what reached a server, by the token that each attempt carries. An
// attempt that got no answer looks there whether it was really stopped on its way.
type arrivals struct {
	// mu guards reached.
	mu      sync.Mutex
	reached map[uint32]netip.AddrPort
}

func (a *arrivals) add(token uint32, at netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reached[token] = at
}

func (a *arrivals) find(token uint32) (netip.AddrPort, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.reached[token]
	return at, ok
}

// serveTCP answers every connection to at and ends it. It must be called inside the host.
func serveTCP(at netip.AddrPort) (*net.TCPListener, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				a := answer{addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr())}
				fmt.Fprintln(conn, a)
			}()
		}
	}()
	return listener.(*net.TCPListener), nil
}

// serveUDP answers every datagram to at. It must be called inside the host.
func serveUDP(at netip.AddrPort, arrived *arrivals) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	go func() {
		buffer := make([]byte, 64)
		for {
			n, peer, err := conn.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			var token uint32
			if _, err := fmt.Sscan(string(buffer[:n]), &token); err == nil {
				arrived.add(token, at)
			}
			fmt.Fprint(writerTo{conn, peer}, answer{at, unmap(peer)})
		}
	}()
	return conn, nil
}

// writerTo makes one peer of a UDP socket an io.Writer.
type writerTo struct {
	conn *net.UDPConn
	peer netip.AddrPort
}

func (w writerTo) Write(b []byte) (int, error) {
	return w.conn.WriteToUDPAddrPort(b, w.peer)
}

func addrPort(addr net.Addr) netip.AddrPort {
	return unmap(netip.MustParseAddrPort(addr.String()))
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
