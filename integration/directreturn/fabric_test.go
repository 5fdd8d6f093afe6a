package directreturn

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// fabric is a cluster behind a router that spreads connections over its nodes by a hash of addresses and ports (ECMP):
//
//	client ── router ─┬─ node 1
//	                  ├─ node 2 ── pod 2
//	                  ├─ node 3 ── pod 3
//	                  └─ node 4 ── pod 4
//
// Each node has routes to the pods of the others by their addresses, and a backend of its own.
type fabric struct {
	client, router *host
	nodes, pods    [nodes + 1]*host // from 1 on; node 1 has no pod
	backends       [nodes + 1]*proxy.Backend
}

const nodes = 4

// host is a network namespace.
type host struct {
	*netns.Namespace
	routes *netlink.Handle
}

var families = [...]model.Family{model.IPv4, model.IPv6}

// addr returns an address of a network, such as 10.244.2.5 or fd00:244:2::5.
func addr(f model.Family, v4, v6 string) netip.Addr {
	if f == model.IPv6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

func serviceAddr(f model.Family) netip.Addr { return addr(f, "203.0.113.1", "2001:db8:113::1") }

func nodeAddr(f model.Family, n int) netip.Addr {
	return addr(f, fmt.Sprintf("10.0.0.%d", n), fmt.Sprintf("fd00:10::%d", n))
}

func podAddr(f model.Family, n int) netip.Addr {
	return addr(f, fmt.Sprintf("10.244.%d.5", n), fmt.Sprintf("fd00:244:%d::5", n))
}

func podGateway(f model.Family, n int) netip.Addr {
	return addr(f, fmt.Sprintf("10.244.%d.1", n), fmt.Sprintf("fd00:244:%d::1", n))
}

func clientAddr(f model.Family) netip.Addr { return addr(f, "198.51.100.2", "2001:db8:100::2") }

func clientGateway(f model.Family) netip.Addr { return addr(f, "198.51.100.1", "2001:db8:100::1") }

const routerNumber = 254

func newFabric(t *testing.T, config compiler.Config) *fabric {
	t.Helper()
	f := &fabric{client: newHost(t), router: newHost(t)}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "nodes"}}
	must(t, f.router.routes.LinkAdd(bridge))
	f.router.up(t, "nodes")
	f.connect(t, f.router, "client", clientGateway, f.client, clientAddr)
	number := func(n int) func(model.Family) netip.Addr {
		return func(f model.Family) netip.Addr { return nodeAddr(f, n) }
	}
	for n := 1; n <= nodes; n++ {
		f.nodes[n] = newHost(t)
		f.connect(t, f.router, fmt.Sprintf("node-%d", n), nil, f.nodes[n], number(n))
		must(t, f.router.routes.LinkSetMaster(f.router.link(t, fmt.Sprintf("node-%d", n)), bridge))
		if n > 1 {
			f.pods[n] = newHost(t)
			gateway := func(f model.Family) netip.Addr { return podGateway(f, n) }
			pod := func(f model.Family) netip.Addr { return podAddr(f, n) }
			f.connect(t, f.nodes[n], "pod", gateway, f.pods[n], pod)
			f.pods[n].routeDefault(t, gateway)
		}
	}
	for _, family := range families {
		f.router.address(t, "nodes", nodeAddr(family, routerNumber))
		for n := 1; n <= nodes; n++ {
			// While IPv6 looks for a neighbour, the router spreads connections over the others, and moves them later.
			must(t, f.router.routes.NeighSet(&netlink.Neigh{
				LinkIndex: bridge.Index, State: netlink.NUD_PERMANENT, IP: nodeAddr(family, n).AsSlice(),
				HardwareAddr: f.nodes[n].link(t, "eth0").Attrs().HardwareAddr,
			}))
			for other := 2; other <= nodes; other++ {
				if other != n {
					network := netip.PrefixFrom(podAddr(family, other), prefixBits(family)).Masked()
					must(t, f.nodes[n].routes.RouteAdd(&netlink.Route{Dst: ipNet(network), Gw: nodeAddr(family, other).AsSlice()}))
				}
			}
		}
	}
	f.client.routeDefault(t, clientGateway)
	for n := 1; n <= nodes; n++ {
		f.nodes[n].routeDefault(t, number(routerNumber))
		f.backends[n] = newBackend(t, f.nodes[n], config)
	}
	f.spread(t, 1, 2, 3, 4)
	return f
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{Namespace: netns.ForTest(t)}
	must(t, h.Do(func() error {
		for name, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
			"ipv4/fib_multipath_hash_policy": "1", "ipv6/fib_multipath_hash_policy": "1", "ipv6/conf/default/accept_dad": "0",
			"ipv4/icmp_ratelimit": "0", "ipv4/icmp_msgs_per_sec": "100000",
		} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	}))
	var err error
	h.routes, err = netlink.NewHandleAt(vnetns.NsHandle(h.FD()), unix.NETLINK_ROUTE)
	must(t, err)
	t.Cleanup(h.routes.Close)
	h.up(t, "lo")
	return h
}

// connect joins two hosts. The other's end is eth0. No address of a host's end is for a port of a bridge.
func (f *fabric) connect(t *testing.T, at *host, name string, addrAt func(model.Family) netip.Addr, other *host, addrOther func(model.Family) netip.Addr) {
	t.Helper()
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: name})
	pair.PeerName, pair.PeerNamespace = "eth0", netlink.NsFd(other.FD())
	must(t, at.routes.LinkAdd(pair))
	at.up(t, name)
	other.up(t, "eth0")
	for _, family := range families {
		if addrAt != nil {
			at.address(t, name, addrAt(family))
		}
		other.address(t, "eth0", addrOther(family))
	}
}

func (h *host) link(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := h.routes.LinkByName(name)
	must(t, err)
	return link
}

func (h *host) up(t *testing.T, name string) {
	t.Helper()
	must(t, h.routes.LinkSetUp(h.link(t, name)))
}

func prefixBits(f model.Family) int {
	if f == model.IPv6 {
		return 64
	}
	return 24
}

func (h *host) address(t *testing.T, link string, a netip.Addr) {
	t.Helper()
	network := ipNet(netip.PrefixFrom(a, prefixBits(model.FamilyOf(a))))
	must(t, h.routes.AddrAdd(h.link(t, link), &netlink.Addr{IPNet: network, Flags: unix.IFA_F_NODAD}))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func everywhere(f model.Family) *net.IPNet {
	return ipNet(netip.PrefixFrom(addr(f, "0.0.0.0", "::"), 0))
}

func (h *host) routeDefault(t *testing.T, gateway func(model.Family) netip.Addr) {
	t.Helper()
	for _, f := range families {
		must(t, h.routes.RouteAdd(&netlink.Route{Dst: everywhere(f), Gw: gateway(f).AsSlice()}))
	}
}

// spread makes the router send packets to the Service to these nodes.
func (f *fabric) spread(t *testing.T, to ...int) {
	t.Helper()
	for _, family := range families {
		a := serviceAddr(family)
		route := &netlink.Route{Dst: ipNet(netip.PrefixFrom(a, a.BitLen()))}
		for _, n := range to {
			route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{Gw: nodeAddr(family, n).AsSlice()})
		}
		must(t, f.router.routes.RouteReplace(route))
	}
}

func newBackend(t *testing.T, node *host, config compiler.Config) *proxy.Backend {
	t.Helper()
	conn, err := nft.Dial(nft.Config{NetNS: node.FD()})
	must(t, err)
	backend, err := proxy.NewBackend(conn, config, proxy.Hooks{})
	must(t, err)
	t.Cleanup(func() {
		backend.Close()
		conn.Close()
	})
	return backend
}

// serve tells every node of the Service with pods on these nodes.
func (f *fabric) serve(t *testing.T, direct bool, pods ...int) {
	t.Helper()
	for n := 1; n <= nodes; n++ {
		f.serveAt(t, n, direct, pods...)
	}
}

func (f *fabric) serveAt(t *testing.T, n int, direct bool, pods ...int) {
	t.Helper()
	f.sync(t, n, direct, pods, nil)
}

// drain tells every node that the pods on these nodes terminate and still serve, beside others that are ready.
func (f *fabric) drain(t *testing.T, ready []int, terminating ...int) {
	t.Helper()
	for n := 1; n <= nodes; n++ {
		f.sync(t, n, true, ready, terminating)
	}
}

func (f *fabric) sync(t *testing.T, n int, direct bool, pods, terminating []int) {
	t.Helper()
	changes := &model.Changes{Full: true, Node: &model.Node{Name: fmt.Sprintf("node-%d", n)}, Ports: map[model.PortID]*model.ServicePort{}, ServiceCIDRsChanged: true}
	for _, family := range families {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
			id := model.PortID{Namespace: "shop", Service: "web", Protocol: protocol, Family: family}
			p := &model.ServicePort{
				ID: id, Port: 80, ClusterIP: addr(family, "10.96.0.1", "fd00:96::1"),
				LoadBalancerIPs: []netip.Addr{serviceAddr(family)}, DirectReturn: direct,
			}
			for _, pod := range pods {
				p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(podAddr(family, pod), 8080), Local: pod == n, Remote: pod != n})
			}
			for pod := 2; pod <= nodes; pod++ {
				if slices.Contains(pods, pod) || slices.Contains(terminating, pod) {
					p.Serving = append(p.Serving, netip.AddrPortFrom(podAddr(family, pod), 8080))
				}
			}
			changes.Ports[id] = p
		}
	}
	must(t, f.backends[n].Sync(t.Context(), changes))
}

// entries counts the entries of a node's conntrack.
func (h *host) entries(t *testing.T) (n int) {
	t.Helper()
	must(t, h.Do(func() error {
		b, err := os.ReadFile("/proc/net/nf_conntrack")
		n = strings.Count(string(b), "dport=80 ")
		return err
	}))
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
