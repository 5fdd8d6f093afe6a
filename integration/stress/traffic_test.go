package stress

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/integration/lab"
)

// patience is how long to wait for anything that takes milliseconds on an idle machine.
const patience = 20 * time.Second

func listenUDP(t *testing.T, h *lab.Host, at netip.AddrPort) (conn *net.UDPConn) {
	t.Helper()
	if err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
