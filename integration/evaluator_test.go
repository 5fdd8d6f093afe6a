package integration

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

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
