package verb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/directreturn/entrance"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The reasons of direct return.
const (
	ReasonSentOn            Reason       = "sent-on"            // to the node of its endpoint, as it is
	ReasonCopyDropped       Reason       = "copy-dropped"       // the same, but the node's own rules drop it
	ReasonUnknownConnection Reason       = "unknown-connection" // another node forwarded it, and it is of no connection or slot of this node
	SourceDirectReturn      SourceReason = "direct-return"
)

// isDirect reports whether a chain is one of direct return.
func isDirect(chain string) bool {
	role := compiler.RoleOf(chain)
	return role == compiler.RoleDirectForward || role == compiler.RoleServeReturn
}

// drops reports whether a rule drops packets.
func drops(r *nft.Rule) bool { return has(r, func(v nft.Verdict) bool { return v == nft.Drop }) }

// forwards reports whether a rule forwards packets to other nodes, and drops the original.
func forwards(r *nft.Rule) bool {
	return r != nil && has(r, func(nft.Dup) bool { return true })
}

// reasonOfDirect returns the reason why a rule of direct return ended a packet here.
func reasonOfDirect(fate *evaluator.Fate, step *evaluator.Step) Reason {
	switch {
	case fate.CopyTo.IsValid():
		return ReasonSentOn
	case len(step.Elements) > 0 && forwards(step.Rule):
		return ReasonCopyDropped
	}
	return ReasonUnknownConnection
}

func directText(reason Reason, servicePort, node string) string {
	switch reason {
	case ReasonSentOn:
		return fmt.Sprintf("direct return of %s: the node of the endpoint translates it, keeps the source, and answers the client itself", servicePort)
	case ReasonCopyDropped:
		return fmt.Sprintf("dropped: direct return of %s sends it to the node of the endpoint, and a rule for packets that this node sends drops it (below)", servicePort)
	}
	return fmt.Sprintf("dropped: a node has forwarded it by direct return of %s, and %s knows neither its connection nor its slot", servicePort, node)
}

// checkDirectReturn looks for what keeps the node from forwarding packets, or may lose them. The proxy's log says the same.
func (p *preflight) checkDirectReturn() {
	asking := p.servicesThat(func(s *corev1.Service) bool { return s.Annotations[tracker.AnnotationDirectReturn] == "true" })
	switch on := p.gates().Enabled(config.DirectReturn); {
	case !on && len(asking) == 0:
		return
	case !on:
		p.look("these ask for direct return: "+some(asking, shownNames), "without the feature gate "+string(config.DirectReturn)+" their clients are masqueraded",
			"set the gate on all nodes, or go on if this is meant")
	case len(asking) > 0:
		p.fine("these ask for direct return: "+some(asking, shownNames), "", "set the feature gate on all nodes")
	}
	switch obstacle, err := entrance.Obstacle(p.remoteEndpoints(asking)); {
	case err != nil:
		p.err = err
	case obstacle != "":
		p.look(obstacle, "this node forwards nothing by direct return: clients that enter by it are masqueraded", "go on if this is meant")
	}
	doubts, err := entrance.Doubts(p.others.DropsAt(nft.HookOutput))
	p.err = cmp.Or(p.err, err)
	for _, d := range doubts {
		p.look(d.What+" "+some(d.Names, shownNames), d.Why, d.Advice)
	}
}

// remoteEndpoints returns the addresses of the endpoints of Services that are not on this node.
func (p *preflight) remoteEndpoints(services []string) (remote []netip.Addr) {
	if p.objects == nil {
		return nil
	}
	for _, s := range p.objects.EndpointSlices {
		if !slices.Contains(services, s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName]) {
			continue
		}
		for _, e := range s.Endpoints {
			if e.NodeName == nil || *e.NodeName == p.out.Node {
				continue
			}
			for _, text := range e.Addresses {
				if addr, err := netip.ParseAddr(text); err == nil {
					remote = append(remote, addr)
				}
			}
		}
	}
	return remote
}
