package integration

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	t.Run("gives the reasons of golden flows", testExplainGoldenFlows)
	t.Run("knows what the kernel learned", testExplainKnowsWhatTheKernelLearned)
}

// testExplainGoldenFlows explains every flow of every golden case, of which TestGoldenFlows sends the packets. The
// result must be that of the case, and the reason must follow from the result and the Services. The test works out
// the reason from the model; explain knows the tables alone.
func testExplainGoldenFlows(t *testing.T) {
	reasons := map[verb.Reason]int{}
	sources := map[verb.SourceReason]int{}
	for _, g := range flows.Cases(t) {
		t.Run(g.Name, func(t *testing.T) {
			list := g.Flows()
			o := newOracle(t, g)
			s := &ruledump.Snapshot{Header: ruledump.Header{Node: "node-1", Addresses: flows.NodeUnderTest.Addresses}, Tables: o.compiler.Tables()}
			for _, f := range list {
				t.Run(f.Name, func(t *testing.T) {
					packet := f.Packet(g.PodLink(t))
					e, err := verb.Explain(s, packet)
					if err != nil {
						t.Fatal(err)
					}
					for _, got := range e.Outcomes {
						reasons[got.Reason]++
						sources[got.SourceReason]++
						o.judge(t, f, packet, got)
					}
				})
			}
		})
	}
	t.Run("every reason but that of foreign rules and of affinity comes up", func(t *testing.T) {
		for _, r := range []verb.Reason{verb.ReasonServed, verb.ReasonNotService, verb.ReasonNoEndpoints, verb.ReasonPolicyLocal, verb.ReasonUnknownPort, verb.ReasonUnassigned, verb.ReasonSource, verb.ReasonSentOn} {
			if reasons[r] == 0 {
				t.Errorf("no flow has the reason %s", r)
			}
		}
		for _, r := range []verb.SourceReason{
			verb.SourceHairpin, verb.SourceOutside, verb.SourcePolicyCluster, verb.SourceNode, verb.SourceAll,
			verb.SourceClusterClient, verb.SourcePolicyLocal, verb.SourceNotTold, verb.SourceDirectReturn,
		} {
			if sources[r] == 0 {
				t.Errorf("no flow has the source reason %s", r)
			}
		}
	})
}

// Explained by the tables of the kernel, a client stays with the endpoint that it reached before.
func testExplainKnowsWhatTheKernelLearned(t *testing.T) {
	g := flows.FindCase(t, "affinity-over-cluster-ip")
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), g.Compile(t))
	r := serve(t, l, g)
	all := []string{"10.244.1.5:8080", "10.244.1.6:8080", "10.244.2.6:8080"}
	before := explainLive(t, l, lab.ClientAddrs.IPv4.String(), "10.96.0.10:80")
	if want := "to " + strings.Join(all, " or ") + ", source kept"; !strings.Contains(before, want) {
		t.Fatalf("before the first connection, no %q in\n%s", want, before)
	}

	var reached []flows.Expectation
	for _, endpoint := range all {
		reached = append(reached, flows.Expectation{Endpoints: []netip.AddrPort{netip.MustParseAddrPort(endpoint)}})
	}
	met, became, err := r.Observe(flows.Flow{From: flows.FromClient, To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: flows.TCP}, reached)
	if err != nil || len(met) != 1 {
		t.Fatalf("the first connection %s: %v", became, err)
	}
	after := explainLive(t, l, lab.ClientAddrs.IPv4.String(), "10.96.0.10:80")
	for _, want := range []string{"\n\nto " + all[met[0]] + ", source kept", "map @affinity.shop.web.tcp (accept)\n"} {
		if !strings.Contains(after, want) {
			t.Errorf("after the first connection, no %q in\n%s", want, after)
		}
	}
	another := explainLive(t, l, lab.OutsideAddrs.IPv4.String(), "10.96.0.10:80")
	if want := "to " + strings.Join(all, " or ") + ", source masqueraded"; !strings.Contains(another, want) {
		t.Errorf("another client: no %q in\n%s", want, another)
	}
}

func explainLive(t *testing.T, l *lab.Lab, from, to string) string {
	t.Helper()
	p := lab.Start(t, l.Node, "ruledump", "explain", "--from", from, "--to", to)
	if err := p.Wait(); err != nil {
		t.Fatalf("ruledump explain: %v\n%s", err, p.Output())
	}
	return p.Output()
}

// oracle knows a case's Services as the tracker has them.
type oracle struct {
	compiler *compiler.Compiler
	config   compiler.Config
	node     *model.Node
}

func newOracle(t *testing.T, g flows.Case) *oracle {
	t.Helper()
	objects := g.Objects(t)
	options := g.TrackerOptions(t)
	tr := tracker.New(options)
	objects.Feed(tr)
	o := &oracle{config: g.Config(t)}
	var err error
	if o.compiler, err = compiler.New(o.config); err != nil {
		t.Fatal(err)
	}
	changes := tr.Changes()
	o.node = changes.Node
	o.compiler.Apply(changes)
	return o
}

// judge compares an outcome with what the case says of the flow.
func (o *oracle) judge(t *testing.T, f flows.Flow, p evaluator.Packet, got verb.Outcome) {
	t.Helper()
	port, kind := o.owner(p)
	result, reason, source := "delivered", verb.ReasonServed, verb.SourceReason("")
	switch f.Expect.Result {
	case flows.Untouched:
		result, reason = "untouched", verb.ReasonNotService
	case flows.Refused:
		result, reason = "refused", verb.ReasonNoEndpoints
		if port == nil {
			reason = verb.ReasonUnknownPort
		}
	case flows.Dropped:
		result, reason = "dropped", o.reasonOfDrop(p, port, kind)
	default:
		source = o.sourceReason(p, port, kind, got.Destinations)
	}
	if got.Result != result || got.Reason != reason || got.SourceReason != source {
		t.Errorf("%s, %s, %q; want %s, %s, %q\n%s", got.Result, got.Reason, got.SourceReason, result, reason, source, got.Why)
	}
	if got.Why == "" {
		t.Error("no sentence says why")
	}
}

// kinds of addresses that a packet may be for.
type addressKind int

const (
	clusterIP addressKind = iota
	loadBalancerIP
	externalIP
	nodePort
)

func (o *oracle) owner(p evaluator.Packet) (*model.ServicePort, addressKind) {
	to := p.Destination
	family, protocol := model.FamilyOf(to.Addr()), model.Protocol(p.Protocol)
	if port := o.compiler.Owner(family, protocol, to.Addr(), to.Port()); port != nil {
		switch {
		case port.ClusterIP == to.Addr():
			return port, clusterIP
		case slices.Contains(port.LoadBalancerIPs, to.Addr()):
			return port, loadBalancerIP
		}
		return port, externalIP
	}
	return o.compiler.Owner(family, protocol, netip.Addr{}, to.Port()), nodePort
}

func (o *oracle) reasonOfDrop(p evaluator.Packet, port *model.ServicePort, kind addressKind) verb.Reason {
	switch {
	case port == nil:
		return verb.ReasonUnassigned
	case kind == loadBalancerIP && port.LoadBalancerSourceRanges != nil && !contains(port.LoadBalancerSourceRanges, p.Source.Addr()):
		return verb.ReasonSource
	case o.isDirect(p, port, kind):
		return verb.ReasonSentOn
	}
	return verb.ReasonPolicyLocal
}

// isDirect reports whether a packet goes the direct way: sent on, or with its source kept. Then the case says so.
func (o *oracle) isDirect(p evaluator.Packet, port *model.ServicePort, kind addressKind) bool {
	own, _ := o.isOwnClient(p)
	return port.DirectReturn && (kind == loadBalancerIP || kind == externalIP) && !own && !p.Local
}

// sourceReason says why the source is kept or not. An endpoint that is sent to itself is
// masqueraded if nothing else masquerades it.
func (o *oracle) sourceReason(p evaluator.Packet, port *model.ServicePort, kind addressKind, to []netip.AddrPort) verb.SourceReason {
	reason := o.reasonByPolicy(p, port, kind)
	keeps := reason == verb.SourceClusterClient || reason == verb.SourceNotTold || reason == verb.SourcePolicyLocal
	if keeps && len(to) == 1 && to[0].Addr() == p.Source.Addr() {
		return verb.SourceHairpin
	}
	return reason
}

// reasonByPolicy says what becomes of the source by what the client dials and who it is.
func (o *oracle) reasonByPolicy(p evaluator.Packet, port *model.ServicePort, kind addressKind) verb.SourceReason {
	own, told := o.isOwnClient(p)
	switch {
	case kind == clusterIP && o.config.MasqueradeAll:
		return verb.SourceAll
	case kind == clusterIP && !told:
		return verb.SourceNotTold
	case kind == clusterIP && own:
		return verb.SourceClusterClient
	case kind == clusterIP:
		return verb.SourceOutside
	case o.isDirect(p, port, kind):
		return verb.SourceDirectReturn
	case port.ExternalPolicy == model.PolicyCluster:
		return verb.SourcePolicyCluster
	case own:
		return verb.SourceClusterClient
	case p.Local:
		return verb.SourceNode
	}
	return verb.SourcePolicyLocal
}

// isOwnClient reports whether detect-local counts the sender among the cluster's own, and whether it can tell at all.
func (o *oracle) isOwnClient(p evaluator.Packet) (own, told bool) {
	cidrs := o.config.DetectLocal.CIDRs
	if o.config.DetectLocal.NodePodCIDRs {
		cidrs = append(slices.Clone(cidrs), o.node.PodCIDRs...)
	}
	told = slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Addr().Is4() == p.Source.Addr().Is4() })
	own = contains(cidrs, p.Source.Addr())
	if name := o.config.DetectLocal.Interface; name != "" {
		prefix, wild := cutWildcard(name)
		told = true
		own = own || p.Interface == name || wild && len(p.Interface) >= len(prefix) && p.Interface[:len(prefix)] == prefix
	}
	return own, told
}

func cutWildcard(name string) (prefix string, wild bool) {
	if last := len(name) - 1; last >= 0 && name[last] == '*' {
		return name[:last], true
	}
	return name, false
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
