package lab

import (
	"errors"
	"io"
	"net"
	"net/netip"
)

// ServeTCP listens at an address of the host ("10.244.1.5:8080", or ":8080" for all of them) until what it returns is
// closed. It runs serve for each connection, on a goroutine of its own, and closes the connection afterwards.
func (h *Host) ServeTCP(at string, serve func(net.Conn)) (io.Closer, error) {
	var listener net.Listener
	if err := h.Do(func() (err error) {
		listener, err = net.Listen("tcp", at)
		return err
	}); err != nil {
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
				serve(conn)
			}()
		}
	}()
	return listener, nil
}

// ListenUDP returns a socket at an address of the host.
func (h *Host) ListenUDP(at netip.AddrPort) (conn *net.UDPConn, err error) {
	err = h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	return conn, err
}

// AnswerUDP answers each datagram to an address of the host until what it returns is closed.
func (h *Host) AnswerUDP(at netip.AddrPort, answer func(datagram []byte, from netip.AddrPort) []byte) (*net.UDPConn, error) {
	conn, err := h.ListenUDP(at)
	if err != nil {
		return nil, err
	}
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort(answer(buffer[:n], from), from)
			}
		}
	}()
	return conn, nil
}
