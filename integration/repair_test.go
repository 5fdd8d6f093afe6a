package integration

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/nftproxy/nftproxy/tracker"
)

// backendFor returns a backend that has committed the case.
func backendFor(t *testing.T, c *nft.Conn, g flows.Case, hooks proxy.Hooks) *proxy.Backend {
	t.Helper()
	b, err := proxy.NewBackend(c, g.Config(t), hooks)
	if err != nil {
		t.Fatal(err)
	}
	objects := g.Objects(t)
	tr := tracker.New(tracker.Options{NodeName: lab.NodeName})
	objects.Feed(tr)
	if err := b.Sync(context.Background(), tr.Changes()); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRepair(t *testing.T) {
	t.Parallel()
	t.Run("tables are repaired", testTablesAreRepaired)
	t.Run("a restart changes only what is wrong", testRestartChangesOnlyWhatIsWrong)
	t.Run("a running proxy survives a flushed ruleset", testRunningProxySurvivesAFlushedRuleset)
	t.Run("a refused one is tried again", testRefusedRepairIsTriedAgain)
}

func testTablesAreRepaired(t *testing.T) {
	g := flows.FindCase(t, "hairpin-over-node-port")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	repairs := 0
	b := backendFor(t, c, g, proxy.Hooks{OnRepair: func() { repairs++ }})
	for _, tt := range []struct {
		name, script string
		repaired     bool
	}{
		{"nothing", "", false},
		{"rules of their own", "add table ip theirs\nadd chain ip theirs c", false},
		{"a flushed ruleset", "flush ruleset", true},
		{"one table deleted", "delete table ip6 kube-proxy", true},
		{"a rule added", "add rule ip kube-proxy services drop", true},
		{"a rule of a kind that the proxy does not write", "insert rule ip kube-proxy services limit rate 1/second drop", true},
		{"the elements of a map deleted", "flush map ip kube-proxy service-ips", true},
		{"a base chain that drops", "add chain ip kube-proxy filter-forward { policy drop; }", true},
		{"a table put to sleep", "add table ip6 kube-proxy { flags dormant; }", true},
		{"a chain added", "add chain ip6 kube-proxy more", true},
		{"a catch-all element", "add element ip kube-proxy service-ips { * : drop }", true},
		{"a catch-all element in a set without data", "add element ip6 kube-proxy cluster-ips { * }", true},
		{"a rule with an anonymous set", "insert rule ip kube-proxy services tcp dport { 1, 2 } drop", true},
		{"a stateful object", "add counter ip kube-proxy mine", true},
		{"a temporary table that nobody removed", "add table ip kube-proxy-stand-in", false},
		{"a set of another type in the place of one", "delete table ip kube-proxy\nadd table ip kube-proxy\nadd set ip kube-proxy service-ips { type mark; }", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.script != "" {
				lab.Nft(t, l.Node, tt.script, "-f", "-")
			}
			before := repairs
			repaired, err := b.Check(context.Background())
			if err != nil || repaired != tt.repaired || (repairs > before) != tt.repaired {
				t.Errorf("Check = %v, %v with %d repairs counted; want %v", repaired, err, repairs-before, tt.repaired)
			}
			if err := lab.TableError(c, b.Tables()); err != nil {
				t.Errorf("after Check: %v", err)
			}
			if there, err := c.HasTable(t.Context(), nft.FamilyIP, compiler.TemporaryName); there || err != nil {
				t.Errorf("after Check there is a temporary table: %v, %v", there, err)
			}
			if repaired, err := b.Check(context.Background()); repaired || err != nil {
				t.Errorf("a second Check = %v, %v; want nothing to do", repaired, err)
			}
		})
	}
}

// A restart leaves alone what is right, and mends what is not, without replacing the rest.
func testRestartChangesOnlyWhatIsWrong(t *testing.T) {
	g := flows.FindCase(t, "hairpin-over-node-port")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	backendFor(t, c, g, proxy.Hooks{})
	before, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	backendFor(t, c, g, proxy.Hooks{})
	after, err := c.Generation(t.Context())
	if err != nil || after != before {
		t.Errorf("a restart over the right tables took %d commits, %v; want none", after-before, err)
	}
	handle := lab.Nft(t, l.Node, "", "-a", "list", "tables")
	lab.Nft(t, l.Node, "flush map ip kube-proxy service-ips\nadd chain ip6 kube-proxy more", "-f", "-")
	b := backendFor(t, c, g, proxy.Hooks{})
	if err := lab.TableError(c, b.Tables()); err != nil {
		t.Error(err)
	}
	if now := lab.Nft(t, l.Node, "", "-a", "list", "tables"); now != handle {
		t.Errorf("the tables were replaced: %s, before %s", now, handle)
	}
	// Tables of the same name with other things in them, such as another proxy's.
	lab.Nft(t, l.Node, "flush ruleset\nadd table ip kube-proxy\nadd map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }\nadd chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100; }\nadd rule ip kube-proxy nat-prerouting ip daddr . meta l4proto . th dport vmap @service-ips", "-f", "-")
	b = backendFor(t, c, g, proxy.Hooks{})
	if err := lab.TableError(c, b.Tables()); err != nil {
		t.Errorf("taking over from another proxy: %v", err)
	}
}

func testRunningProxySurvivesAFlushedRuleset(t *testing.T) {
	g := flows.FindCase(t, "cluster-ip-spreads-over-all-endpoints")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	lab.Start(t, l.Node, "kube-proxy", "--manifests", g.ManifestsDir(t), "--hostname-override", lab.NodeName,
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--metrics-bind-address=")
	want := g.Compile(t)
	await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, want) })
	lab.Nft(t, l.Node, "", "flush", "ruleset")
	if table, err := c.ReadTable(t.Context(), nft.FamilyIP, compiler.TableName); err != nil || table != nil {
		t.Logf("repaired before we looked: %v, %v", table != nil, err)
	}
	await.Until(t, "the rules are back", func() error { return lab.TableError(c, want) })
	sendFlows(t, l, g)
}

// A repair that the kernel refuses is tried again, although no Service changes: here another process owns a
// table of the same name, which nobody else may delete while it runs.
func testRefusedRepairIsTriedAgain(t *testing.T) {
	g := flows.FindCase(t, "hairpin-over-node-port")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	b := backendFor(t, c, g, proxy.Hooks{})
	owner := exec.Command("nft", "-i")
	stdin, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	process := lab.StartCommand(t, l.Node, owner)
	if _, err := io.WriteString(stdin, "flush ruleset; add table ip kube-proxy { flags owner; }\n"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "another process owns the table", func() error {
		if there, err := c.HasTable(t.Context(), nft.FamilyIP6, compiler.TableName); there || err != nil {
			return fmt.Errorf("the old tables are there: %v, %v", there, err)
		}
		return nil
	})
	for range 2 {
		if _, err := b.Check(context.Background()); err == nil {
			t.Fatal("Check replaced a table that another process owns")
		}
	}
	stdin.Close()
	if err := process.Wait(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the tables are repaired", func() error {
		if _, err := b.Check(context.Background()); err != nil {
			return err
		}
		return lab.TableError(c, b.Tables())
	})
}
