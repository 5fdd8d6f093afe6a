package lab

import (
	"net/netip"
	"slices"

	kernel "github.com/nftproxy/nftproxy/sysctl"
)

// HasIPv6 says whether this machine's kernel has IPv6. On one that has not, hosts get IPv4 addresses alone.
var HasIPv6 = kernel.Tree{}.KernelHasIPv6()

// Addrs are the addresses of a host in both families.
type Addrs struct {
	// IPv4 and IPv6 are one address of each family.
	IPv4, IPv6 netip.Addr
}

// Like returns the address of the family that other is of.
func (a Addrs) Like(other netip.Addr) netip.Addr {
	if other.Is4() {
		return a.IPv4
	}
	return a.IPv6
}

// list returns the addresses that hosts can have, IPv4 first.
func (a Addrs) list() []netip.Addr {
	return possible([]netip.Addr{a.IPv4, a.IPv6})
}

// possible leaves out the addresses that no host of this machine can have.
func possible(addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return a.Is6() && !HasIPv6 })
}

func dual(ipv4, ipv6 string) Addrs {
	return Addrs{IPv4: netip.MustParseAddr(ipv4), IPv6: netip.MustParseAddr(ipv6)}
}

// NodeName and RemoteName are what Kubernetes objects call the two nodes.
const (
	NodeName   = "node-1"
	RemoteName = "node-2"
)

// The addresses of the fixed part of the cluster. Service, external and load balancer
// addresses are not here: the lab routes whatever it does not know to node-1, so a test is
// free to choose them.
var (
	// NodeAddrs is the primary address of node-1, which all it sends starts from.
	NodeAddrs = dual("192.168.0.1", "fd00:1::1")
	// GatewayAddrs is node-1 as its pods see it: what a packet to a local pod is masqueraded
	// to. It differs from NodeAddrs so that a masqueraded packet of node-1 to a pod can be told from one that was not.
	GatewayAddrs = dual("10.244.1.254", "fd00:10:244:1::254")
	// ClientAddrs is the pod on node-1 that always exists.
	ClientAddrs = dual("10.244.1.250", "fd00:10:244:1::250")
	// RemoteAddrs is node-2.
	RemoteAddrs = dual("192.168.0.2", "fd00:1::2")
	// RemotePodAddrs is the pod on node-2 that always exists.
	RemotePodAddrs = dual("10.244.2.250", "fd00:10:244:2::250")
	// OutsideAddrs and SecondOutsideAddrs both are the host outside the cluster.
	OutsideAddrs       = dual("198.51.100.7", "2001:db8:51::7")
	SecondOutsideAddrs = dual("198.51.100.8", "2001:db8:51::8")
)

// The networks of pods, by node, one of each family.
var (
	LocalPodNetworks  = prefixes("10.244.1.0/24", "fd00:10:244:1::/64")
	RemotePodNetworks = prefixes("10.244.2.0/24", "fd00:10:244:2::/64")
)

func prefixes(texts ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		parsed[i] = netip.MustParsePrefix(text)
	}
	return parsed
}
