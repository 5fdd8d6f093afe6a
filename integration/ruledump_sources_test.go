package integration

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/prometheus/procfs"
)

// testRuledumpSources asks the same of the rules as compiled from manifests, as a kernel holds them, and as a dump of that
// kernel has them, for every golden case: services, explain, diff, stats and graph answer alike.
func testRuledumpSources(t *testing.T) {
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	conn, err := nft.Dial(nft.Config{NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other := &ruledump.Snapshot{} // the case before, so that diff has something to say
	for _, g := range flows.Cases(t) {
		t.Run(g.Name, func(t *testing.T) {
			compiled := &ruledump.Snapshot{Header: ruledump.Header{Node: "node-1"}, Tables: g.Compile(t)}
			replace(t, conn, compiled.Tables)
			live, err := ruledump.FromKernel(t.Context(), conn, "", true)
			if err != nil {
				t.Fatal(err)
			}
			live.Node, live.NodeSource = "node-1", ""
			var b bytes.Buffer
			if err := live.Write(&b); err != nil {
				t.Fatal(err)
			}
			dumped, err := ruledump.FromDump(&b)
			if err != nil {
				t.Fatal(err)
			}
			list := g.Flows()
			want := answers(t, g, compiled, list, other)
			if diff := cmp.Diff(statisticsOf(t, live), statisticsOf(t, dumped)); diff != "" {
				t.Errorf("statistics with generation, time and owner: -live +dump:\n%s", diff)
			}
			for _, s := range []struct {
				name     string
				snapshot *ruledump.Snapshot
			}{{"live", live}, {"dump", dumped}} {
				t.Run(s.name, func(t *testing.T) {
					if diff := cmp.Diff(want, answers(t, g, s.snapshot, list, other)); diff != "" {
						t.Errorf("-manifests +%s:\n%s", s.name, diff)
					}
					if text := differences(t, compiled, s.snapshot); !strings.Contains(text, `"equal": true`) {
						t.Errorf("differs from the manifests:\n%s", text)
					}
				})
			}
			other = compiled
		})
	}
}

// answers returns what all verbs say. diff compares with the rules of another case.
func answers(t *testing.T, g flows.Case, s *ruledump.Snapshot, list []flows.Flow, other *ruledump.Snapshot) []string {
	t.Helper()
	s.Addresses = append([]netip.Addr(nil), flows.NodeUnderTest.Addresses...)
	s.Counts = nil // a compiler has none
	out := append(servicesAndFlows(t, g, s, list), graphs(t, s)...)
	// A kernel knows more of its tables than a compiler.
	tablesAlone := &ruledump.Snapshot{Header: ruledump.Header{Node: s.Node}, Tables: ownerless(s.Tables)}
	return append(out, differences(t, other, s), statisticsOf(t, tablesAlone))
}

// ownerless returns the tables without the process that owns them.
func ownerless(tables []*nft.Table) (out []*nft.Table) {
	for _, t := range tables {
		alone := *t
		alone.Kernel = nil
		out = append(out, &alone)
	}
	return out
}

// differences returns what diff says, as JSON.
func differences(t *testing.T, wanted, actual *ruledump.Snapshot) string {
	t.Helper()
	d, err := verb.Diff(wanted, actual)
	if err != nil {
		t.Fatal(err)
	}
	return indented(t, d)
}

// statisticsOf returns what stats says, as JSON and as metrics.
func statisticsOf(t *testing.T, s *ruledump.Snapshot) string {
	t.Helper()
	counted, err := verb.Stats(s)
	if err != nil {
		t.Fatal(err)
	}
	return indented(t, counted) + verb.TextOf(counted, "metrics")
}

func indented(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// graphs returns the drawings of all Services.
func graphs(t *testing.T, s *ruledump.Snapshot) (out []string) {
	t.Helper()
	l, err := verb.ListServices(s, verb.Filter{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.Frontends {
		g, err := verb.Draw(s, verb.Filter{Namespace: l.Frontends[i].Namespace, Name: l.Frontends[i].Service})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, verb.TextOf(g, "mermaid"), verb.TextOf(g, "dot"))
	}
	return out
}

func servicesAndFlows(t *testing.T, g flows.Case, s *ruledump.Snapshot, list []flows.Flow) []string {
	t.Helper()
	l, err := verb.ListServices(s, verb.Filter{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{verb.TextOf(l, "wide")}
	for _, f := range list {
		e, err := verb.Explain(s, f.Packet(g.PodLink(t)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, verb.TextOf(e, "text"))
	}
	return out
}

// writeServicesOf writes Services with so many endpoints each, as JSON, which reads faster than YAML.
func writeServicesOf(t *testing.T, path string, n, endpoints int) {
	t.Helper()
	var b strings.Builder
	for i := range n {
		high, low := i/250, i%250+1
		fmt.Fprintf(&b, `---
{"apiVersion":"v1","kind":"Service","metadata":{"name":"service-%d","namespace":"scale"},
"spec":{"type":"ClusterIP","clusterIP":"10.96.%d.%d","clusterIPs":["10.96.%[2]d.%[3]d"],"ipFamilies":["IPv4"],"ports":[{"port":80,"protocol":"TCP","targetPort":8080}]}}
---
{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"service-%[1]d-x","namespace":"scale","labels":{"kubernetes.io/service-name":"service-%[1]d"}},
"addressType":"IPv4","ports":[{"port":8080,"protocol":"TCP"}],"endpoints":[`, i, high, low)
		for e := range endpoints {
			if e > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"addresses":["10.%d.%d.%d"],"nodeName":"node-2"}`, 100+e, high, low)
		}
		b.WriteString("]}\n")
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The size of testRuledumpAtScale. docs/measurements.md has the times of 2 endpoints and 100,000 flows.
var (
	scaleEndpoints = flag.Int("scale-endpoints", 10, "endpoints of each of the 10,000 Services that ruledump is asked about")
	scaleFlows     = flag.Int("scale-flows", 20_000, "flows of conntrack beside them")
)

// testRuledumpAtScale asks a kernel with 10,000 Services of 10 endpoints. An operator waits at most three seconds on a machine
// that does little else (docs/ruledump.md has what was measured). On a busy one only the processor time says something,
// and shared caches make that longer too.
func testRuledumpAtScale(t *testing.T) {
	const (
		processor = 5 * time.Second
		memory    = 400 << 20 // up to 270 MiB are used; on a busy machine the collector is late
	)
	manifests := filepath.Join(t.TempDir(), "services.yaml")
	writeServicesOf(t, manifests, 10_000, *scaleEndpoints)
	s, err := ruledump.FromManifests(manifests, ruledump.Compilation{Node: "node-1"})
	if err != nil {
		t.Fatal(err)
	}
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), s.Tables)
	addConnections(t, l.Node, *scaleFlows)
	loadForeign(t, l.Node, "../testdata/foreign/firewalld.txtar", "nft")
	served := fmt.Sprintf("sent to one of %d endpoints: scale/service-9999", *scaleEndpoints)
	lab.Binary(t, "ruledump") // so that building it takes nobody's time
	dumped, report := filepath.Join(t.TempDir(), "dump.json"), filepath.Join(t.TempDir(), "report.tar.gz")
	out, err := os.Create(dumped)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(out); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	type asked struct {
		name string
		args []string
		want string
	}
	all := []asked{
		{"services", []string{"services"}, "scale/service-9999  10.96.39.250:80/TCP"},
		{"explain", []string{"explain", "--from=10.244.1.250", "--to=10.96.39.250:80"}, served},
		{"stats", []string{"stats"}, "10000 frontends of 10000 Service ports"},
		{"graph", []string{"graph", "scale/service-9999"}, fmt.Sprintf("%d endpoints", *scaleEndpoints)},
		{"connections", []string{"connections"}, fmt.Sprintf("and %d more", *scaleFlows-500)},
		{"connections by client", []string{"connections", "scale/service-9999", "--by=client"}, fmt.Sprintf("TCP       10.244.1.7  %d", *scaleFlows/2)},
		{"trace for 1 s", []string{"trace", "--yes", "--to=scale/service-9999", "--for=1s"}, "marks packets"},
		{"watch --refused for 1 s", []string{"watch", "--refused", "--yes", "--for=1s"}, "marks packets"},
		{"preflight", []string{"preflight"}, "kernel"},
		{"live -o json", []string{"live", "-o=json"}, `"name": "firewalld"`},
		{"report", []string{"report", "-o", report}, "wrote " + report},
		{"explain of a report", []string{"explain", "--dump", report, "--from=10.244.1.250", "--to=10.96.39.250:80"}, served},
		{"top", []string{"top", "--rounds=1"}, "0 Service ports with traffic"},
		{"services of a dump", []string{"services", "--dump", dumped}, "scale/service-9999  10.96.39.250:80/TCP"},
		{"diff", []string{"diff", "--proxy-address=", "--node=node-1", "--manifests", manifests}, "no difference"},
		{"explain beside iptables-legacy", []string{"explain", "--from=198.51.100.7", "--to=10.96.39.250:80"},
			"depends on the order of chains: ip nat (iptables-legacy), chain PREROUTING"},
		{"live -o json beside iptables-legacy", []string{"live", "-o=json"}, "table ip nat (iptables-legacy): it has more than 32 MB"},
	}
	t.Run("watch, a commit of all tables", func(t *testing.T) { testWatchAtScale(t, l, s.Tables, memory) })
	for i, tt := range all {
		if i == len(all)-2 {
			loadLegacy(t, l.Node, "iptables-legacy-restore", legacyServices(10_000))
		}
		t.Run(tt.name, func(t *testing.T) {
			began := time.Now()
			p := lab.Start(t, l.Node, "ruledump", tt.args...)
			peakOf := watchMemory(p.Cmd.Process.Pid)
			// preflight looks at firewalld's rules, and says that somebody should.
			if err := p.Wait(); err != nil && !(tt.name == "preflight" && p.Cmd.ProcessState.ExitCode() == 1) {
				t.Fatalf("%v\n%.2000s", err, p.Output())
			}
			used, peak := p.Cmd.ProcessState.UserTime()+p.Cmd.ProcessState.SystemTime(), peakOf()
			if peak == 0 {
				t.Error("its memory was not seen")
			}
			t.Logf("%v, %v of a processor, %d MiB", time.Since(began).Round(time.Millisecond), used.Round(time.Millisecond), peak>>20)
			if !strings.Contains(p.Output(), tt.want) {
				t.Errorf("does not say %q:\n%.2000s", tt.want, p.Output())
			}
			if used > processor || peak > memory {
				t.Errorf("used %v of a processor and %d MiB, want %v and %d MiB at most", used, peak>>20, processor, memory>>20)
			}
		})
	}
}

// testWatchAtScale lets ruledump watch a commit that replaces all tables.
func testWatchAtScale(t *testing.T, l *lab.Lab, tables []*nft.Table, memory int64) {
	watch := lab.Start(t, l.Node, "ruledump", "watch")
	peakOf := watchMemory(watch.Cmd.Process.Pid)
	watch.Says(t, watchCost)
	var tx nft.Transaction
	for _, table := range tables {
		tx.Append(nft.Replace(table))
	}
	used := processorTime(t, watch.Cmd.Process.Pid)
	began := time.Now()
	stats, err := lab.Conn(t, l.Node).Commit(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	watch.Says(t, "-table 2")
	t.Logf("told %v after the commit began, which took %v; %v of a processor", time.Since(began).Round(time.Millisecond), stats.Kernel.Round(time.Millisecond), (processorTime(t, watch.Cmd.Process.Pid) - used).Round(10*time.Millisecond))
	_ = watch.Stop(t)
	if peak := peakOf(); peak == 0 || peak > memory {
		t.Errorf("it had %d MiB, want %d at most", peak>>20, memory>>20)
	} else {
		t.Logf("%d MiB", peak>>20)
	}
}

func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := p.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(stat.CPUTime() * float64(time.Second))
}

// legacyServices returns the rules of kube-proxy's mode iptables for the Services of writeServicesOf, two endpoints each:
// eight rules and three chains for each Service.
func legacyServices(n int) string {
	var chains, rules, services strings.Builder
	for i := range n {
		addr := fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
		comment := fmt.Sprintf(`-m comment --comment "scale/service-%d cluster IP"`, i)
		fmt.Fprintf(&services, "-A KUBE-SERVICES -d %s/32 -p tcp %s -m tcp --dport 80 -j KUBE-SVC-%d\n", addr, comment, i)
		fmt.Fprintf(&chains, ":KUBE-SVC-%d - [0:0]\n:KUBE-SEP-%[1]d-0 - [0:0]\n:KUBE-SEP-%[1]d-1 - [0:0]\n", i)
		fmt.Fprintf(&rules, "-A KUBE-SVC-%d ! -s 10.244.0.0/16 -d %s/32 -p tcp %s -m tcp --dport 80 -j KUBE-MARK-MASQ\n", i, addr, comment)
		fmt.Fprintf(&rules, "-A KUBE-SVC-%d %s -m statistic --mode random --probability 0.5 -j KUBE-SEP-%[1]d-0\n", i, comment)
		fmt.Fprintf(&rules, "-A KUBE-SVC-%d %s -j KUBE-SEP-%[1]d-1\n", i, comment)
		for e := range 2 {
			to := fmt.Sprintf("10.%d.%d.%d", 100+e, i/250, i%250+1)
			fmt.Fprintf(&rules, "-A KUBE-SEP-%d-%d -s %s/32 %s -j KUBE-MARK-MASQ\n", i, e, to, comment)
			fmt.Fprintf(&rules, "-A KUBE-SEP-%d-%d -p tcp %s -m tcp -j DNAT --to-destination %s:8080\n", i, e, comment, to)
		}
	}
	return "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n" + chains.String() +
		"-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n" +
		"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n" +
		"-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0\n-A KUBE-POSTROUTING -j MASQUERADE --random-fully\n" +
		services.String() + rules.String() + "COMMIT\n"
}

// watchMemory looks at the peak of a process's memory, in bytes, until it ends or the function that it returns is called.
// What the kernel says of a process that has ended includes what its parent had when it was started.
func watchMemory(pid int) (peak func() int64) {
	stop, result := make(chan struct{}), make(chan int64, 1)
	var last int64
	look := func() {
		// A process that has ended has none until it is waited for.
		if p, err := procfs.NewProc(pid); err == nil {
			if status, err := p.NewStatus(); err == nil && status.VmHWM > 0 {
				last = int64(status.VmHWM)
			}
		}
	}
	look() // a busy machine may not come to it again before the process ends
	go func() {
		for ended := false; !ended; look() {
			select {
			case <-stop:
				ended = true
			case <-time.After(5 * time.Millisecond):
			}
		}
		result <- last
	}()
	return func() int64 {
		close(stop)
		return <-result
	}
}
