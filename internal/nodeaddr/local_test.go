package nodeaddr

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/vishvananda/netlink"
	vishvananda "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace returns a network namespace of the test's own, and a handle to make routes there.
func namespace(t *testing.T) (int, *netlink.Handle) {
	t.Helper()
	ns := netns.ForTest(t).FD()
	h, err := netlink.NewHandleAt(vishvananda.NsHandle(ns), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return ns, h
}

// loopback has addresses put on it.
var loopback = &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}

func parse(t *testing.T, text string) *net.IPNet {
	t.Helper()
	ip, network, err := net.ParseCIDR(text)
	if err != nil {
		t.Fatal(err)
	}
	network.IP = ip
	return network
}

func TestLocal(t *testing.T) {
	for _, tt := range []struct {
		name   string
		family model.Family
		// The namespace gets addresses and routes, and its loopback interface is up if up is true.
		up                bool
		addresses, routes []string
		want              []string
	}{
		{name: "a namespace without addresses", family: model.IPv4},
		{name: "a namespace without addresses, over IPv6", family: model.IPv6},
		{name: "loopback", family: model.IPv4, up: true, want: []string{"127.0.0.0/8", "127.0.0.1/32"}},
		{name: "loopback over IPv6", family: model.IPv6, up: true, want: []string{"::1/128"}},
		{name: "secondary addresses", family: model.IPv4, up: true, addresses: []string{"192.0.2.1/32", "192.0.2.2/32", "fd00::1/128"},
			want: []string{"127.0.0.0/8", "127.0.0.1/32", "192.0.2.1/32", "192.0.2.2/32"}},
		{name: "addresses over IPv6", family: model.IPv6, up: true, addresses: []string{"192.0.2.1/32", "fd00::1/128"}, want: []string{"::1/128", "fd00::1/128"}},
		{name: "local routes", family: model.IPv4, up: true, routes: []string{"203.0.113.0/24", "fd00:1::/64"}, want: []string{"127.0.0.0/8", "127.0.0.1/32", "203.0.113.0/24"}},
		{name: "local routes over IPv6", family: model.IPv6, up: true, routes: []string{"203.0.113.0/24", "fd00:1::/64"}, want: []string{"::1/128", "fd00:1::/64"}},
		{name: "a route for everything", family: model.IPv4, routes: []string{"0.0.0.0/0"}, up: true, want: []string{"0.0.0.0/0", "127.0.0.0/8", "127.0.0.1/32"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns, h := namespace(t)
			if tt.up {
				if err := h.LinkSetUp(loopback); err != nil {
					t.Fatal(err)
				}
			}
			for _, a := range tt.addresses {
				if err := h.AddrAdd(loopback, &netlink.Addr{IPNet: parse(t, a)}); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range tt.routes {
				for _, table := range []int{unix.RT_TABLE_LOCAL, 77} {
					if err := h.RouteAdd(&netlink.Route{Dst: parse(t, r), LinkIndex: 1, Type: unix.RTN_LOCAL, Table: table, Scope: unix.RT_SCOPE_HOST}); err != nil {
						t.Fatal(err)
					}
				}
			}
			// The kernel leaves IPv6 addresses to a work queue.
			var diff string
			for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				if diff = cmp.Diff(tt.want, localTexts(t, ns, tt.family)); diff == "" {
					return
				}
			}
			t.Errorf("local addresses (-want +got):\n%s", diff)
		})
	}
	t.Run("without a namespace", testLocalWithoutANamespace)
}

func localTexts(t *testing.T, ns int, family model.Family) (texts []string) {
	t.Helper()
	prefixes, err := Local(ns, family)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	slices.Sort(texts)
	return texts
}

func testLocalWithoutANamespace(t *testing.T) {
	if _, err := Local(1<<30, model.IPv4); err == nil {
		t.Error("a namespace that is not open has addresses")
	}
}

// FuzzDecode shows that no message makes the decoder panic, or return what is not a prefix of the family.
func FuzzDecode(f *testing.F) {
	f.Add(append(header{family: unix.AF_INET, bits: 32, table: unix.RT_TABLE_LOCAL, typ: unix.RTN_LOCAL}.encode(), 8, 0, 1, 0, 192, 0, 2, 1), uint8(unix.AF_INET))
	f.Add(header{family: unix.AF_INET6, table: unix.RT_TABLE_LOCAL, typ: unix.RTN_LOCAL}.encode(), uint8(unix.AF_INET6))
	f.Fuzz(func(t *testing.T, message []byte, family uint8) {
		r, ok := header{family: family, table: unix.RT_TABLE_LOCAL, typ: unix.RTN_LOCAL}.decode(message)
		if !ok {
			return
		}
		if p, ok := r.destination(); ok && (!p.IsValid() || p != p.Masked() || p.Addr() == (netip.Addr{})) {
			t.Errorf("decoded %v", p)
		}
	})
}
