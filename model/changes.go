package model

import (
	"net/netip"
	"slices"
)

// Node is the part of the model's node that backends need.
type Node struct {
	// Name is the node's name in Kubernetes.
	Name string
	// IPs are the node's primary addresses, at most one for each family, the primary family first.
	IPs []netip.Addr
	// PodCIDRs are the pod networks of this node (detect-local mode NodeCIDR).
	PodCIDRs []netip.Prefix
	// GoingAway says that the node's deletion has begun: its Node object has a deletion timestamp, or the taint
	// ToBeDeletedByClusterAutoscaler, or is gone. Load balancers should send it no new connections (KEP-3836).
	GoingAway bool
}

// Equal reports whether a backend would see no difference between n and other. Two nil Nodes are equal.
func (n *Node) Equal(other *Node) bool {
	if n == nil || other == nil {
		return n == other
	}
	return n.Name == other.Name && n.GoingAway == other.GoingAway &&
		slices.Equal(n.IPs, other.IPs) && slices.Equal(n.PodCIDRs, other.PodCIDRs)
}

// Changes holds the differences since the last Changes that a backend applied.
type Changes struct {
	// Full says that Ports has all existing ports, and all other ports are gone.
	Full bool
	// Ports holds the new value of each port that changed; nil means that the port is gone. The ServicePorts are shared
	// and must not be modified.
	Ports map[PortID]*ServicePort
	// Node is the node when it changed or Full is set, else nil.
	Node *Node
	// ServiceCIDRs are all ranges of the cluster's ServiceCIDR objects, sorted. They are valid only if
	// ServiceCIDRsChanged is set.
	ServiceCIDRs []netip.Prefix
	// ServiceCIDRsChanged says that ServiceCIDRs changed, or that Full is set.
	ServiceCIDRsChanged bool
}

// PortsByID returns Changes.Ports for existing ports.
func PortsByID(ports ...*ServicePort) map[PortID]*ServicePort {
	byID := make(map[PortID]*ServicePort, len(ports))
	for _, p := range ports {
		byID[p.ID] = p
	}
	return byID
}

// Empty reports whether c has no changes. Full changes are never empty.
func (c *Changes) Empty() bool {
	return !c.Full && len(c.Ports) == 0 && c.Node == nil && !c.ServiceCIDRsChanged
}

// Merge adds the later changes next to c. A later change to the same port, to the node or to the ranges replaces the
// earlier one. A loop merges when a backend did not apply c. It may modify c.Ports, and c may share memory with next
// afterwards.
func (c *Changes) Merge(next *Changes) {
	if next.Full {
		*c = *next
		return
	}
	if c.Ports == nil && len(next.Ports) > 0 {
		c.Ports = make(map[PortID]*ServicePort, len(next.Ports))
	}
	for id, port := range next.Ports {
		if port == nil && c.Full {
			delete(c.Ports, id)
			continue
		}
		c.Ports[id] = port
	}
	if next.Node != nil {
		c.Node = next.Node
	}
	if next.ServiceCIDRsChanged {
		c.ServiceCIDRs, c.ServiceCIDRsChanged = next.ServiceCIDRs, true
	}
}
