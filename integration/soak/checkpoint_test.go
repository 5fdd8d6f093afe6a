package soak

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
)

// catchingUp is how long the proxy may take to be up to date. client-go waits for up to a minute before it asks an
// API server again that failed.
const catchingUp = 2 * time.Minute

// awaitWanted waits until the kernel has the tables that belong to the objects.
func (s *soak) awaitWanted(t *testing.T) {
	t.Helper()
	want := s.cluster.wanted(t)
	await.Within(t, catchingUp, "the kernel has the wanted tables", func() error { return lab.TableError(s.conn, want) })
}

// checkpoint stops the changes and looks whether all is right.
func (s *soak) checkpoint(t *testing.T) {
	t.Helper()
	s.awaitWanted(t)
	await.Until(t, "no UDP flow leads to what is gone", func() error { return s.staleFlow(t) })
	for _, failure := range s.traffic.takeFailures() {
		t.Error(failure)
	}
	s.checkpoints++
}

// staleFlow returns an error if connection tracking has a UDP flow of the flapping Service that leads to a pod that
// is not its endpoint, or nowhere.
func (s *soak) staleFlow(t *testing.T) error {
	t.Helper()
	endpoints := map[netip.Addr]bool{}
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, e := range s.cluster.slices[flapping+"-"+family].Endpoints {
			endpoints[netip.MustParseAddr(e.Addresses[0])] = true
		}
	}
	conn, err := conntrack.Dial(&netlink.Config{NetNS: int(s.lab.Node.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	list, err := conn.Dump(nil)
	if err != nil {
		return err
	}
	for _, flow := range list {
		to := netip.AddrPortFrom(flow.TupleOrig.IP.DestinationAddress, flow.TupleOrig.Proto.DestinationPort)
		if flow.TupleOrig.Proto.Protocol == unix.IPPROTO_UDP && slices.Contains(flappingFrontends, to) && !endpoints[flow.TupleReply.IP.SourceAddress] {
			return fmt.Errorf("%s leads to %s, which is no endpoint", to, flow.TupleReply.IP.SourceAddress)
		}
	}
	return nil
}

// flappingFrontends are where the Service with changing endpoints is dialed.
var flappingFrontends = []netip.AddrPort{
	netip.MustParseAddrPort("10.96.2.1:80"), netip.MustParseAddrPort("[fd00:10:96::2:1]:80"),
	netip.MustParseAddrPort("192.168.0.1:32001"), netip.MustParseAddrPort("[fd00:1::1]:32001"),
}
