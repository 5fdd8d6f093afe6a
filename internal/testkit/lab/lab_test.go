package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// heard sends datagrams from host to an address of listener, until one arrives, and returns who was heard there.
func heard(host, listener *Host, to netip.Addr) (netip.Addr, error) {
	var server net.PacketConn
	err := listener.Do(func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(to, 9999).String())
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer server.Close()
	var client net.Conn
	err = host.Do(func() (err error) {
		client, err = net.Dial("udp", server.LocalAddr().String())
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer client.Close()
	var peer net.Addr
	err = await.Poll(await.Patience, func() (err error) {
		if _, err := client.Write([]byte("x")); err != nil {
			return err
		}
		server.SetReadDeadline(time.Now().Add(time.Second)) // a busy machine may lose a datagram
		_, peer, err = server.ReadFrom(make([]byte, 1))
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.MustParseAddrPort(peer.String()).Addr().Unmap(), nil
}

func TestLab(t *testing.T) {
	t.Run("hosts send from their own addresses", testHostsSendFromTheirOwnAddresses)
	t.Run("local pods come and go", testLocalPodsComeAndGo)
	t.Run("remote pods come and go", testRemotePodsComeAndGo)
	t.Run("threads leave the namespace", testThreadsLeaveTheNamespace)
	t.Run("FlushConntrack forgets", testFlushConntrackForgets)
}

func testHostsSendFromTheirOwnAddresses(t *testing.T) {
	for _, bridge := range []string{"", "cni0"} {
		t.Run("bridge "+bridge, func(t *testing.T) { testEveryHostSends(t, ForTestWithBridge(t, bridge)) })
	}
}

func testEveryHostSends(t *testing.T, l *Lab) {
	t.Helper()
	pod, err := l.AddPod("pod", netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244:1::5"))
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[*Host]Addrs{
		l.Node: NodeAddrs, l.Remote: RemoteAddrs, l.Outside: OutsideAddrs, l.Client: ClientAddrs,
		pod: dual("10.244.1.5", "fd00:10:244:1::5"),
	}
	for from, source := range hosts {
		for to := range hosts {
			if from == to {
				continue
			}
			for _, addr := range to.Addrs() {
				want := source.Like(addr)
				if got, err := heard(from, to, addr); got != want || err != nil {
					t.Errorf("%s → %s (%s): heard %s, want %s, error %v", from.Name, to.Name, addr, got, want, err)
				}
			}
		}
	}
}

func testLocalPodsComeAndGo(t *testing.T) {
	for _, bridge := range []string{"", "cni0"} {
		t.Run("bridge "+bridge, func(t *testing.T) { testPodsComeAndGo(t, ForTestWithBridge(t, bridge)) })
	}
}

func testPodsComeAndGo(t *testing.T, l *Lab) {
	t.Helper()
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244:1::5")}
	for range 3 {
		pod, err := l.AddPod("pod", addrs...)
		if err != nil {
			t.Fatal(err)
		}
		if l.HostOf(addrs[1]) != pod {
			t.Errorf("%s does not belong to the new pod", addrs[1])
		}
		if _, err := l.AddPod("other", addrs[0]); err == nil {
			t.Error("two pods got the same address")
		}
		if got, err := heard(l.Client, pod, addrs[1]); err != nil || got != ClientAddrs.IPv6 {
			t.Errorf("heard %s, error %v", got, err)
		}
		if err := l.RemovePods("pod"); err != nil {
			t.Fatal(err)
		}
		if l.HostOf(addrs[1]) != nil {
			t.Errorf("%s is still there", addrs[1])
		}
		if got, err := heard(l.Client, l.Node, GatewayAddrs.IPv4); err != nil || got != ClientAddrs.IPv4 {
			t.Errorf("the gateway went with the pod: heard %s, error %v", got, err)
		}
	}
	if err := l.RemovePods("pod"); err == nil {
		t.Error("a pod that does not exist was removed")
	}
}

func testRemotePodsComeAndGo(t *testing.T) {
	l := ForTest(t)
	for _, text := range []string{"10.244.2.5", "fd00:10:244:2::5", "10.180.0.1", "fd00:10:180::1"} {
		addr := netip.MustParseAddr(text)
		for range 2 {
			if err := l.AddRemoteAddr(addr); err != nil {
				t.Fatal(err)
			}
			if got, err := heard(l.Outside, l.Remote, addr); err != nil || got != OutsideAddrs.Like(addr) {
				t.Errorf("%s heard %s, error %v", addr, got, err)
			}
			if err := l.RemoveRemoteAddr(addr); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// testThreadsLeaveTheNamespace shows that threads come home, or die.
func testThreadsLeaveTheNamespace(t *testing.T) {
	l := ForTest(t)
	home := namespaceID(t)
	if err := l.Node.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("a function that did not return had no error")
	}
	wanted := errors.New("from inside")
	if err := l.Node.Do(func() error { return wanted }); !errors.Is(err, wanted) {
		t.Errorf("got error %v, want %v", err, wanted)
	}
	for range 100 {
		done := make(chan string)
		go func() {
			runtime.LockOSThread()
			done <- namespaceID(t)
		}()
		if got := <-done; got != home {
			t.Fatalf("a thread is in %s, want %s", got, home)
		}
	}
}

func namespaceID(t *testing.T) string {
	id, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
	}
	return id
}

func testFlushConntrackForgets(t *testing.T) {
	l := ForTest(t)
	conn, err := conntrack.Dial(&mdnetlink.Config{NetNS: int(l.Node.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 2 { // of an entry that exists, Create is an error
		if err := conn.Create(conntrack.NewFlow(unix.IPPROTO_UDP, 0, ClientAddrs.IPv4, OutsideAddrs.IPv4, 1024, 53, 60, 0)); err != nil {
			t.Fatal(err)
		}
		if err := l.Node.FlushConntrack(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPodLinks shows what a proxy that recognises pods by interface can rely on.
func TestPodLinks(t *testing.T) {
	if name := podLink(t, ForTest(t)); name[:5] != "veth-" {
		t.Errorf("the pod is behind %s", name)
	}
	if name := podLink(t, ForTestWithBridge(t, "cni0")); name != "cni0" {
		t.Errorf("with a bridge the pod is behind %s", name)
	}
}

// podLink adds a pod and returns the name of the interface that it is behind.
func podLink(t *testing.T, l *Lab) string {
	t.Helper()
	if _, err := l.AddPod("pod", netip.MustParseAddr("10.244.1.5")); err != nil {
		t.Fatal(err)
	}
	routes, err := l.Node.routes.RouteListFiltered(unix.AF_INET,
		&netlink.Route{Dst: single(netip.MustParseAddr("10.244.1.5"))}, netlink.RT_FILTER_DST)
	if err != nil || len(routes) != 1 {
		t.Fatalf("got routes %v, error %v", routes, err)
	}
	link, err := l.Node.routes.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().Name
}

func BenchmarkLab(b *testing.B) {
	for range b.N {
		l, err := New()
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}

// BenchmarkPods adds and removes 20 pods.
func BenchmarkPods(b *testing.B) {
	l := ForTest(b)
	for range b.N {
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprint("pod-", i))
			addr := netip.AddrFrom4([4]byte{10, 244, 1, byte(10 + i)})
			if _, err := l.AddPod(names[i], addr); err != nil {
				b.Fatal(err)
			}
		}
		if err := l.RemovePods(names...); err != nil {
			b.Fatal(err)
		}
	}
}
