package verb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// Reason is the reason of a packet's fate, in a word.
type Reason string

// The reasons.
const (
	ReasonServed      Reason = "served"             // a frontend sent it to an endpoint
	ReasonAffinity    Reason = "affinity"           // the same, to the endpoint where session affinity keeps the client
	ReasonNotService  Reason = "not-a-service"      // the rules leave it alone
	ReasonNoEndpoints Reason = "no-endpoints"       // no usable endpoint on any node
	ReasonPolicyLocal Reason = "policy-local"       // policy Local, and no usable endpoint on this node
	ReasonUnknownPort Reason = "unknown-port"       // a ClusterIP that does not have the port, or the protocol
	ReasonUnassigned  Reason = "unassigned-address" // an address of a ServiceCIDR that no Service holds
	ReasonSource      Reason = "source-not-allowed" // loadBalancerSourceRanges does not name the client
	ReasonOther       Reason = "foreign-rule"       // a rule that the proxy did not write
)

// SourceReason is the reason why a packet's source address was kept or masqueraded, in a word.
type SourceReason string

// The reasons. The first four masquerade, the others keep.
const (
	SourceHairpin       SourceReason = "hairpin"
	SourceOutside       SourceReason = "not-a-cluster-client"
	SourcePolicyCluster SourceReason = "policy-cluster"
	SourceNode          SourceReason = "from-the-node"
	SourceAll           SourceReason = "masquerade-all"
	SourceClusterClient SourceReason = "cluster-client"
	SourcePolicyLocal   SourceReason = "policy-local"
	SourceNotTold       SourceReason = "clients-are-not-told-apart"
	SourceForeign       SourceReason = "foreign-rule"
)

// reasonOf concludes the reason from the rule that decided: the last rule of the path whose chain has a role.
func reasonOf(fate *evaluator.Fate) Reason {
	if fate.Failure != "" {
		return Reason(fate.Failure)
	}
	if fate.Result == evaluator.Delivered {
		return reasonOfDelivery(fate)
	}
	switch {
	case !fate.Path.EndsInKernel():
	case fate.Result == evaluator.Dropped:
		return ReasonKernel
	case fate.Result == evaluator.Undecided:
		return ReasonRoutingUnknown
	}
	for i := len(fate.Path) - 1; i >= 0; i-- {
		step := &fate.Path[i]
		if step.Chain == nil || step.Rule == nil {
			continue
		}
		if isDirect(step.Chain.Name) && drops(step.Rule) {
			return reasonOfDirect(fate, step)
		}
		switch max(compiler.RoleOf(step.Chain.Name), kubeProxyRoles[step.Chain.Name]) {
		case compiler.RoleFirewall:
			return ReasonSource
		case compiler.RoleNoEndpoints:
			if fate.Result == evaluator.Refused {
				return ReasonNoEndpoints
			}
			return ReasonPolicyLocal
		case compiler.RoleClusterIPs:
			if fate.Result == evaluator.Refused {
				return ReasonUnknownPort
			}
			return ReasonUnassigned
		}
	}
	return ReasonOther
}

func reasonOfDelivery(fate *evaluator.Fate) Reason {
	reason := ReasonNotService
	for _, step := range fate.Path {
		if step.Rule == nil || len(step.Elements) == 0 {
			continue
		}
		if has(step.Rule, func(n nft.NAT) bool { return compiler.IsAffinityMap(n.Map()) }) {
			return ReasonAffinity
		}
		if has(step.Rule, func(n nft.NAT) bool { return n.Map() != "" }) {
			reason = ReasonServed
		}
	}
	if reason == ReasonNotService && !fate.Untouched() {
		return ReasonOther
	}
	return reason
}

// sourceReasonOf finds the rule that decided about the source; empty for a packet that no endpoint gets.
func sourceReasonOf(fate *evaluator.Fate) (reason SourceReason) {
	for i := range fate.Path {
		step := &fate.Path[i]
		if step.Chain == nil || step.Rule == nil {
			continue
		}
		if has(step.Rule, func(s nft.InSet) bool { return compiler.IsHairpinSet(s.Set) }) {
			return SourceHairpin
		}
		if r := sourceReasonOfStep(step, reason == SourceOutside); r != "" {
			reason = r
		}
	}
	if fate.Masqueraded && reason == SourceDirectReturn {
		return SourcePolicyCluster // a client of the cluster, or a slot that is nobody's
	}
	// The proxy's rules keep the source. Another program has set the proxy's mark, or has translated the source itself.
	if fate.Masqueraded && slices.Contains([]SourceReason{SourceClusterClient, SourcePolicyLocal, SourceNotTold}, reason) {
		reason = SourceForeign
	}
	return reason
}

// has reports whether a rule has a statement of one type that matches.
func has[S nft.Statement](r *nft.Rule, matches func(S) bool) bool {
	return slices.ContainsFunc(r.Statements, func(s nft.Statement) bool {
		one, is := s.(S)
		return is && matches(one)
	})
}

// isUntracked reports whether a rule kept the packet from connection tracking, as those of NodeLocal DNSCache do.
func isUntracked(path evaluator.Path) bool {
	return slices.ContainsFunc(path, func(s evaluator.Step) bool {
		return s.Rule != nil && has(s.Rule, func(nft.Notrack) bool { return true })
	})
}

// marksAt returns the place of the statement that sets the mark; -1 if the rule has none.
func marksAt(r *nft.Rule) int {
	return slices.IndexFunc(r.Statements, func(s nft.Statement) bool {
		set, is := s.(nft.Assign)
		return is && set.SetsMark()
	})
}

func marks(r *nft.Rule) bool { return marksAt(r) >= 0 }

// marksSome reports whether a rule marks the clients that it matches, and not all.
func marksSome(r *nft.Rule) bool { return marks(r) && len(r.Statements) > 1 }

// sourceReasonOfStep returns the reason that a step adds; empty for none. outside says that an earlier step marked the
// packet because its client is outside the cluster.
//
// Each role has a reason to mark packets for masquerading and a reason not to. A rule that marks only some clients tells
// clients apart; if it did not match, the client is one of the cluster's own. A later step overrides an earlier one,
// except that a hairpin overrides all.
func sourceReasonOfStep(step *evaluator.Step, outside bool) SourceReason {
	kept, marked := SourceReason(""), SourceReason("")
	switch compiler.RoleOf(step.Chain.Name) {
	case compiler.RoleMarkUnlessLocal:
		kept, marked = SourceClusterClient, SourceOutside
	case compiler.RoleShortCircuit:
		kept, marked = SourceClusterClient, SourceNode
	case compiler.RoleServeExternal:
		marked = SourcePolicyCluster
	case compiler.RoleServeReturn:
		kept, marked = SourceDirectReturn, SourcePolicyCluster
	case compiler.RoleServeCluster:
		marked = SourceAll
		if marksSome(step.Rule) {
			marked = SourceOutside
		}
		// The first rule of a ClusterIP's chain shows whether the chain tells clients apart.
		switch first := &step.Chain.Rules[0]; {
		case outside:
		case step.Rule == first:
			kept = SourceNotTold
		case marksSome(first):
			kept = SourceClusterClient
		}
	case compiler.RoleServeLocal:
		return SourcePolicyLocal
	case compiler.RoleKnownLocal:
		kept, marked = SourceClusterClient, SourceNode
		if has(step.Rule, func(n nft.NAT) bool { return compiler.IsLocalAffinityMap(n.Map()) }) {
			return SourcePolicyLocal
		}
	}
	if marks(step.Rule) {
		return marked
	}
	return kept
}

// sourceTexts explain each SourceReason.
var sourceTexts = map[SourceReason]string{
	SourceHairpin:       "the source is masqueraded: the endpoint is the client itself",
	SourceOutside:       "the source is masqueraded: the client is outside the cluster",
	SourcePolicyCluster: "the source is masqueraded: externalTrafficPolicy is Cluster",
	SourceNode:          "the source is masqueraded: the client is the node itself",
	SourceAll:           "the source is masqueraded: masqueradeAll is set",
	SourceForeign:       "the source is masqueraded: another program has set the mark for that, or masquerades itself",
	SourceDirectReturn:  "the source is kept: direct return, and the endpoint is on this node",
	SourceClusterClient: "the source is kept: the client is one of the cluster's own",
	SourcePolicyLocal:   "the source is kept: externalTrafficPolicy is Local",
	SourceNotTold:       "the source is kept: no detectLocal setting applies to this IP family",
}

// sourceText returns the SourceReason in words. For a client outside the cluster it names the range of pods, or the
// condition of the rule that marked the packet. The rules do not tell whether the range is clusterCIDR or, under
// detectLocalMode NodeCIDR, the Node's.
func sourceText(reason SourceReason, path evaluator.Path) string {
	text := sourceTexts[reason]
	if reason != SourceOutside {
		return text
	}
	for _, s := range path {
		if s.Rule == nil || marksAt(s.Rule) < 1 {
			continue
		}
		conditions := s.Rule.Statements[:marksAt(s.Rule)]
		if m, is := conditions[len(conditions)-1].(nft.Match); is && m.Op == nft.NotEqual && (m.Field == nft.IPSaddr || m.Field == nft.IP6Saddr) {
			if pods, is := m.Value.(netip.Prefix); is {
				return fmt.Sprintf("the source is masqueraded: the client is outside clusterCIDR %s", pods)
			}
		}
		return fmt.Sprintf("%s (%s)", text, nft.Rule{Statements: conditions})
	}
	return text
}

// why returns both reasons in one sentence.
func (e *Explanation) why(o *Outcome, fate *evaluator.Fate, dialed *compiler.Frontend) string {
	name, node := "no Service", "this node"
	if e.Node != "" {
		node = e.nodeText()
	}
	if dialed != nil {
		name = dialed.ServicePort
	}
	switch {
	case fate.Failure != "" && dialed != nil && fate.Destination != e.packet.Destination:
		return "the kernel does not route it, after " + name + " has chosen the destination"
	case fate.Failure != "":
		return "the kernel does not route it"
	case o.Reason == ReasonRoutingUnknown:
		return "what the kernel does with it is not known: the last line below"
	}
	switch o.Reason {
	case ReasonKernel:
		return "dropped by the kernel, not by a rule; " + o.Path[len(o.Path)-1].Verdict
	case ReasonServed:
		to := "the only endpoint"
		if n := drawnFrom(dialed, o); n != 1 {
			to = fmt.Sprintf("one of %d endpoints", n)
		}
		if o.SourceReason == SourcePolicyLocal {
			to += " on " + node
		}
		return fmt.Sprintf("sent to %s: %s; %s", to, name, sourceText(o.SourceReason, fate.Path))
	case ReasonAffinity:
		return fmt.Sprintf("sent to the endpoint of %s that session affinity keeps the client at; %s", name, sourceText(o.SourceReason, fate.Path))
	case ReasonNotService:
		if isUntracked(fate.Path) {
			return "left alone: a rule keeps it from connection tracking, and only packets that are tracked are translated"
		}
		if f := e.byNodePort; f != nil && e.packet.Destination.Addr().IsLoopback() {
			if e.packet.Protocol == unix.IPPROTO_TCP {
				return "left alone by the rules: at loopback addresses the proxy's own forwarder serves node ports, if nodePortAddresses names localhost: " + f.ServicePort
			}
			return "left alone by the rules: at loopback addresses the proxy's own forwarder serves node ports, but only those of TCP: " + f.ServicePort
		}
		return "left alone: no Service has this address and port here"
	case ReasonNoEndpoints:
		return fmt.Sprintf("refused: %s has no ready endpoint on any node", name)
	case ReasonPolicyLocal:
		policy := "externalTrafficPolicy"
		if dialed != nil && dialed.Kind == compiler.FrontendClusterIP {
			policy = "internalTrafficPolicy"
		}
		return fmt.Sprintf("dropped: %s Local of %s and no ready endpoint on %s", policy, name, node)
	case ReasonUnknownPort:
		if e.ports == nil || e.packet.Destination.Port() == 0 {
			return "refused: the address is a ClusterIP, and its Service does not have this port"
		}
		return fmt.Sprintf("refused: %s is the ClusterIP of %s, which has no port %d/%s: its ports are %s",
			e.packet.Destination.Addr(), e.holder, e.packet.Destination.Port(), model.Protocol(e.packet.Protocol), strings.Join(e.ports[:min(len(e.ports), explainShown)], ", "))
	case ReasonUnassigned:
		return "dropped: the address is in a ServiceCIDR, and no Service holds it"
	case ReasonSentOn, ReasonCopyDropped, ReasonUnknownConnection:
		return directText(o.Reason, name, node)
	case ReasonSource:
		text := fmt.Sprintf("dropped: loadBalancerSourceRanges of %s does not name %s", name, e.packet.Source.Addr())
		if dialed != nil && len(dialed.Sources) > 0 {
			text += ", but " + firstOf(dialed.Sources)
		}
		return text
	}
	return o.Result + ": by a rule that is not the proxy's, the last one below"
}

// firstOf lists the first prefixes.
func firstOf(prefixes []netip.Prefix) string {
	text := join(prefixes[:min(len(prefixes), maxSources)], ", ")
	if more := len(prefixes) - maxSources; more > 0 {
		text += fmt.Sprintf(", %d more", more)
	}
	return text
}
