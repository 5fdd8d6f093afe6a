package integration

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

func TestSourceRanges(t *testing.T) {
	t.Run("in thousands are elements of one set", testThousandsOfSourceRanges)
}

// Thousands of source ranges, nested and side by side, are elements of one set: they let in whom
// they should, and one more or less is a change of one element.
func testThousandsOfSourceRanges(t *testing.T) {
	l := lab.ForTest(t)
	servePod(t, l, "web", "10.244.1.5")
	var commits []nft.CommitStats
	b, err := proxy.NewBackend(lab.Conn(t, l.Node), compiler.Default(), proxy.Hooks{OnCommit: func(s nft.CommitStats) { commits = append(commits, s) }})
	if err != nil {
		t.Fatal(err)
	}
	var ranges []netip.Prefix
	for i := range 5000 {
		addr := netip.AddrFrom4([4]byte{100, 64 + byte(i>>12), byte(i >> 4), byte(i << 4)})
		ranges = append(ranges, netip.PrefixFrom(addr, 28), netip.PrefixFrom(addr.Next(), 32))
	}
	sync := func(full bool, ranges ...netip.Prefix) {
		t.Helper()
		slices.SortFunc(ranges, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		port := &model.ServicePort{
			ID:              model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4},
			LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}, Port: 80, LoadBalancerSourceRanges: ranges,
			Cluster: []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true}},
		}
		changes := &model.Changes{Full: full, Ports: map[model.PortID]*model.ServicePort{port.ID: port}}
		if err := b.Sync(context.Background(), changes); err != nil {
			t.Fatal(err)
		}
	}
	mayDial := func(from netip.Addr, want bool) {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: 10 * time.Second}
		if !want {
			dialer.Timeout = time.Second
		}
		var conn net.Conn
		err := l.Outside.Do(func() (err error) {
			conn, err = dialer.Dial("tcp", "192.0.2.10:80")
			return err
		})
		if err == nil {
			conn.Close()
		}
		if (err == nil) != want {
			t.Errorf("%s dials with %d ranges: %v; want it let in: %v", from, len(ranges), err, want)
		}
	}

	sync(true, ranges...)
	mayDial(lab.OutsideAddrs.IPv4, false)
	one := netip.MustParsePrefix("198.51.100.4/30")
	sync(false, append(slices.Clone(ranges), one)...)
	mayDial(lab.OutsideAddrs.IPv4, true)
	mayDial(lab.SecondOutsideAddrs.IPv4, false)
	if last := commits[len(commits)-1]; last.Elements != 1 || last.Chains != 0 {
		t.Errorf("one more range took %d elements and %d chains, want one element", last.Elements, last.Chains)
	}
	sync(false, ranges...)
	mayDial(lab.OutsideAddrs.IPv4, false)
	for i, s := range commits {
		t.Logf("commit %d: %d elements, %d bytes, %v in the kernel", i, s.Elements, s.Bytes, s.Kernel)
	}
}
