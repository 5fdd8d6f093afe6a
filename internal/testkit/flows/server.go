package flows

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// service is a place where something is served.
type service struct {
	host     *lab.Host
	protocol Protocol
	at       netip.AddrPort
}

// answer is every server's answer to every client: the address that the client reached, and the client's address.
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

// answerTCP answers a connection.
func answerTCP(conn net.Conn) {
	fmt.Fprintln(conn, answer{addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr())})
}

// answerUDP returns what answers datagrams to at, and notes their tokens.
func answerUDP(at netip.AddrPort, arrived *arrivals) func(datagram []byte, from netip.AddrPort) []byte {
	return func(datagram []byte, from netip.AddrPort) []byte {
		var token uint32
		if _, err := fmt.Sscan(string(datagram), &token); err == nil {
			arrived.add(token, at)
		}
		return []byte(answer{at, unmap(from)}.String())
	}
}

func addrPort(addr net.Addr) netip.AddrPort {
	return unmap(netip.MustParseAddrPort(addr.String()))
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
