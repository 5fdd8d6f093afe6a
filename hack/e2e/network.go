package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses of the cluster. The machine, with the control plane, is outside of it: a router to which the nodes'
// bridge leads.
var (
	machineAddrs  = []netip.Prefix{netip.MustParsePrefix("192.168.0.1/16"), netip.MustParsePrefix("fd00:1::1/64")}
	podRanges     = "10.244.0.0/16,fd00:10:244::/48"
	serviceRanges = "10.96.0.0/16,fd00:10:96::/112"
	// clientAddrs are what the machine's connections to load balancers come from. The suite takes a client in the same
	// /16 as the nodes for a client whose address was translated.
	clientAddrs   = []netip.Prefix{netip.MustParsePrefix("172.31.0.1/32"), netip.MustParsePrefix("fd00:31::1/128")}
	kubernetesIPs = []string{"10.96.0.1", "fd00:10:96::1"}
	dnsIPs        = []string{"10.96.0.10", "fd00:10:96::a"}
)

// nodeRanges are the ranges of the nodes' addresses, in YAML.
func nodeRanges() string {
	var quoted []string
	for _, own := range machineAddrs {
		quoted = append(quoted, fmt.Sprintf("%q", own.Masked()))
	}
	return strings.Join(quoted, ", ")
}

// clientAddrFor returns the machine's client address of a load balancer's family.
func clientAddrFor(addr netip.Addr) netip.Addr {
	for _, own := range clientAddrs {
		if own.Addr().Is4() == addr.Is4() {
			return own.Addr()
		}
	}
	panic("clientAddrs has both families")
}

// nodeBridge is the machine's link to the nodes.
const nodeBridge = "nodes"

// addrs are a node's addresses on the bridge.
func (n node) addrs() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.168.0.%d/16", 10+n.Number)), netip.MustParsePrefix(fmt.Sprintf("fd00:1::%d/64", 10+n.Number))}
}

// podRanges are the ranges of a node's pods.
func (n node) podRanges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n.Number)), netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/64", n.Number))}
}

// hostSysctls make a network namespace a router, whose new addresses work at once.
var hostSysctls = map[string]string{
	"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
	"ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0", "ipv4/fib_multipath_hash_policy": "1", "ipv6/fib_multipath_hash_policy": "1",
	"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0",
}

func writeSysctls() error {
	for name, value := range hostSysctls {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// joinMachine makes the bridge.
func joinMachine(machine place) error {
	return machine.do(func() error {
		if err := errors.Join(writeSysctls(), up("lo"),
			netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: nodeBridge}}), up(nodeBridge)); err != nil {
			return err
		}
		return errors.Join(addAddrs(nodeBridge, machineAddrs), addAddrs("lo", clientAddrs))
	})
}

// joinNode links a node to the bridge, and lets the machine and the other nodes know its pods' ranges.
func joinNode(c *cluster, n node) error {
	own, err := n.Init.open("ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	if err := c.machine().do(func() error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: n.Name})
		pair.PeerName, pair.PeerNamespace = "eth0", netlink.NsFd(own.Fd())
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		bridge, err := netlink.LinkByName(nodeBridge)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(pair, bridge), up(n.Name), route(n))
	}); err != nil {
		return fmt.Errorf("%s: link: %w", n.Name, err)
	}
	return n.place().do(func() error {
		if err := errors.Join(writeSysctls(), up("lo"), up("eth0"), addAddrs("eth0", n.addrs())); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		for _, gateway := range machineAddrs {
			if err := addRoute(everything(gateway.Addr()), gateway.Addr()); err != nil {
				return fmt.Errorf("%s: default route: %w", n.Name, err)
			}
		}
		for _, other := range c.Nodes {
			if other.Name != n.Name {
				if err := route(other); err != nil {
					return fmt.Errorf("%s: route to %s: %w", n.Name, other.Name, err)
				}
			}
		}
		return nil
	})
}

// route adds routes to the pods of a node.
func route(n node) error {
	for i, pods := range n.podRanges() {
		if err := addRoute(pods, n.addrs()[i].Addr()); err != nil {
			return err
		}
	}
	return nil
}

func addRoute(to netip.Prefix, gateway netip.Addr) error {
	return netlink.RouteReplace(&netlink.Route{Dst: ipNet(to), Gw: gateway.AsSlice()})
}

func everything(like netip.Addr) netip.Prefix {
	if like.Is4() {
		return netip.MustParsePrefix("0.0.0.0/0")
	}
	return netip.MustParsePrefix("::/0")
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func addAddrs(name string, addrs []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		a := &netlink.Addr{IPNet: ipNet(addr)}
		if addr.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return err
		}
	}
	return nil
}

// joined returns addresses without their networks, separated by commas.
func joined(addrs []netip.Prefix) string {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.Addr().String()
	}
	return strings.Join(texts, ",")
}
