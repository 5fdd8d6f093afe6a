package proxytest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/testdata"
)

func TestRandom(t *testing.T) {
	netns.Need(t)
	t.Run("our proxy does not differ from itself", testOurProxyDoesNotDifferFromItself)
	t.Run("a difference is found, shrunk and written", testDifferenceIsFoundShrunkAndWritten)
	t.Run("a known difference is no news", testKnownDifferenceIsNoNews)
	t.Run("a proxy that fails", testRandomWithAProxyThatFails)
	t.Run("the same seed draws the same", testSeedDrawsTheSame)
}

// randomOver compares commands, in which the word kube-proxy stands for our program.
func randomOver(t *testing.T, command, against string, o RandomOptions) *Report {
	t.Helper()
	ours := lab.Binary(t, "kube-proxy")
	o.Command, o.Against = strings.ReplaceAll(command, "kube-proxy", ours), strings.ReplaceAll(against, "kube-proxy", ours)
	o.Corpus, o.Log = testdata.Corpus, func(line string) { t.Log(line) }
	leavesNothing(t)
	report, err := RunRandom(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func testOurProxyDoesNotDifferFromItself(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	report := randomOver(t, "kube-proxy --config {config}", "kube-proxy --config {config}", RandomOptions{Rounds: 2, Seed: seed})
	compared := 0
	for _, r := range report.Results {
		compared += r.Flows
	}
	if report.Count(Same) != 2 || compared < 10 {
		t.Errorf("seed %d: %d flows were compared; %+v", seed, compared, report.Results)
	}
}

func testDifferenceIsFoundShrunkAndWritten(t *testing.T) {
	broken := mutant(t, "the last endpoint is never chosen") + " --config {config}"
	const ours = "kube-proxy --config {config}"
	dir, commands := t.TempDir(), ""
	report := randomOver(t, broken, ours, RandomOptions{Options: Options{Keep: func(c string) { commands = c }}, Rounds: 20, Seed: 2, Found: func(c flows.Case) error {
		_, err := c.Write(dir)
		return err
	}})
	if report.Count(New) != 1 {
		t.Fatalf("a broken proxy: %s", report.summary())
	}
	if want := []string{"# --proxy\nnsenter --net=/proc/", "# --against\nnsenter --net=/proc/"}; !strings.HasPrefix(commands, want[0]) || !strings.Contains(commands, want[1]) {
		t.Errorf("--keep prints %q", commands)
	}
	cases, err := flows.ReadCases(os.DirFS(dir))
	if err != nil || len(cases) != 1 {
		t.Fatalf("%d cases were written: %v", len(cases), err)
	}
	manifests := cases[0].Manifests()
	if services, slices := bytes.Count(manifests, []byte("kind: Service\n")), bytes.Count(manifests, []byte("kind: EndpointSlice\n")); services != 1 || slices > 1 {
		t.Errorf("the smallest manifests have %d Services and %d EndpointSlices:\n%s", services, slices, manifests)
	}
	for command, want := range map[string]Verdict{broken: New, strings.ReplaceAll(ours, "kube-proxy", lab.Binary(t, "kube-proxy")): Same} {
		report, err := Run(t.Context(), cases, Options{Command: command})
		if err != nil {
			t.Fatal(err)
		}
		if got := report.Results[0]; got.Verdict != want {
			t.Errorf("the case over %s is %s, want %s: %s", command, got.Verdict, want, got.brief())
		}
	}
}

func testKnownDifferenceIsNoNews(t *testing.T) {
	broken := mutant(t, "the last endpoint is never chosen") + " --config {config}"
	o := RandomOptions{Rounds: 1, Seed: 2, Found: func(c flows.Case) error { return fmt.Errorf("%s is written", c.Name) }}
	o.Promise = flows.Promise{Differences: []flows.Difference{{Reason: "it is broken"}}}
	known := randomOver(t, broken, "kube-proxy --config {config}", o)
	if known.Count(Known) != 1 || known.Results[0].Differences[0].Known != "it is broken" {
		t.Errorf("%s: %+v", known.summary(), known.Results[0])
	}
	o.Promise.Differences[0].From, o.Found = string(flows.FromOutside), nil
	o.Keep = func(string) {} // one is enough
	if news := randomOver(t, broken, "kube-proxy --config {config}", o); news.Count(New) == 0 {
		t.Errorf("only known from one host: %s", news.summary())
	}
}

func testRandomWithAProxyThatFails(t *testing.T) {
	const ours = "kube-proxy --config {config}"
	mark := fmt.Sprint(20_000_000 + os.Getpid()) // of this process alone
	for _, tt := range []struct {
		name, command, against string
		// ready is long for a proxy that has to be ready beside the one that fails.
		ready time.Duration
		want  []string
	}{
		{"ends at once", "sh -c 'exit 3'", ours, time.Minute,
			[]string{"--proxy: the proxy ended: exit status 3", "--proxy: the proxy ended", "--proxy: the proxy ended", "no more tries: --proxy failed 3 times in a row"}},
		{"writes nothing", ours, "sleep " + mark, 10 * time.Second,
			[]string{"--against: the proxy has not settled: IPv4", "--against: the proxy has not settled", "--against: the proxy has not settled", "no more tries: --against failed 3 times in a row"}},
		{"ignores a family", ours, deaf, 20 * time.Second,
			[]string{"--against: the proxy has not settled: IPv6", ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			report := randomOver(t, tt.command, tt.against, RandomOptions{Options: Options{Ready: tt.ready}, Rounds: len(tt.want), Seed: 1})
			if len(report.Results) != len(tt.want) {
				t.Fatalf("%d results, want %d: %+v", len(report.Results), len(tt.want), report.Results)
			}
			for i, want := range tt.want {
				if r := report.Results[i]; !strings.HasPrefix(r.Failure, want) || (r.Verdict == Same) != (want == "") {
					t.Errorf("%s: %s, failure %q, want %q: %s", r.Case, r.Verdict, r.Failure, want, r.brief())
				}
			}
			for _, line := range commandLines(t) {
				if strings.Contains(line, mark) {
					t.Errorf("a process is left: %s", line)
				}
			}
		})
	}
}

func testSeedDrawsTheSame(t *testing.T) {
	drawn := map[string]bool{}
	for _, seed := range []uint64{1, 1, 2} {
		objects, list := draw(seed, []Family{IPv4, IPv6})
		c, err := flows.NewCase(testdata.Corpus, "random", "", objects, list)
		if err != nil {
			t.Fatal(err)
		}
		drawn[string(c.Manifests())] = true
	}
	if len(drawn) != 2 {
		t.Errorf("three draws with two seeds gave %d clusters", len(drawn))
	}
	for _, family := range []Family{IPv4, IPv6} {
		_, list := draw(1, []Family{family})
		for _, f := range list {
			if familyOf(f.To.Addr()) != family {
				t.Errorf("asked for %s alone: %s", family, f.Name)
			}
		}
	}
}
