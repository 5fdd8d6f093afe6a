package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	ctnetlink "github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clusterCIDR holds the clients: their packets are not masqueraded.
var clusterCIDR = netip.MustParsePrefix("192.0.0.0/16")

const (
	incoming, outgoing, sender, nobody = "incoming", "outgoing", "sender", "nobody"
)

// node is a network namespace that forwards packets from one veth device to another. The other
// end of the first one is its client. The other end of the second one is down, so that the
// packets are dropped when they have passed all chains.
type node struct {
	name string
	// rules says whether the tables are there, and services of how many Services they are.
	rules    bool
	services int
	// counted has the tables count Services, and refused has them count refused packets.
	counted, refused bool
	// directReturn has one more Service with direct return, to which no packet goes.
	directReturn bool
	// chainPerService makes the tables in the layout of kube-proxy instead.
	chainPerService bool
	// floor makes the smallest ruleset that serves the Services instead.
	floor bool
	// script changes the tables with the nft program.
	script string
	// wrongPort sends packets to a port that the Services do not have, so that they are refused. Before the rule that refuses
	// them, logged has one that logs 100 a second to nobody, and watched a table that marks 100 a second for somebody.
	wrongPort, logged, watched bool
	// direct sends packets to endpoints instead of ClusterIPs: the same chains without a translation.
	direct bool
	// ip6 sends IPv6 packets.
	ip6 bool

	namespace, client *netns.Namespace
	// mac is the address of the device by which packets come in.
	mac    net.HardwareAddr
	socket int
}

func (n *node) setUp(b *testing.B) {
	b.Helper()
	n.namespace, n.client = netns.ForTest(b), netns.ForTest(b)
	if err := n.namespace.Do(n.addLinks); err != nil {
		b.Fatal(err)
	}
	if err := n.client.Do(n.openSocket); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Close(n.socket) })
	switch {
	case n.chainPerService:
		n.load(b, chainPerService(services(n.services)))
	case n.floor:
		n.load(b, floor(services(n.services)))
	case n.rules:
		n.commit(b)
	}
	if n.script != "" {
		n.load(b, n.script)
	}
	if n.logged {
		n.nft(b, "insert", "rule", "ip", "kube-proxy", "cluster-ips-check", "ip", "daddr", "@cluster-ips", "limit", "rate", "100/second", "log", "prefix", "unknown-port", "group", "4711")
	}
	if n.watched {
		n.watch(b)
	}
}

// load loads a script into the node with the nft program.
func (n *node) load(b *testing.B, script string) {
	b.Helper()
	var out []byte
	err := n.namespace.Do(func() (err error) {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		b.Fatalf("nft -f: %v\n%.2000s", err, out)
	}
}

// nft runs the nft program in the node's namespace.
func (n *node) nft(b *testing.B, args ...string) {
	b.Helper()
	var text []byte
	err := n.namespace.Do(func() (err error) {
		text, err = exec.Command("nft", args...).CombinedOutput()
		return err
	})
	if err != nil {
		b.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, text)
	}
}

// watch marks packets as ruledump watch --refused does, and reads what the kernel tells of them.
func (n *node) watch(b *testing.B) {
	b.Helper()
	conn, err := nft.Dial(nft.Config{NetNS: n.namespace.FD()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	tracer, err := conn.Trace()
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	b.Cleanup(func() { stop(); tracer.Close() })
	go func() {
		for {
			if _, err := tracer.Next(ctx); err != nil {
				return
			}
		}
	}()
	ips := &nft.Set{Name: "cluster-ips", Key: nft.Concat{nft.IPDaddr}}
	for i := range n.services {
		ips.Put(nft.Element{Key: nft.AddrData(numbered("10.96.0.0", i))})
	}
	marks := &nft.Table{Family: nft.FamilyIP, Name: "watch", Owner: true, Sets: []*nft.Set{ips}, Chains: []*nft.Chain{{
		Name: "forward", Type: nft.TypeFilter, Hook: nft.HookForward, Priority: -1, Rules: []nft.Rule{
			nft.NewRule(nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}, nft.Accept),
			nft.NewRule(nft.Match{Field: nft.CTState, Value: nft.CTStateNew}, nft.InSet{Key: ips.Key, Set: ips.Name}, nft.Limit{Rate: 100, Burst: 100}, nft.SetNftrace, nft.Accept),
		},
	}}}
	if _, err := conn.Commit(b.Context(), nft.Diff(nil, marks)); err != nil {
		b.Fatal(err)
	}
}

// addLinks runs in the node's namespace.
func (n *node) addLinks() error {
	for path, value := range map[string]string{
		"net/ipv4/ip_forward":             "1",
		"net/ipv6/conf/all/forwarding":    "1",
		"net/ipv4/conf/all/rp_filter":     "0",
		"net/ipv4/conf/default/rp_filter": "0",
	} {
		if err := os.WriteFile("/proc/sys/"+path, []byte(value), 0); err != nil {
			return err
		}
	}
	in, err := n.addLink(incoming, sender)
	if err != nil {
		return err
	}
	n.mac = in.Attrs().HardwareAddr
	out, err := n.addLink(outgoing, nobody)
	if err != nil {
		return err
	}
	for _, link := range []netlink.Link{in, out} { // IPv6 needs an address on the incoming one, too
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: n.network(link), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add an address to %s: %w", link.Attrs().Name, err)
		}
	}
	gateway := n.addr("172.31.0.2", 0).AsSlice()
	if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: out.Attrs().Index, IP: gateway, HardwareAddr: n.mac, State: netlink.NUD_PERMANENT}); err != nil {
		return fmt.Errorf("add the gateway's address: %w", err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: out.Attrs().Index, Gw: gateway}); err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	return nil
}

// addr returns the i-th address from first on, an IPv4 address; of a node with IPv6, fd00::A.B.C.D.
func (n *node) addr(first string, i int) netip.Addr {
	addr := numbered(first, i)
	if n.ip6 {
		b := netip.MustParseAddr("fd00::").As16()
		copy(b[12:], addr.AsSlice())
		addr = netip.AddrFrom16(b)
	}
	return addr
}

// network returns the address of a device of the node, with its network of four addresses.
func (n *node) network(link netlink.Link) *net.IPNet {
	first := map[string]string{outgoing: "172.31.0.1", incoming: "172.31.0.5"}
	addr := n.addr(first[link.Attrs().Name], 0)
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen()-2, addr.BitLen())}
}

// addLink adds a veth device whose other end is the client's.
func (n *node) addLink(name, peer string) (netlink.Link, error) {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer, PeerNamespace: netlink.NsFd(n.client.FD())}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("add %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return nil, fmt.Errorf("set %s up: %w", name, err)
	}
	return netlink.LinkByName(name)
}

// openSocket runs in the client's namespace.
func (n *node) openSocket() error {
	link, err := netlink.LinkByName(sender)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	if n.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); err != nil {
		return err
	}
	return unix.Bind(n.socket, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index})
}

// commit makes the tables as the proxy does.
func (n *node) commit(b *testing.B) {
	conn, err := nft.Dial(nft.Config{NetNS: n.namespace.FD()})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	config := compiler.Default()
	config.CountServices, config.CountRefused = n.counted, n.refused || n.counted
	config.DirectReturn = n.directReturn
	config.DetectLocal.CIDRs = []netip.Prefix{clusterCIDR}
	backend, err := proxy.NewBackend(conn, config, proxy.Hooks{})
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	changes := services(n.services)
	if n.directReturn {
		p := service(n.services)
		p.DirectReturn, p.LoadBalancerIPs = true, []netip.Addr{netip.MustParseAddr("203.0.113.1")}
		if n.ip6 {
			p.ID.Family, p.ClusterIP, p.LoadBalancerIPs[0] = model.IPv6, n.addr("10.96.0.0", 1), netip.MustParseAddr("2001:db8:113::1")
			for i := range p.Cluster {
				p.Cluster[i].AddrPort = netip.AddrPortFrom(n.addr("10.128.1.0", i), endpointPort)
			}
		}
		changes.Ports[p.ID] = p
	}
	if err := backend.Sync(b.Context(), changes); err != nil {
		b.Fatal(err)
	}
}

// deleteFlows empties the node's table of connection tracking. Its buckets are those of all namespaces, so flows of
// earlier rounds would slow down all nodes.
func (n *node) deleteFlows(b *testing.B) {
	b.Helper()
	conn, err := ctnetlink.Dial(unix.NETLINK_NETFILTER, &ctnetlink.Config{NetNS: n.namespace.FD()})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	const deleteAll = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_DELETE
	message := ctnetlink.Message{
		Header: ctnetlink.Header{Type: deleteAll, Flags: ctnetlink.Request | ctnetlink.Acknowledge},
		Data:   []byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0},
	}
	if _, err := conn.Execute(message); err != nil {
		b.Fatal(err)
	}
}

// forwarded returns how many packets the node has forwarded.
func (n *node) forwarded(b *testing.B) (packets int) {
	b.Helper()
	file, counter := "snmp", "ForwDatagrams"
	if n.ip6 {
		file, counter = "snmp6", "Ip6OutForwDatagrams"
	}
	if err := n.namespace.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err != nil {
			return err
		}
		var names, values []string
		for line := range strings.Lines(string(text)) {
			switch fields := strings.Fields(line); {
			case fields[0] == counter:
				names, values = fields[:1], fields[1:]
			case fields[0] == "Ip:":
				names, values = values, fields
			}
		}
		packets, err = strconv.Atoi(values[slices.Index(names, counter)])
		return err
	}); err != nil {
		b.Fatal(err)
	}
	return packets
}

// destination returns where the i-th packet goes: to one of 64 Services, spread over all of them.
func (n *node) destination(i int) netip.AddrPort {
	service := 0
	if n.services > 0 {
		service = i % 64 * max(1, n.services/64) % n.services
	}
	if n.wrongPort {
		return netip.AddrPortFrom(numbered("10.96.0.0", service), servicePort+1)
	}
	if n.direct || !n.rules && !n.floor {
		return netip.AddrPortFrom(n.addr("10.128.0.0", service), endpointPort)
	}
	return netip.AddrPortFrom(numbered("10.96.0.0", service), servicePort)
}
