package flows

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// clusterEndpoints is two local pods, a remote pod and both nodes themselves, in both
// families and with all protocols on ports 8080 and 8081.
func clusterEndpoints() []Endpoint {
	ports := []Port{{TCP, 8080}, {UDP, 8080}, {SCTP, 8080}, {TCP, 8081}, {UDP, 8081}, {SCTP, 8081}}
	var endpoints []Endpoint
	for _, e := range []struct{ addr, node string }{
		{"10.244.1.5", "node-1"}, {"10.244.1.6", "node-1"}, {"10.244.2.6", "node-2"}, {"192.168.0.1", "node-1"},
		{"fd00:10:244:1::5", "node-1"}, {"fd00:10:244:1::6", "node-1"}, {"fd00:10:244:2::6", "node-2"}, {"fd00:1::2", "node-2"},
	} {
		endpoints = append(endpoints, Endpoint{Addr: netip.MustParseAddr(e.addr), Node: e.node, Ports: ports})
	}
	return endpoints
}

// newRunner builds a lab with clusterEndpoints, and rules on the node under test.
func newRunner(t *testing.T, rules string) *Runner {
	t.Helper()
	l := lab.ForTest(t)
	lab.Nft(t, l.Node, rules, "-f", "-")
	r, err := NewRunner(l, clusterEndpoints())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// everyWay is flows between everything in the lab, in all protocols, all untouched.
func everyWay() []Flow {
	var flows []Flow
	targets := []string{
		"10.244.1.5", "10.244.2.6", "10.244.2.250", "192.168.0.1", "10.244.1.254", "192.168.0.2", "198.51.100.7",
		"fd00:10:244:1::5", "fd00:10:244:2::6", "fd00:10:244:2::250", "fd00:1::1", "fd00:1::2", "2001:db8:51::8",
	}
	for _, target := range targets {
		to := netip.MustParseAddr(target)
		pod, remote := Origin("10.244.1.6"), Origin("10.244.2.250")
		if to.Is6() {
			pod, remote = "fd00:10:244:1::6", "fd00:10:244:2::250"
		}
		for _, from := range []Origin{FromClient, FromNode, FromOutside, FromOutside2, FromRemote, pod, remote} {
			for _, protocol := range []Protocol{TCP, UDP, SCTP, ICMP} {
				port := uint16(9090)
				if protocol == ICMP {
					port = 0
				}
				flows = append(flows, Flow{
					Name: fmt.Sprintf("%s reaches %s with %s", from, to, protocol), From: from, Protocol: protocol,
					To: netip.AddrPortFrom(to, port), Expect: Expectation{Result: Untouched},
				})
			}
		}
	}
	return flows
}

func testPacketsAreUntouchedWithoutRules(t *testing.T) {
	r := newRunner(t, "")
	if err := r.Run(everyWay()); err != nil {
		t.Error(err)
	}
}

func testEndpointsAreReachedDirectly(t *testing.T) {
	passes(t, newRunner(t, ""), `
flows:
- {name: a local pod, from: client, to: "10.244.1.5:8080", expect: {endpoints: ["10.244.1.5:8080"], source: kept}}
- {name: a remote pod, from: outside, to: "[fd00:10:244:2::6]:8080", protocol: SCTP, expect: {endpoints: ["[fd00:10:244:2::6]:8080"], source: kept}}
- {name: a node, from: node, to: "192.168.0.1:8080", protocol: UDP, expect: {endpoints: ["192.168.0.1:8080"]}}
- {name: node to its pod, from: node, to: "10.244.1.5:8080", protocol: UDP, expect: {endpoints: ["10.244.1.5:8080"], source: kept}}
- {name: loopback, from: node, to: "127.0.0.1:30080", expect: {result: untouched}}
- {name: IPv6 loopback, from: node, to: "[::1]:30080", protocol: SCTP, expect: {result: untouched}}
`)
}

func testSilenceWhereNothingIsThere(t *testing.T) {
	var text strings.Builder
	text.WriteString("flows:\n")
	for _, from := range []string{"client", "node", "outside", "remote"} {
		for _, to := range []string{"10.96.0.1", "fd00:10:96::1", "10.244.1.77", "fd00:10:244:2::77", "192.0.2.1"} {
			addr := netip.MustParseAddr(to)
			for _, protocol := range []Protocol{TCP, UDP, SCTP, ICMP} {
				target := to
				if protocol != ICMP {
					target = netip.AddrPortFrom(addr, 80).String()
				}
				fmt.Fprintf(&text, "- {name: %q, from: %s, to: %q, protocol: %s, expect: {result: dropped}}\n",
					from+" "+target+" "+string(protocol), from, target, protocol)
			}
		}
	}
	passes(t, newRunner(t, ""), text.String())
}

// testRefusalWhereNobodyListens shows that a host which objects by itself is neither a refusal nor silence.
func testRefusalWhereNobodyListens(t *testing.T) {
	var w wrongs
	for _, to := range []string{"10.244.1.5:9", "[fd00:10:244:2::6]:9"} {
		for _, result := range []Result{Refused, Dropped} {
			w.add(TCP, "client", to, Expectation{Result: result}, "reset")
			w.add(SCTP, "client", to, Expectation{Result: result}, "aborted")
		}
	}
	w.add(SCTP, "client", "198.51.100.7:9", Expectation{Result: Refused}, "ICMP type 3 code 2")
	w.add(SCTP, "client", "[2001:db8:51::7]:9", Expectation{Result: Refused}, "ICMPv6 type 4 code 1")
	w.add(SCTP, "node", "10.244.1.254:9", Expectation{Result: Dropped}, "nothing listens")
	w.fail(t, newRunner(t, ""))
}

// passes runs a flow file that must hold.
func passes(t *testing.T, r *Runner, text string) {
	t.Helper()
	flows, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(flows); err != nil {
		t.Error(err)
	}
}

// wrongs is flows that must fail, each with a part of the reason.
type wrongs []wrong

type wrong struct {
	protocol Protocol
	from     Origin
	to       string
	expect   Expectation
	reason   string
}

func (w *wrongs) add(protocol Protocol, from Origin, to string, expect Expectation, reason string) {
	*w = append(*w, wrong{protocol, from, to, expect, reason})
}

// fail runs all at the same time: many of them fail by waiting.
func (w wrongs) fail(t *testing.T, r *Runner) {
	t.Helper()
	var all sync.WaitGroup
	for _, wrong := range w {
		all.Go(func() { wrong.fail(t, r) })
	}
	all.Wait()
}

func (w wrong) fail(t *testing.T, r *Runner) {
	to, err := parseTarget(w.to, w.protocol)
	if err != nil {
		t.Error(err)
		return
	}
	err = r.Run([]Flow{{Name: "wrong", From: w.from, To: to, Protocol: w.protocol, Expect: w.expect}})
	var failure *Failure
	if !errors.As(err, &failure) || !strings.Contains(failure.Error(), w.reason) {
		t.Errorf("%+v: got error %v", w, err)
	}
}

func TestObserve(t *testing.T) {
	t.Run("tells which expectations a connection meets", testObserveTellsWhichExpectationsAConnectionMeets)
}

func testObserveTellsWhichExpectationsAConnectionMeets(t *testing.T) {
	r := newRunner(t, handWritten)
	reaches := func(source Source, endpoints ...string) Expectation {
		e := Expectation{Source: source}
		for _, endpoint := range endpoints {
			e.Endpoints = append(e.Endpoints, netip.MustParseAddrPort(endpoint))
		}
		return e
	}
	some := []Expectation{
		reaches(Kept, "10.244.1.5:8080", "10.244.2.6:8080"), reaches(Masqueraded, "10.244.1.5:8080", "10.244.2.6:8080"),
		reaches("", "10.244.1.5:8080", "10.244.2.6:8080"), {Result: Refused}, {Result: Dropped},
	}
	for _, tc := range []struct {
		name string
		to   string
		want []int
	}{
		{"a masqueraded one", "10.96.0.10:81", []int{1, 2}},
		{"a refused one", "10.96.0.10:82", []int{3}},
		{"a dropped one", "10.96.0.10:83", []int{4}},
		{"one that reaches something else", "10.244.1.6:8080", nil},
	} {
		for _, protocol := range []Protocol{TCP, UDP, SCTP} {
			t.Run(tc.name+" with "+string(protocol), func(t *testing.T) {
				met, became, err := r.Observe(Flow{From: FromClient, To: netip.MustParseAddrPort(tc.to), Protocol: protocol}, some)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, met); diff != "" {
					t.Errorf("it %s; met (-want +got):\n%s", became, diff)
				}
			})
		}
	}
	met, became, err := r.Observe(Flow{From: FromClient, To: netip.MustParseAddrPort("192.168.0.2:9090"), Protocol: TCP}, []Expectation{{Result: Untouched}})
	if diff := cmp.Diff([]int{0}, met); diff != "" || err != nil {
		t.Errorf("an untouched one %s, error %v; met (-want +got):\n%s", became, err, diff)
	}
}
