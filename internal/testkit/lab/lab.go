// Package lab builds a small cluster out of network namespaces, for sending real packets
// through the rules of one node.
//
//	           local pods, client                    remote pods
//	          (a namespace each, veth-…)          (addresses on node-2)
//	                   │                                  │
//	outside ──── node-1, under test ───────────────── node-2
//
// Every packet between two of them passes node-1, is forwarded there, and arrives
// untouched unless node-1 has rules that say otherwise. Both IP families work alike.
//
// Nothing here has a name in the file system: namespaces live as long as their file
// descriptors, so a process that dies leaves nothing behind, and a process that is root
// only in its own user namespace can build a lab as well. The namespace that the process
// started in is never changed. All of that is netlink, no program is executed.
//
// For tests there are labs and connections that end with the test, the commands of this module inside a
// host, and an API server for them.
package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	kernel "github.com/nftproxy/nftproxy/sysctl"
)

// Lab is a cluster of two nodes, one pod and a host outside, to which pods can be added.
// Its methods may be called from any goroutine.
type Lab struct {
	// Node is node-1, the node under test: it forwards everything that the others send.
	Node *Host
	// Remote is node-2. The pods on it are addresses of it.
	Remote *Host
	// Outside is a host that is not part of the cluster.
	Outside *Host
	// Client is a pod on node-1.
	Client *Host

	// bridge connects the pods on node-1; nil when each has a link of its own.
	bridge *port

	// mu guards what follows, and keeps pods with one name from being made twice.
	mu    sync.Mutex
	pods  map[string]*pod
	links int
}

// New builds a lab. The error is netns.ErrPrivilege when the process may not.
func New() (*Lab, error) { return NewWithBridge("") }

// NewWithBridge builds a lab whose pods on node-1 are connected to a bridge of that name, as
// some network plugins do it. An empty name is no bridge.
func NewWithBridge(name string) (*Lab, error) {
	l := &Lab{pods: map[string]*pod{}}
	if err := l.build(name); err != nil {
		l.Close()
		return nil, fmt.Errorf("lab: %w", err)
	}
	return l, nil
}

func (l *Lab) build(bridge string) (err error) {
	if l.Node, err = newHost(NodeName, router); err != nil {
		return err
	}
	if l.Remote, err = newHost(RemoteName, leaf); err != nil {
		return err
	}
	if l.Outside, err = newHost("outside", leaf); err != nil {
		return err
	}
	if err := l.joinRemote(); err != nil {
		return err
	}
	if err := l.joinOutside(); err != nil {
		return err
	}
	if bridge != "" {
		if l.bridge, err = newBridge(l.Node, bridge, l.nextLink()); err != nil {
			return err
		}
	}
	l.Client, err = l.AddPod("client", ClientAddrs.list()...)
	return err
}

// Close lets go of the lab; the kernel removes it in its own time. Sockets that are still
// open keep the namespace that they are in.
func (l *Lab) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.pods {
		l.abandon(name)
	}
	for _, h := range []*Host{l.Node, l.Remote, l.Outside} {
		if h != nil {
			h.close()
		}
	}
}

// HostOf returns the host that has addr, nil when none has.
func (l *Lab) HostOf(addr netip.Addr) *Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range []*Host{l.Node, l.Remote, l.Outside} {
		if h.Has(addr) {
			return h
		}
	}
	for _, p := range l.pods {
		if p.host.Has(addr) {
			return p.host
		}
	}
	return nil
}

// AddRemoteAddr adds a pod on node-2. Pods there share node-2's namespace: what matters to
// node-1 is only their addresses.
func (l *Lab) AddRemoteAddr(addr netip.Addr) error {
	if owner := l.HostOf(addr); owner != nil {
		return fmt.Errorf("lab: address %s is taken by %s", addr, owner.Name)
	}
	if err := l.Remote.addAddr(l.Remote.loopback(), addr); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if RemotePodNetworks[0].Contains(addr) || RemotePodNetworks[1].Contains(addr) {
		return nil
	}
	return l.routeToRemote(addr)
}

// RemoveRemoteAddr removes what AddRemoteAddr added.
func (l *Lab) RemoveRemoteAddr(addr netip.Addr) error {
	if err := l.Remote.removeAddr(l.Remote.loopback(), addr); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if RemotePodNetworks[0].Contains(addr) || RemotePodNetworks[1].Contains(addr) {
		return nil
	}
	return l.unrouteToRemote(addr)
}

func (l *Lab) nextLink() int {
	l.links++
	return l.links
}

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

// NodeName and RemoteName are the names of the two nodes in Kubernetes objects.
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
