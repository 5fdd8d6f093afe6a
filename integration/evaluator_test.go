package integration

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"golang.org/x/sys/unix"
)

// nodeOnPaper is the node under test as the lab builds it.
var nodeOnPaper = evaluator.Host{Addresses: []netip.Addr{
	lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6, lab.GatewayAddrs.IPv4, lab.GatewayAddrs.IPv6,
}}

// packetOf is the first packet of a flow, as the node sees it that has its pods behind podLink.
func packetOf(f flows.Flow, podLink string) evaluator.Packet {
	p := evaluator.Packet{
		Source:      netip.AddrPortFrom(f.From.Addr(f.To.Addr()), f.Port),
		Destination: f.To,
		Protocol:    protocolNumber(f),
		Local:       f.From == flows.FromNode,
	}
	switch f.From {
	case flows.FromNode:
	case flows.FromOutside, flows.FromOutside2:
		p.Interface = "outside"
	case flows.FromRemote:
		p.Interface = "eth0"
	default:
		p.Interface = podLink
		if remotePod(p.Source.Addr()) {
			p.Interface = "eth0"
		}
	}
	return p
}

func remotePod(addr netip.Addr) bool {
	return slices.ContainsFunc(lab.RemotePodNetworks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func protocolNumber(f flows.Flow) uint8 {
	switch f.Protocol {
	case flows.UDP:
		return unix.IPPROTO_UDP
	case flows.SCTP:
		return unix.IPPROTO_SCTP
	case flows.ICMP:
		if f.To.Addr().Is6() {
			return unix.IPPROTO_ICMPV6
		}
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_TCP
}

// Every flow of every golden case, walked through the compiled ruleset in memory: all that
// can become of it is what the case says.
func TestGoldenFlowsOnPaper(t *testing.T) {
	t.Parallel()
	for _, g := range flows.Cases(t) {
		t.Run(g.Name, func(t *testing.T) {
			list := g.Flows()
			e := evaluator.New(g.Compile(t), nodeOnPaper)
			for _, f := range list {
				t.Run(f.Name, func(t *testing.T) { judgeOnPaper(t, e, f, g) })
			}
		})
	}
}

func judgeOnPaper(t *testing.T, e *evaluator.Evaluator, f flows.Flow, g flows.Case) {
	t.Helper()
	packet := packetOf(f, podLink(t, g))
	fates, err := e.Fates(packet)
	if err != nil {
		t.Fatal(err)
	}
	for i := range fates {
		if reason := judgeFate(f, &fates[i]); reason != "" {
			t.Errorf("%s, want %s\n%s", fates[i].String(), reason, fates[i].Path)
		}
	}
	if f.Expect.Sticky {
		judgeStickiness(t, e, packet, fates)
	}
	if f.Expect.Sticky && g.Config(t).AffinityHash {
		judgeHash(t, f, fates)
		return
	}
	if diff := cmp.Diff(sortedTexts(f.Expect.Endpoints), sortedTexts(fates.Destinations())); f.Expect.Result == "" && diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

// judgeHash checks that the first connection of a client has one fate, by the hash of its address.
func judgeHash(t *testing.T, f flows.Flow, fates evaluator.Fates) {
	t.Helper()
	got := fates.Destinations()
	if len(got) != 1 || !slices.Contains(f.Expect.Endpoints, got[0]) {
		t.Errorf("endpoints %v, want one of %v", got, f.Expect.Endpoints)
	}
}

// judgeStickiness checks that whatever endpoint a connection draws, the next one gets it too.
func judgeStickiness(t *testing.T, e *evaluator.Evaluator, p evaluator.Packet, fates evaluator.Fates) {
	t.Helper()
	for i := range fates {
		later, err := e.Fates(p, fates[i].Added...)
		if err != nil {
			t.Fatal(err)
		}
		want := []netip.AddrPort{fates[i].Destination}
		if diff := cmp.Diff(sortedTexts(want), sortedTexts(later.Destinations())); diff != "" {
			t.Errorf("endpoints of the next connection (-want +got):\n%s\n%s", diff, later)
		}
	}
}

func sortedTexts(list []netip.AddrPort) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	slices.Sort(out)
	return out
}

// judgeFate returns what the fate should have been instead, empty when it is right.
func judgeFate(f flows.Flow, fate *evaluator.Fate) string {
	switch f.Expect.Result {
	case flows.Refused:
		return unlessTrue(fate.Result == evaluator.Refused, "refused")
	case flows.Dropped:
		return unlessTrue(fate.Result == evaluator.Dropped, "dropped")
	case flows.Untouched:
		return unlessTrue(fate.Untouched(), "untouched")
	}
	if fate.Result != evaluator.Delivered {
		return fmt.Sprintf("one of %v", f.Expect.Endpoints)
	}
	source := f.Expect.Source
	if fate.Destination.Addr() == f.From.Addr(f.To.Addr()) {
		source = flows.Masqueraded
	}
	switch source {
	case flows.Kept:
		return unlessTrue(!fate.Masqueraded, "the source kept")
	case flows.Masqueraded:
		return unlessTrue(fate.Masqueraded, "the source masqueraded")
	}
	return ""
}

func unlessTrue(ok bool, want string) string {
	if ok {
		return ""
	}
	return want
}

// Explained by the tables of the kernel, a client stays with the endpoint that it reached before.
func testExplainKnowsWhatTheKernelLearned(t *testing.T) {
	g := flows.FindCase(t, "affinity-over-cluster-ip")
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), g.Compile(t))
	endpoints, err := flows.Endpoints(g.Manifests())
	if err != nil {
		t.Fatal(err)
	}
	r, err := flows.NewRunner(l, endpoints)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
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
