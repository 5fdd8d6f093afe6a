package verb

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
)

// trouble is what keeps one packet from an endpoint.
type trouble struct {
	causeKey
	why string
	// endpoint is the one that the packet was going to; the zero value if the rules had not chosen one.
	endpoint netip.AddrPort
	// asked says that the Service's owner asks for it, or that a firewall may mean it: no fault by itself.
	asked bool
	// undecided says that nobody can tell whether the packet arrives, and unknown that the walk itself does not know what a
	// rule or the kernel does, so the check could not find out.
	undecided, unknown bool
}

// causeKey identifies a cause. Two packets with the same key share a finding.
type causeKey struct {
	text string
	rule *nft.Rule
}

// cause is a finding in the making.
type cause struct {
	CheckFinding
	services, clients map[string]bool
	endpoints         map[netip.AddrPort]bool
	// cells counts the cells of the matrix that it hits, and order is the place at which it was found first.
	cells, order int
	undecided    bool
}

// The shown lengths of lists in a finding.
const maxFindingNames = 100

// finding returns what the cause has collected.
func (c *cause) finding() CheckFinding {
	f := c.CheckFinding
	services := slices.Sorted(maps.Keys(c.services))
	f.Services, f.ServicesTotal = services[:min(len(services), maxFindingNames)], len(services)
	endpoints := slices.SortedFunc(maps.Keys(c.endpoints), netip.AddrPort.Compare)
	f.Endpoints, f.EndpointsTotal = endpoints[:min(len(endpoints), maxFindingNames)], len(endpoints)
	return f
}

// troubleOf says what keeps a packet to a frontend from its endpoints; nil if nothing does.
func (e *checker) troubleOf(f *compiler.Frontend, k *clientKind, p evaluator.Packet, fate *evaluator.Fate) *trouble {
	if fate.Result == evaluator.Delivered {
		return e.misdelivered(f, fate)
	}
	t := &trouble{}
	if fate.Destination.IsValid() && fate.Destination != p.Destination {
		t.endpoint = fate.Destination
	}
	if len(fate.Depends) > 0 {
		t.undecided = true
	}
	foreign := e.explains.decider(fate)
	switch reason := reasonOf(fate); {
	case reason == ReasonSentOn:
		return nil
	case fate.Result == evaluator.Undecided:
		t.undecided, t.unknown = true, true
		t.text = "not known: " + fate.Path[len(fate.Path)-1].Verdict
		if foreign != nil {
			t.text, t.rule, t.why = placeOf(foreign)+": the result is not known", foreign.Rule, foreign.Verdict
		}
	case fate.Path.EndsInKernel():
		t.text, t.why = kernelCause(fate)
	case foreign != nil:
		verb := map[evaluator.Result]string{evaluator.Dropped: "drops it", evaluator.Refused: "refuses it"}[fate.Result]
		t.text, t.rule, t.why = fmt.Sprintf("%s %s%s", chainOf(foreign), verb, ruleNumber(foreign)), foreign.Rule, ruleTextOf(foreign)
		t.asked = f.Kind == compiler.FrontendNodePort && k.Kind == clientOutside
	case reason == ReasonNoEndpoints:
		t.text, t.why = "no ready endpoint", "the proxy refuses connections to a Service that has no ready endpoint on any node"
	case reason == ReasonPolicyLocal:
		t.asked = true
		policy := "externalTrafficPolicy"
		if f.Kind == compiler.FrontendClusterIP {
			policy = "internalTrafficPolicy"
		}
		t.text, t.why = policy+" Local and no ready endpoint here", "the Service asks for it: endpoints on other nodes serve; load balancers find out by the health check node port"
	case reason == ReasonSource:
		t.asked = true
		t.text, t.why = "loadBalancerSourceRanges leaves clients out", "the Service asks for it; ruledump services -o wide shows the ranges"
	default:
		t.text = fmt.Sprintf("%s: %s", fate.Result, reason)
	}
	return t
}

// misdelivered returns the trouble of a packet that arrives where no endpoint of the frontend is; nil if it arrives rightly.
func (e *checker) misdelivered(f *compiler.Frontend, fate *evaluator.Fate) *trouble {
	to := fate.Destination
	switch {
	case slices.Contains(f.Endpoints, to), slices.Contains(f.LocalEndpoints, to), isUntracked(fate.Path):
		return e.byDefault(to, fate)
	case fate.Untouched():
		return &trouble{causeKey: causeKey{text: "no rule translates it"}, why: "the packet goes on to the Service's own address"}
	}
	for _, s := range slices.Backward(fate.Path) {
		if s.Rule != nil && s.Table.Kernel != nil && s.Table.Kernel.Other && has(s.Rule, func(nft.NAT) bool { return true }) {
			return &trouble{causeKey: causeKey{chainOf(&s) + " sends it elsewhere" + ruleNumber(&s), s.Rule}, why: ruleTextOf(&s), endpoint: to}
		}
	}
	return nil // session affinity, and what another program's redirect does
}

// byDefault returns the trouble of a packet to a pod that leaves by the default route. Where the node has routes to other pods,
// one is missing; else a router of the network may know all pods.
func (e *checker) byDefault(to netip.AddrPort, fate *evaluator.Fate) *trouble {
	r := fate.Route
	if fate.Local || !r.Destination.IsValid() || r.Destination.Bits() > 0 || !e.network.isInPods(to.Addr()) {
		return nil
	}
	return &trouble{
		causeKey: causeKey{text: fmt.Sprintf("no route to %s but the default one", networkOf(to.Addr()))}, endpoint: to,
		why: "packets to these pods leave " + r.String() + ", and may never arrive", asked: !e.network.routesPods(to.Addr()),
	}
}

// decider returns the step of another program that ended a packet's way; nil if none did.
func (e *Explanation) decider(fate *evaluator.Fate) *evaluator.Step {
	if e.decidedBy(fate) == nil {
		return nil
	}
	for i := len(fate.Path) - 1; i >= 0; i-- {
		if fate.Path[i].Chain != nil {
			return &fate.Path[i]
		}
	}
	return nil
}

// networkOf is the network that an endpoint is named by: nodes have networks of pods of such lengths.
func networkOf(addr netip.Addr) netip.Prefix {
	bits := 24
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // the length fits
	return p
}

// kernelCause says why the kernel itself ended a packet's way.
func kernelCause(fate *evaluator.Fate) (text, why string) {
	last := &fate.Path[len(fate.Path)-1]
	verdict := strings.TrimPrefix(last.Verdict, "routing: ")
	short, _, _ := strings.Cut(verdict, " and ")
	switch fate.Failure {
	case evaluator.NoRoute, evaluator.Unreachable, evaluator.Prohibited, evaluator.Blackholed:
		what := map[evaluator.RoutingFailure]string{evaluator.NoRoute: "no route"}[fate.Failure]
		return fmt.Sprintf("%s to %s", cmp.Or(what, strings.TrimPrefix(verdict, "there is ")), networkOf(fate.Destination.Addr())), "packets to these endpoints do not leave the node"
	}
	return short, verdict
}

func chainOf(s *evaluator.Step) string { return tableName(s.Table) + " " + s.Chain.Name }

// placeOf is a rule's place, such as "inet fw forward (rule 12)".
func placeOf(s *evaluator.Step) string { return chainOf(s) + ruleNumber(s) }

// ruleNumber is the place of the step's rule in its chain, from 1, as iptables counts.
func ruleNumber(s *evaluator.Step) string {
	for i := range s.Chain.Rules {
		if s.Rule == &s.Chain.Rules[i] {
			return fmt.Sprintf(" (rule %d)", i+1)
		}
	}
	return fmt.Sprintf(" (%s)", s.Verdict)
}

func ruleTextOf(s *evaluator.Step) string {
	if s.Rule == nil {
		return "no rule of the chain accepts it"
	}
	return s.Rule.String()
}
