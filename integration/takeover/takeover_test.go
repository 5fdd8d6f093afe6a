// Package takeover tests how a node changes from Kubernetes' kube-proxy in nftables mode to this one, and back,
// while connections come and go.
package takeover

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

func TestTakeover(t *testing.T) {
	t.Run("the recorded ruleset serves", testRecordedRulesetServes)
	t.Run("loses no connection and leaves nothing", testTakingOverLosesNoConnectionAndLeavesNothing)
	t.Run("going back loses no connection", testGoingBackLosesNoConnection)
	t.Run("cleanup removes what kube-proxy left", testCleanupRemovesWhatKubeProxyLeft)
	t.Run("node addresses are read from kube-proxy's tables", testNodeAddressesAreReadFromKubeProxysTables)
	t.Run("ruledump reads kube-proxy's tables", testRuledumpReadsKubeProxys)
	t.Run("ruledump lists what nftproxy would", testRuledumpListsWhatOursWould)
}

// What was recorded is a ruleset that works: else the other tests would compare with nothing.
func testRecordedRulesetServes(t *testing.T) {
	if *kubeProxy != "" {
		record(t)
	}
	l := lab.ForTest(t)
	loadRecorded(t, l.Node)
	startTraffic(t, l).finish(t)
}

func testTakingOverLosesNoConnectionAndLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name  string
		found func(t *testing.T, h *lab.Host, c *nft.Conn)
	}{
		{"from kube-proxy", func(t *testing.T, h *lab.Host, _ *nft.Conn) { loadRecorded(t, h) }},
		{"from kube-proxy that had taken over from this one", func(t *testing.T, h *lab.Host, c *nft.Conn) {
			p := startOurs(t, h)
			awaitOurs(t, c)
			p.Stop(t)
			playFirstSync(t, h, c)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := lab.ForTest(t)
			c := lab.Conn(t, l.Node)
			tt.found(t, l.Node, c)
			tr := startTraffic(t, l)
			batches := lab.WatchBatches(t, l.Node, compiler.TableName)
			startOurs(t, l.Node)
			awaitOurs(t, c)
			if n := batches(); n != 2 {
				t.Errorf("it took %d transactions on the tables, want 2: all, then what guards addresses", n)
			}
			tr.finish(t)
			tables := lab.Nft(t, l.Node, "", "list", "tables")
			if diff := cmp.Diff("table ip kube-proxy\ntable ip6 kube-proxy\n", tables); diff != "" {
				t.Errorf("tables (-want +got):\n%s", diff)
			}
		})
	}
}

// Nothing of this proxy has to be cleaned up before going back.
func testGoingBackLosesNoConnection(t *testing.T) {
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	p := startOurs(t, l.Node)
	awaitOurs(t, c)
	tr := startTraffic(t, l)
	p.Stop(t)
	if *kubeProxy == "" {
		playFirstSync(t, l.Node, c)
	} else {
		startKubeProxy(t, l.Node, t.TempDir())
	}
	tr.finish(t)
	alone := lab.ForTest(t)
	loadRecorded(t, alone.Node)
	want, got := chainsOf(t, alone.Node), chainsOf(t, l.Node)
	rules := strings.Join(slices.Collect(maps.Values(want)), "")
	for name, text := range want {
		if diff := cmp.Diff(text, got[name]); diff != "" {
			t.Errorf("%s is not as where kube-proxy alone has been (-alone +here):\n%s", name, diff)
		}
	}
	for name, text := range got {
		if want[name] != "" || !strings.Contains(text, " hook ") {
			continue // nothing leads to what is left of our chains, but hooks
		}
		for _, rule := range strings.Split(text, "\n")[1:] {
			if !strings.Contains(rules, rule+"\n") {
				t.Errorf("packets still go through %s, which kube-proxy does not know:%s", name, rule)
			}
		}
	}
}

// chainsOf returns the text of all chains, by family and name.
func chainsOf(t *testing.T, h *lab.Host) map[string]string {
	t.Helper()
	chains := map[string]string{}
	var table, chain string
	for _, line := range strings.Split(lab.Nft(t, h, "", "list", "ruleset"), "\n") {
		switch {
		case strings.HasPrefix(line, "table "):
			table = line
		case strings.HasPrefix(line, "\tchain "):
			chain = table + line
		case line == "\t}":
			chain = ""
		case strings.HasPrefix(line, "\t\tcomment "):
			// A chain that was there keeps the comment that it was made with.
		case chain != "":
			chains[chain] += line + "\n"
		}
	}
	return chains
}

func testCleanupRemovesWhatKubeProxyLeft(t *testing.T) {
	l := lab.ForTest(t)
	loadRecorded(t, l.Node)
	lab.Nft(t, l.Node, "add table ip somebody-elses", "-f", "-")
	if err := lab.Start(t, l.Node, "kube-proxy", "--cleanup").Wait(); err != nil {
		t.Errorf("--cleanup: %v", err)
	}
	if diff := cmp.Diff("table ip somebody-elses\n", lab.Nft(t, l.Node, "", "list", "tables")); diff != "" {
		t.Errorf("--cleanup left (-want +got):\n%s", diff)
	}
}
