package lab

import (
	"fmt"
	"net/netip"
	"sync"
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

	// bridge is what the pods on node-1 are connected to; nil when each has a link of its own.
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
