package directreturn

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fabric is a cluster behind a router that spreads connections over its nodes by a hash of addresses and ports (ECMP):
//
//	client ── router ─┬─ node 1
//	                  ├─ node 2 ── pod 2
//	                  ├─ node 3 ── pod 3
//	                  ├─ node 4 ── pod 4
//	                  └─ node 5 ── pod 5
//
// All nodes are in one network with the router, and have routes to the pods of the others by their addresses. With an
// overlay each node is in a network of its own, and a VXLAN device leads to the pods of the others. Router and nodes run
// bird: a node announces the addresses of Services by BGP, and BFD tells the router that a node died.
type fabric struct {
	client, router *lab.Host
	overlay        bool
	nodes          [nodes + 1]*node // from 1 on
	routerBird     *bird
}

const nodes = 5

// node is a node with its pod, its kube-proxy and its bird. Node 1 has no pod.
type node struct {
	*lab.Host
	number    int
	pod       *lab.Host
	rules     *nft.Conn
	manifests string
	proxy     *lab.Process
	bird      *bird
	// gates are further feature gates of its proxy, each after a comma.
	gates string
	// dead says that its links and programs are gone.
	dead bool
}

var families = [...]model.Family{model.IPv4, model.IPv6}

// addr returns an address of a network, such as 10.244.2.5 or fd00:244:2::5.
func addr(f model.Family, v4, v6 string) netip.Addr {
	if f == model.IPv6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

const routerNumber = 254

// nodeAddr returns the address of a node, or of the router in the nodes' network.
func (f *fabric) nodeAddr(family model.Family, n int) netip.Addr {
	if f.overlay {
		return addr(family, fmt.Sprintf("10.0.%d.1", n), fmt.Sprintf("fd00:10:%d::1", n))
	}
	return addr(family, fmt.Sprintf("10.0.0.%d", n), fmt.Sprintf("fd00:10::%d", n))
}

// routerAddr returns the router's address in the network of a node.
func (f *fabric) routerAddr(family model.Family, n int) netip.Addr {
	if f.overlay {
		return addr(family, fmt.Sprintf("10.0.%d.%d", n, routerNumber), fmt.Sprintf("fd00:10:%d::%d", n, routerNumber))
	}
	return f.nodeAddr(family, routerNumber)
}

func podAddr(f model.Family, n int) netip.Addr {
	return addr(f, fmt.Sprintf("10.244.%d.5", n), fmt.Sprintf("fd00:244:%d::5", n))
}

func podGateway(f model.Family, n int) netip.Addr {
	return addr(f, fmt.Sprintf("10.244.%d.1", n), fmt.Sprintf("fd00:244:%d::1", n))
}

// hopAddr returns an address of a node to which the others route packets for its pod: the first or, with second, another.
func (f *fabric) hopAddr(family model.Family, n int, second bool) netip.Addr {
	last := n
	if second {
		last += 100
	}
	if f.overlay {
		return addr(family, fmt.Sprintf("10.245.0.%d", last), fmt.Sprintf("fd00:245::%d", last))
	}
	return f.nodeAddr(family, last)
}

// clients is the number of the client's addresses in each family.
const clients = 50

func clientAddr(f model.Family, i int) netip.Addr {
	return addr(f, fmt.Sprintf("198.51.100.%d", 10+i), fmt.Sprintf("2001:db8:100::%d", 10+i))
}

func clientGateway(f model.Family) netip.Addr { return addr(f, "198.51.100.1", "2001:db8:100::1") }

// newFabric makes the hosts and their links. Nothing runs on them yet.
func newFabric(t testing.TB, overlay bool) *fabric {
	t.Helper()
	f := &fabric{client: newHost(t, "client"), router: newHost(t, "router"), overlay: overlay}
	connect(t, f.router, "client", f.client)
	for _, family := range families {
		address(t, f.router, "client", clientGateway(family))
		for i := range clients {
			address(t, f.client, "eth0", clientAddr(family, i))
		}
		route(t, f.client, everywhere(family), clientGateway(family))
	}
	if !overlay {
		must(t, f.router.Routes().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "nodes"}}))
		must(t, f.router.Routes().LinkSetUp(link(t, f.router, "nodes")))
		for _, family := range families {
			address(t, f.router, "nodes", f.routerAddr(family, 0))
		}
	}
	for n := 1; n <= nodes; n++ {
		f.addNode(t, n)
	}
	if overlay {
		f.addOverlay(t)
	}
	f.route(t, false)
	return f
}

func (f *fabric) addNode(t testing.TB, number int) {
	t.Helper()
	n := &node{Host: newHost(t, fmt.Sprintf("node-%d", number)), number: number, manifests: t.TempDir()}
	f.nodes[number] = n
	n.rules = lab.Conn(t, n.Host)
	connect(t, f.router, n.Name, n.Host)
	if !f.overlay {
		must(t, f.router.Routes().LinkSetMaster(link(t, f.router, n.Name), link(t, f.router, "nodes")))
	}
	for _, family := range families {
		address(t, n.Host, "eth0", f.nodeAddr(family, number))
		if f.overlay {
			address(t, f.router, n.Name, f.routerAddr(family, number))
		} else {
			address(t, n.Host, "eth0", f.hopAddr(family, number, true))
		}
		route(t, n.Host, everywhere(family), f.routerAddr(family, number))
	}
	if number == 1 {
		return
	}
	n.pod = newHost(t, fmt.Sprintf("pod-%d", number))
	connect(t, n.Host, "pod", n.pod)
	for _, family := range families {
		address(t, n.Host, "pod", podGateway(family, number))
		address(t, n.pod, "eth0", podAddr(family, number))
		route(t, n.pod, everywhere(family), podGateway(family, number))
	}
}

// addOverlay joins the nodes by VXLAN, as flannel does: each knows the hardware addresses of the others.
func (f *fabric) addOverlay(t testing.TB) {
	t.Helper()
	device := func(n *node) netlink.Link { return link(t, n.Host, "vxlan") }
	for _, n := range f.nodes[1:] {
		must(t, n.Routes().LinkAdd(&netlink.Vxlan{
			LinkAttrs: netlink.LinkAttrs{Name: "vxlan", MTU: 1450}, VxlanId: 1, Port: 8472,
			SrcAddr: f.nodeAddr(model.IPv4, n.number).AsSlice(), VtepDevIndex: link(t, n.Host, "eth0").Attrs().Index,
		}))
		must(t, n.Routes().LinkSetUp(device(n)))
		for _, family := range families {
			address(t, n.Host, "vxlan", f.hopAddr(family, n.number, false))
			address(t, n.Host, "vxlan", f.hopAddr(family, n.number, true))
		}
		if n.pod != nil {
			for _, end := range []netlink.Link{link(t, n.Host, "pod"), link(t, n.pod, "eth0")} {
				h := n.Host
				if end.Attrs().Name == "eth0" {
					h = n.pod
				}
				must(t, h.Routes().LinkSetMTU(end, 1450))
			}
		}
	}
	for _, n := range f.nodes[1:] {
		for _, other := range f.nodes[1:] {
			if other == n {
				continue
			}
			index, mac := device(n).Attrs().Index, device(other).Attrs().HardwareAddr
			must(t, n.Routes().NeighAppend(&netlink.Neigh{
				LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT,
				IP: f.nodeAddr(model.IPv4, other.number).AsSlice(), HardwareAddr: mac,
			}))
			for _, family := range families {
				for _, second := range []bool{false, true} {
					must(t, n.Routes().NeighSet(&netlink.Neigh{
						LinkIndex: index, State: netlink.NUD_PERMANENT, HardwareAddr: mac,
						IP: f.hopAddr(family, other.number, second).AsSlice(),
					}))
				}
			}
		}
	}
}

// route gives each node routes to the pods of the others, by their first or second addresses.
func (f *fabric) route(t testing.TB, second bool) {
	t.Helper()
	for _, n := range f.nodes[1:] {
		for _, other := range f.nodes[2:] {
			if other == n || n.dead {
				continue
			}
			for _, family := range families {
				pods := netip.PrefixFrom(podAddr(family, other.number), prefixBits(family)).Masked()
				must(t, n.Routes().RouteReplace(&netlink.Route{Dst: ipNet(pods), Gw: f.hopAddr(family, other.number, second).AsSlice()}))
			}
		}
	}
}

func newHost(t testing.TB, name string) *lab.Host {
	t.Helper()
	h := lab.RouterForTest(t, name)
	must(t, h.Do(func() error {
		for name, value := range map[string]string{
			"ipv4/fib_multipath_hash_policy": "1", "ipv6/fib_multipath_hash_policy": "1", // addresses and ports
			"ipv6/conf/default/addr_gen_mode": "0", "ipv6/conf/default/accept_dad": "0", // routers ask for neighbours from link-local addresses
		} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	}))
	return h
}

// connect joins two hosts. The other's end is eth0.
func connect(t testing.TB, at *lab.Host, name string, other *lab.Host) {
	t.Helper()
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: name})
	pair.PeerName, pair.PeerNamespace = "eth0", netlink.NsFd(other.NetNS().Fd())
	must(t, at.Routes().LinkAdd(pair))
	must(t, at.Routes().LinkSetUp(link(t, at, name)))
	must(t, other.Routes().LinkSetUp(link(t, other, "eth0")))
}

func link(t testing.TB, h *lab.Host, name string) netlink.Link {
	t.Helper()
	l, err := h.Routes().LinkByName(name)
	must(t, err)
	return l
}

func prefixBits(f model.Family) int {
	if f == model.IPv6 {
		return 64
	}
	return 24
}

func address(t testing.TB, h *lab.Host, on string, a netip.Addr) {
	t.Helper()
	network := ipNet(netip.PrefixFrom(a, prefixBits(model.FamilyOf(a))))
	must(t, h.Routes().AddrAdd(link(t, h, on), &netlink.Addr{IPNet: network, Flags: unix.IFA_F_NODAD}))
}

func route(t testing.TB, h *lab.Host, to *net.IPNet, via netip.Addr) {
	t.Helper()
	must(t, h.Routes().RouteAdd(&netlink.Route{Dst: to, Gw: via.AsSlice()}))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func everywhere(f model.Family) *net.IPNet {
	return ipNet(netip.PrefixFrom(addr(f, "0.0.0.0", "::"), 0))
}

// awaitHops waits until the router spreads packets to the Services over these nodes, and returns how long that took.
func (f *fabric) awaitHops(t testing.TB, to ...int) time.Duration {
	t.Helper()
	begin := time.Now()
	for _, family := range families {
		var want []string
		for _, n := range to {
			want = append(want, f.nodeAddr(family, n).String())
		}
		slices.Sort(want)
		for _, s := range services {
			await.Until(t, fmt.Sprintf("the router's next hops to %s are %v", s.addr(family), want), func() error {
				got, err := f.hops(s.addr(family))
				if err == nil && !slices.Equal(got, want) {
					err = fmt.Errorf("they are %v", got)
				}
				return err
			})
		}
	}
	return time.Since(begin)
}

// hops returns the next hops of the router's route to an address.
func (f *fabric) hops(to netip.Addr) (hops []string, err error) {
	filter := &netlink.Route{Dst: ipNet(netip.PrefixFrom(to, to.BitLen()))}
	family := unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	routes, err := f.router.Routes().RouteListFiltered(family, filter, netlink.RT_FILTER_DST)
	for _, r := range routes {
		if r.Gw != nil {
			hops = append(hops, r.Gw.String())
		}
		for _, hop := range r.MultiPath {
			hops = append(hops, hop.Gw.String())
		}
	}
	slices.Sort(hops)
	return hops, err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
