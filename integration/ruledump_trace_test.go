package integration

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// traced is a packet in the output of ruledump trace.
type traced struct {
	Packet        string
	Outcome       verb.Outcome
	ExplainAgrees *bool
	ExplainSays   []string
	Lost          bool
}

// startTrace starts ruledump trace on a host, and returns when it marks packets.
func startTrace(t *testing.T, h *lab.Host, args ...string) *lab.Process {
	t.Helper()
	p := lab.Start(t, h, "ruledump", append([]string{"trace", "--yes"}, args...)...)
	p.Says(t, "marks packets in table ruledump-trace-")
	return p
}

// tracedBy returns the packets that a trace has printed.
func tracedBy(t *testing.T, p *lab.Process) (packets []traced) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(p.Output()))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "{") {
			continue
		}
		var one traced
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%v\n%s", err, lines.Text())
		}
		packets = append(packets, one)
	}
	return packets
}

func TestRuledumpTrace(t *testing.T) {
	t.Run("equals explain for golden flows", testTraceGoldenFlows)
	t.Run("names another program's rule", testTraceAnotherProgram)
	t.Run("leaves nothing after a kill", testTraceKilled)
}

// A case takes half a second, so a run traces every eighth; which, depends on the day.
const traceEvery = 8

var traceAll = flag.Bool("traceall", false, "trace the flows of all golden cases")

// podNetwork says how the pods of a lab are connected.
type podNetwork struct {
	name, bridge string
	// filtered says that br_netfilter calls the hooks of IP at the ports of the bridge.
	filtered bool
	every    int
}

// bridges are the networks with a bridge.
func bridges() []podNetwork {
	networks := []podNetwork{{"a bridge", "cni0", false, 2 * traceEvery}}
	if _, err := os.Stat("/proc/sys/net/bridge"); err == nil {
		networks = append(networks, podNetwork{"a bridge with br_netfilter", "cni0", true, 2 * traceEvery})
	}
	return networks
}

// podNetworks returns those that a golden case can be played in.
func podNetworks(t *testing.T, g flows.Case) []podNetwork {
	veths := podNetwork{"veths", "", false, traceEvery}
	switch {
	case strings.HasSuffix(g.Config(t).DetectLocal.Interface, "*"):
		return []podNetwork{veths} // by the names of veths
	case g.Bridge(t) == "":
		return append(bridges(), veths)
	}
	networks := bridges()
	for i := range networks {
		networks[i].every = 1
	}
	return networks
}

func (n podNetwork) lab(t *testing.T) *lab.Lab {
	t.Helper()
	l := lab.ForTestWithBridge(t, n.bridge)
	filtered := "0"
	if n.filtered {
		filtered = "1"
	}
	paths, err := filepath.Glob("/proc/sys/net/bridge/bridge-nf-call-ip*tables")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if err := l.Node.Do(func() error { return os.WriteFile(path, []byte(filtered), 0) }); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// The rules that the kernel says packets matched are those that explain expects, for each flow.
func testTraceGoldenFlows(t *testing.T) {
	labs := map[podNetwork]*lab.Lab{}
	day := time.Now().YearDay()
	for i, g := range flows.Cases(t) {
		for _, network := range podNetworks(t, g) {
			if !*traceAll && i%network.every != day%network.every {
				continue
			}
			if labs[network] == nil {
				labs[network] = network.lab(t)
			}
			t.Run(g.Name+" over "+network.name, func(t *testing.T) {
				replace(t, lab.Conn(t, labs[network].Node), g.Compile(t))
				// On a busy machine steps may come faster than they are read, or so slowly that the rest of a packet's way is
				// not waited for. Then packets cannot be compared. A difference in the rules is there each time.
				var unlike []string
				for try := range 5 {
					again := false
					t.Run(fmt.Sprintf("try %d", try+1), func(t *testing.T) {
						var lost bool
						lost, unlike = traceFlows(t, labs[network], g)
						again = lost || len(unlike) > 0
					})
					if !again {
						return
					}
				}
				t.Fatalf("steps were lost, or trace differs from explain, each time:\n%s", strings.Join(unlike, "\n"))
			})
		}
	}
}

// traceFlows sends the flows of a case, and compares the trace of each packet with explain. It reports whether steps were
// lost, and the differences.
func traceFlows(t *testing.T, l *lab.Lab, g flows.Case) (lost bool, unlike []string) {
	args := []string{"-o=json", "-n=2000", "--for=5m"}
	wanted := map[string]flows.Result{}
	for _, f := range g.Flows() {
		if f.To.Addr().Is6() && !lab.HasIPv6 {
			continue
		}
		to := f.To.String()
		if f.Protocol == flows.ICMP {
			to = f.To.Addr().String()
		}
		args = append(args, fmt.Sprintf("--to=%s/%s", to, strings.ToLower(string(f.Protocol))))
		wanted[fmt.Sprintf("%s %s to %s", strings.ToLower(string(f.Protocol)), f.From.Addr(f.To.Addr()), to)] = f.Expect.Result
	}
	if len(wanted) == 0 {
		return false, nil
	}
	trace := startTrace(t, l.Node, args...)
	sendFlows(t, l, g)
	// A packet is printed when no step of it has come for a moment.
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left, lost := remaining(t, trace, wanted); lost || len(left) == 0 {
			break
		}
	}
	if err := trace.Stop(t); err != nil {
		t.Fatal(err)
	}
	left, lost := remaining(t, trace, wanted)
	if lost {
		return true, nil
	}
	seen := map[string]bool{}
	for _, p := range tracedBy(t, trace) {
		// Once both sides have closed a connection, the kernel may drop a late packet of it before any rule.
		late := seen[p.Packet] && p.Outcome.Reason == verb.ReasonKernel
		seen[p.Packet] = true
		if p.ExplainAgrees == nil || !*p.ExplainAgrees && !late {
			unlike = append(unlike, fmt.Sprintf("%s: %s by\n%+v\nexplain says %v", p.Packet, p.Outcome.Result, p.Outcome.Path, p.ExplainSays))
		}
	}
	for flow, result := range left {
		unlike = append(unlike, fmt.Sprintf("no packet %s was traced and became %s", flow, cmp.Or(string(result), "delivered")))
	}
	return false, unlike
}

// remaining returns the wanted flows of which no packet with the wanted result has been traced, and whether steps were
// lost.
func remaining(t *testing.T, trace *lab.Process, wanted map[string]flows.Result) (left map[string]flows.Result, lost bool) {
	t.Helper()
	left = maps.Clone(wanted)
	for _, p := range tracedBy(t, trace) {
		if p.Lost {
			return left, true
		}
		packet, _, _ := strings.Cut(p.Packet, ",")
		words := strings.Fields(packet) // "tcp 10.244.1.250:15000 to 10.96.0.10:80"
		from := words[1]
		if source, err := netip.ParseAddrPort(from); err == nil {
			from = source.Addr().String()
		}
		flow := fmt.Sprintf("%s %s to %s", strings.TrimSuffix(words[0], "v6"), from, words[3])
		if want := left[flow]; string(want) == p.Outcome.Result || want == "" && p.Outcome.Result == "delivered" {
			delete(left, flow)
		}
	}
	return left, false
}

// A packet that another program drops has that program's rule or policy in its path.
func testTraceAnotherProgram(t *testing.T) {
	for _, chain := range []struct{ text, why string }{
		{"policy drop;", "\n  why: dropped by inet fw, chain f (policy drop)\n"},
		{"policy accept; tcp dport 8080 drop", "tcp dport 8080 drop"},
	} {
		l := lab.ForTest(t)
		replace(t, lab.Conn(t, l.Node), exampleTables(t))
		lab.Nft(t, l.Node, "table inet fw {\n chain f {\n type filter hook forward priority -5; "+chain.text+"\n }\n}\n", "-f", "-")
		trace := startTrace(t, l.Node, "--to=shop/web", "-n=1")
		ctx, stop := context.WithCancel(t.Context())
		var dialing sync.WaitGroup
		dialing.Go(func() {
			if c, err := l.Outside.DialContext(ctx, "tcp", "192.0.2.10:80"); err == nil {
				c.Close()
			}
		})
		err := trace.Wait()
		stop()
		dialing.Wait()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"tcp 198.51.100.7:", chain.why, `192.0.2.10 . tcp . 80 comment "shop/web:http" : goto `} {
			if !strings.Contains(trace.Output(), want) {
				t.Errorf("no %q in\n%s", want, trace.Output())
			}
		}
	}
}

// The table goes with the process, however that ends.
func testTraceKilled(t *testing.T) {
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	trace := startTrace(t, l.Node, "--to=shop/web")
	if list := lab.Nft(t, l.Node, "", "list", "tables"); !strings.Contains(list, "table ip ruledump-trace-") {
		t.Fatalf("no table of the trace in\n%s", list)
	}
	if err := trace.Cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = trace.Wait()
	await.Until(t, "the kernel has removed the table", func() error {
		if list := lab.Nft(t, l.Node, "", "list", "tables"); strings.Contains(list, "ruledump-trace-") {
			return fmt.Errorf("%s", list)
		}
		return nil
	})
}
