package proxytest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

func TestMain(m *testing.M) {
	stopPatience = time.Second
	lab.Main(m)
}

func TestRun(t *testing.T) {
	t.Run("our proxy does all cases", testOurProxyDoesAllCases)
	t.Run("a proxy that fails", testFailingProxies)
	t.Run("a proxy that ignores a family", testAProxyThatIgnoresAFamily)
	t.Run("known differences", testKnownDifferences)
	t.Run("fresh nodes", testFreshNodes)
	t.Run("the mode is nftables unless told otherwise", testModeOfTheConfiguration)
}

// runOver runs cases over a command. The word kube-proxy stands for our program.
func runOver(t *testing.T, command string, o Options, names ...string) *Report {
	t.Helper()
	o.Command = strings.ReplaceAll(command, "kube-proxy", lab.Binary(t, "kube-proxy"))
	cases := flows.Cases(t)
	if names != nil {
		cases = slices.DeleteFunc(cases, func(c flows.Case) bool { return !slices.Contains(names, c.Name) })
	}
	leavesNothing(t)
	report, err := Run(t.Context(), cases, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// leavesNothing gives the test a directory for temporary files, which must be empty in the end.
func leavesNothing(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("temporary files are left: %v, %v", left, err)
		}
	})
}

func testOurProxyDoesAllCases(t *testing.T) {
	report := runOver(t, "kube-proxy --config {config}", Options{})
	if report.Count(Same) != len(flows.Cases(t)) {
		var text strings.Builder
		if err := report.text(&text); err != nil {
			t.Error(err)
		}
		t.Error(text.String())
	}
	t.Log(report.summary())
}

const (
	first  = "cluster-ip-sends-to-its-only-endpoint"
	second = "cluster-ip-udp"
	third  = "hairpin-over-cluster-ip"
	fourth = "hints-by-zone"
)

// Each failure has a clear verdict, takes a bounded time, and leaves no process behind.
func testFailingProxies(t *testing.T) {
	mark := fmt.Sprint(10_000_000 + os.Getpid()) // of this process alone
	lab.Binary(t, "kube-proxy")                  // the time to build it does not count
	for _, tt := range []struct {
		name, command string
		// failures are the beginnings of the cases' failures; empty for one that must succeed.
		failures [4]string
	}{
		{"ends at once", "sh -c 'echo no such thing >&2; exit 3'",
			[4]string{"the proxy ended: exit status 3", "the proxy ended: exit status 3", "the proxy ended: exit status 3", "not tried: the proxy failed 3 times in a row"}},
		{"writes nothing", "sleep " + mark,
			[4]string{"the proxy has not settled: IPv4", "the proxy has not settled: IPv4", "the proxy has not settled: IPv4", "not tried"}},
		{"does not listen to SIGTERM", "sh -c 'trap : TERM; while :; do sleep " + mark + " & wait; done'",
			[4]string{"the proxy has not settled", "the proxy has not settled", "the proxy has not settled", "not tried"}},
		{"leaves its process group", "setsid -f sleep " + mark,
			[4]string{"the proxy ended: exit status 0", "the proxy ended: exit status 0", "the proxy ended: exit status 0", "not tried"}},
		{"hangs", "sh -c 'kube-proxy --config {config} & kill -STOP $!; wait'",
			[4]string{"the proxy has not settled", "the proxy has not settled", "the proxy has not settled", "not tried"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			began, ready := time.Now(), time.Second
			if strings.HasPrefix(tt.failures[0], "the proxy ended") {
				ready = time.Minute // it ends earlier
			}
			report := runOver(t, tt.command, Options{Ready: ready}, first, second, third, fourth)
			for i, want := range tt.failures {
				r := report.Results[i]
				if (r.Verdict == Same) != (want == "") || !strings.HasPrefix(r.Failure, want) {
					t.Errorf("%s: %s, failure %q, want %q", r.Case, r.Verdict, r.Failure, want)
				}
			}
			if tt.name == "ends at once" && report.Results[0].Output != "no such thing\n" {
				t.Errorf("output %q", report.Results[0].Output)
			}
			if took := time.Since(began); took > 2*time.Minute {
				t.Errorf("it took %v", took)
			}
			for _, line := range commandLines(t) {
				if strings.Contains(line, mark) {
					t.Errorf("a process is left: %s", line)
				}
			}
		})
	}
}

func commandLines(t *testing.T) (lines []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if data, err := os.ReadFile(path); err == nil { // it may have ended
			lines = append(lines, string(bytes.ReplaceAll(data, []byte{0}, []byte{' '})))
		}
	}
	return lines
}

// deaf is the command of a proxy that nobody can reach by IPv6.
const deaf = `sh -c 'nft "add table ip6 deaf; add chain ip6 deaf c { type filter hook prerouting priority -300; policy drop; }"; exec kube-proxy --config {config}'`

func testAProxyThatIgnoresAFamily(t *testing.T) {
	report := runOver(t, deaf, Options{Ready: 20 * time.Second}, first, second, "single-stack-ipv4")
	for i, want := range []string{"the proxy has not settled: IPv6", "", ""} {
		r := report.Results[i]
		if !strings.HasPrefix(r.Failure, want) || want == "" && r.Failure != "" {
			t.Errorf("%s: failure %q, want %q", r.Case, r.Failure, want)
		}
		if len(r.Differences) == 0 {
			t.Errorf("%s: no difference", r.Case)
		}
		for _, d := range r.Differences {
			if d.Seen != "not sent: the proxy does not serve IPv6" {
				t.Errorf("%s: %+v", r.Case, d)
			}
		}
	}
	if report := runOver(t, deaf, Options{Families: []Family{IPv4}}, first); report.Count(Same) != 1 {
		t.Errorf("asked for IPv4 alone: %+v", report.Results)
	}
}

func testKnownDifferences(t *testing.T) {
	promise := func(text string) flows.Promise {
		p, err := flows.ReadPromise([]byte(text), flows.Cases(t))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all := Options{Config: map[string]any{"nftables": map[string]any{"masqueradeAll": true}}} // a pod is masqueraded too
	for _, tt := range []struct {
		name, promise string
		want          Verdict
	}{
		{"none", "", New},
		{"as known", "differences: [{reason: r, source: kept, expect: {source: masqueraded}}]", Known},
		{"otherwise than known", "differences: [{reason: r, source: kept, expect: {result: refused}}]", New},
		{"any result is known", "differences: [{reason: r, source: kept}]", Known},
		{"known of another flow", "differences: [{reason: r, source: masqueraded}]", New},
		{"not run", fmt.Sprintf("lacks: {%s: r}", first), Known},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := all
			o.Promise = promise(tt.promise)
			report := runOver(t, "kube-proxy --config {config}", o, first)
			if got := report.Results[0]; got.Verdict != tt.want {
				t.Errorf("%+v, want %s", got, tt.want)
			}
		})
	}
	o := Options{Promise: promise(fmt.Sprintf("cases: [%s]", second))}
	if report := runOver(t, "kube-proxy --config {config}", o, first, second); len(report.Results) != 1 {
		t.Errorf("of one case that is claimed, %d ran", len(report.Results))
	}
}

func testFreshNodes(t *testing.T) {
	if report := runOver(t, "kube-proxy --config {config}", Options{Fresh: true}, first, second, third); report.Count(Same) != 3 {
		t.Errorf("%+v", report.Results)
	}
}

func testModeOfTheConfiguration(t *testing.T) {
	for want, config := range map[string]map[string]any{
		"mode: nftables\n": nil,
		"mode: iptables\n": {"mode": "iptables"},
	} {
		report := runOver(t, `sh -c 'grep ^mode: "$0"; exit 3' {config}`, Options{Config: config}, first)
		if got := report.Results[0].Output; got != want {
			t.Errorf("with the fields %v the file has %q, want %q", config, got, want)
		}
	}
}

func TestSplit(t *testing.T) {
	for _, tt := range []struct {
		command string
		want    []string
	}{
		{"kube-proxy --config {config}", []string{"kube-proxy", "--config", "{config}"}},
		{`sh -c 'exec "$0" a' "" x'y z'`, []string{"sh", "-c", `exec "$0" a`, "", "xy z"}},
		{"'a", nil},
		{" ", nil},
	} {
		got, err := split(tt.command)
		if !slices.Equal(got, tt.want) || (err == nil) != (tt.want != nil) {
			t.Errorf("split(%q) = %q, %v; want %q", tt.command, got, err, tt.want)
		}
	}
}
