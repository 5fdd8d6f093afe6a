package node

import "strings"

// Missing is what counts of the Node and is not known. The zero value is nothing.
type Missing struct {
	// Addresses says that the Node has no address, or under RequireDualStack not both.
	Addresses bool
	// PodCIDRs says that the Node has no pod CIDR, and Options.NodeCIDR needs one.
	PodCIDRs bool
	// Waiting says that the proxy still waits, for up to Options.Wait, and that this node is better
	// not sent any traffic.
	Waiting bool
}

func (m Missing) any() bool { return m.Addresses || m.PodCIDRs }

// String returns the parts that are missing.
func (m Missing) String() string {
	var parts []string
	if m.Addresses {
		parts = append(parts, "addresses")
	}
	if m.PodCIDRs {
		parts = append(parts, "pod CIDRs")
	}
	return strings.Join(parts, ", ")
}

func (w *watch) missing() Missing {
	return Missing{
		Addresses: len(w.known.ips) < w.options.wantedIPs(),
		PodCIDRs:  w.options.NodeCIDR && len(w.known.podCIDRs) == 0,
	}
}

// logMissing says what it is that does not work now, and what to do.
func (w *watch) logMissing(m Missing) {
	cause := "it has none"
	if w.object == nil {
		cause = "no Node has this name; if it has another one, set hostnameOverride"
	}
	if m.Addresses {
		w.logger.Error(nil, "Going on without the node's addresses; node ports do not answer on them until the Node has them",
			"node", w.options.NodeName, "cause", cause, "waited", w.options.Wait.String())
	}
	if m.PodCIDRs {
		w.logger.Error(nil, "Going on without the node's pod CIDRs, which detectLocalMode NodeCIDR needs; until the Node has them, nothing to a ClusterIP is masqueraded, and pods have no short-circuit under policy Local. "+
			"Have the controller manager allocate them (--allocate-node-cidrs), or set another detectLocalMode",
			"node", w.options.NodeName, "cause", cause, "waited", w.options.Wait.String())
	}
}
