package directreturn

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// The kernel's dup sets DF. So datagrams above the overlay's MTU of 1450 are lost if their sender ignores the path MTU
// (IP_PMTUDISC_OMIT), where policy Cluster sends fragments. Others hear of the MTU.
func TestLongDatagrams(t *testing.T) {
	t.Parallel()
	f := newFabric(t, true)
	counted := f.startPods(t)
	f.start(t, serving(3), 1, 3)
	f.spread(t, 1)
	const short, long = 1000, 1472
	for _, tt := range []struct {
		name      string
		to        service
		discovery int
		length    int
		lost      bool
	}{
		{name: "short ones", to: direct, discovery: unix.IP_PMTUDISC_OMIT, length: short},
		{name: "long ones without path MTU discovery", to: direct, discovery: unix.IP_PMTUDISC_OMIT, length: long, lost: true},
		{name: "the same under policy Cluster", to: masqueraded, discovery: unix.IP_PMTUDISC_OMIT, length: long},
		{name: "long ones with path MTU discovery", to: direct, discovery: unix.IP_PMTUDISC_WANT, length: long},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := counted[3].Load()
			arrived := func() error {
				must(t, f.client.Do(func() error { return sendLong(tt.to, tt.discovery, tt.length) }))
				for deadline := time.Now().Add(again); time.Now().Before(deadline); time.Sleep(again / 100) {
					if counted[3].Load() > before {
						return nil
					}
				}
				return errors.New("none has arrived")
			}
			if !tt.lost {
				await.Until(t, "a datagram arrives", arrived)
				return
			}
			for range 4 {
				if arrived() == nil {
					t.Fatal("a datagram arrives")
				}
			}
		})
	}
}

// sendLong sends a datagram that asks for no answer.
func sendLong(to service, discovery, length int) error {
	c, err := dial("udp", netip.AddrPortFrom(clientAddr(model.IPv4, 1), 0), netip.AddrPortFrom(to.addr(model.IPv4), 80).String())
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discovery)
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	_, err = c.Write(bytes.Repeat([]byte("x"), length))
	return err
}
