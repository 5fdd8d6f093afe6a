package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// maxClients bounds the TCP connections, or UDP clients, of a frontend. Further connections wait; datagrams are lost.
const maxClients = 1024

// server is an open frontend.
type server struct {
	io.Closer
	at     netip.AddrPort
	target atomic.Pointer[target]
	// mu guards flows: each UDP client's socket to its endpoint.
	mu    sync.Mutex
	flows map[netip.AddrPort]*net.UDPConn
}

// anyAddress lets sockets listen on addresses that no interface has.
var anyAddress = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
	if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }); e != nil {
		return e
	}
	return err
}}

func (s *server) listen(protocol model.Protocol) (err error) {
	if protocol == model.UDP {
		if s.Closer, err = anyAddress.ListenPacket(context.Background(), "udp", s.at.String()); err == nil {
			go s.forward(s.Closer.(*net.UDPConn))
		}
		return err
	}
	if s.Closer, err = anyAddress.Listen(context.Background(), "tcp", s.at.String()); err == nil {
		go s.accept(s.Closer.(*net.TCPListener))
	}
	return err
}

func (s *server) accept(l *net.TCPListener) {
	for slots := make(chan struct{}, maxClients); ; {
		slots <- struct{}{}
		client, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond) // out of file descriptors, for example
			<-slots
			continue
		}
		go func() {
			s.relay(client)
			<-slots
		}()
	}
}

// relay connects a client with an endpoint until both have ended.
func (s *server) relay(client *net.TCPConn) {
	defer client.Close()
	chosen := s.target.Load().choose(addrPort(client.RemoteAddr()).Addr(), s.at.Addr())
	if !chosen.IsValid() {
		return
	}
	endpoint, err := net.DialTimeout("tcp", chosen.String(), 10*time.Second)
	if err != nil {
		return
	}
	defer endpoint.Close()
	var both sync.WaitGroup
	both.Go(func() { pass(client, endpoint.(*net.TCPConn)) })
	both.Go(func() { pass(endpoint.(*net.TCPConn), client) })
	both.Wait()
}

// pass copies what comes, and then says that no more comes.
func pass(from, to *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close() // the other direction ends too
	}
	to.CloseWrite()
}

func addrPort(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

// forward passes on what UDP clients send, until the frontend is closed.
func (s *server) forward(conn *net.UDPConn) {
	buffer := make([]byte, 1<<16)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if flow := s.flow(conn, client); err == nil && flow != nil {
			flow.Write(buffer[:n])
		}
	}
}

// flow returns the socket of a UDP client: a new one if there is none, or if it must not stay with its endpoint.
func (s *server) flow(conn *net.UDPConn, client netip.AddrPort) *net.UDPConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, old := s.target.Load(), s.flows[client]
	if old != nil {
		if t.port.KeepsFlow(addrPort(old.RemoteAddr())) {
			return old
		}
		old.Close()
	}
	chosen := t.choose(client.Addr().Unmap(), s.at.Addr())
	if !chosen.IsValid() || old == nil && len(s.flows) >= maxClients {
		return nil
	}
	flow, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(chosen))
	if err != nil {
		return nil
	}
	s.flows[client] = flow
	go s.answer(conn, client, flow)
	return flow
}

// answer passes on what a UDP client's endpoint says, until it says nothing for a while.
func (s *server) answer(conn *net.UDPConn, client netip.AddrPort, flow *net.UDPConn) {
	for buffer := make([]byte, 1<<16); ; {
		flow.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := flow.Read(buffer)
		if err != nil {
			break
		}
		conn.WriteToUDPAddrPort(buffer[:n], client)
	}
	flow.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flows[client] == flow {
		delete(s.flows, client)
	}
}
