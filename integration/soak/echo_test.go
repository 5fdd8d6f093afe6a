package soak

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/integration/lab"
)

// echoTCP and echoUDP send back what arrives at an address of the host.
func echoTCP(t *testing.T, h *lab.Host, at netip.AddrPort) {
	t.Helper()
	var listener net.Listener
	if err := h.Do(func() (err error) {
		listener, err = net.Listen("tcp", at.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

func echoUDP(t *testing.T, h *lab.Host, at netip.AddrPort) {
	t.Helper()
	var conn *net.UDPConn
	if err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 64)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort(buffer[:n], from)
			}
		}
	}()
}
