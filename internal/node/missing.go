package node

import "strings"

// Missing is what counts of the Node and is not known. The zero value is nothing.
type Missing struct {
	// Node says that there has been no Node of the proxy's name. If it has another one, the proxy does
	// not know which endpoints are local.
	Node bool
	// Addresses says that the Node has no address, or under RequireDualStack not both.
	Addresses bool
	// PodCIDRs says that the Node has no pod CIDR, and Options.NodeCIDR needs one.
	PodCIDRs bool
	// Waiting says that the proxy still waits, for up to Options.Wait, and that this node is better
	// not sent any traffic.
	Waiting bool
}

func (m Missing) any() bool { return m.Node || m.Addresses || m.PodCIDRs }

// String returns the parts that are missing.
func (m Missing) String() string {
	var parts []string
	for _, part := range []struct {
		missing bool
		name    string
	}{{m.Node, "the Node"}, {m.Addresses, "addresses"}, {m.PodCIDRs, "pod CIDRs"}} {
		if part.missing {
			parts = append(parts, part.name)
		}
	}
	return strings.Join(parts, ", ")
}

func (w *watch) missing() Missing {
	return Missing{
		Node:      w.object == nil,
		Addresses: len(w.known.ips) < w.options.wantedIPs(),
		PodCIDRs:  w.options.NodeCIDR && len(w.known.podCIDRs) == 0,
	}
}

// logMissing says what it is that does not work now, and what to do.
func (w *watch) logMissing(m Missing) {
	about := []any{"node", w.options.NodeName, "waited", w.options.Wait.String()}
	if m.Node {
		w.logger.Error(nil, "Going on without a Node, because there is none of this name. If it has another one, set hostnameOverride: endpoints on it are not known as local", about...)
	}
	if m.Addresses {
		w.logger.Error(nil, "Going on without the node's addresses; node ports do not answer on them until the Node has them", about...)
	}
	if m.PodCIDRs {
		w.logger.Error(nil, "Going on without the node's pod CIDRs, which detectLocalMode NodeCIDR needs; until the Node has them, nothing to a ClusterIP is masqueraded, and pods have no short-circuit under policy Local. "+
			"Have the controller manager allocate them (--allocate-node-cidrs), or set another detectLocalMode", about...)
	}
}
