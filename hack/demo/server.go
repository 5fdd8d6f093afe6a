package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// The ports that every pod serves, as the manifests have them.
const (
	webPort = 8080
	logPort = 5140
)

// server is what runs in a pod. It tells every client where it was reached and whom it
// saw, and then sends back what it gets.
type server struct {
	host    *lab.Host
	sockets []io.Closer
}

func serve(host *lab.Host, addrs []netip.Addr) (*server, error) {
	s := &server{host: host}
	for _, addr := range addrs {
		if err := s.listen(addr); err != nil {
			s.close()
			return nil, fmt.Errorf("pod %s: %w", host.Name, err)
		}
	}
	return s, nil
}

func (s *server) listen(addr netip.Addr) error {
	web, err := s.host.ServeTCP(netip.AddrPortFrom(addr, webPort).String(), func(conn net.Conn) {
		fmt.Fprintln(conn, conn.LocalAddr(), conn.RemoteAddr())
		// It ends when the client goes, which is no error worth telling.
		_, _ = io.Copy(conn, conn)
	})
	if err != nil {
		return err
	}
	s.sockets = append(s.sockets, web)
	at := netip.AddrPortFrom(addr, logPort)
	log, err := s.host.AnswerUDP(at, func(_ []byte, from netip.AddrPort) []byte { return fmt.Appendln(nil, at, from) })
	if err != nil {
		return err
	}
	s.sockets = append(s.sockets, log)
	return nil
}

func (s *server) close() {
	for _, socket := range s.sockets {
		socket.Close()
	}
}
