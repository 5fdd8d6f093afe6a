package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/nftproxy/nftproxy/integration/lab"
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
	err := host.Do(func() error {
		for _, addr := range addrs {
			if err := s.listen(addr); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("pod %s: %w", host.Name, err)
	}
	return s, nil
}

func (s *server) listen(addr netip.Addr) error {
	web, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, webPort)))
	if err != nil {
		return err
	}
	s.sockets = append(s.sockets, web)
	log, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, logPort)))
	if err != nil {
		return err
	}
	s.sockets = append(s.sockets, log)
	go answerConnections(web)
	go answerDatagrams(log)
	return nil
}

func (s *server) close() {
	for _, socket := range s.sockets {
		socket.Close()
	}
}

func answerConnections(listener *net.TCPListener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			fmt.Fprintln(conn, conn.LocalAddr(), conn.RemoteAddr())
			// It ends when the client goes, which is no error worth telling.
			_, _ = io.Copy(conn, conn)
		}()
	}
}

func answerDatagrams(conn *net.UDPConn) {
	for {
		_, peer, err := conn.ReadFromUDPAddrPort(make([]byte, 64))
		if err != nil {
			return
		}
		_, _ = conn.WriteToUDPAddrPort(fmt.Appendln(nil, conn.LocalAddr(), peer), peer)
	}
}
