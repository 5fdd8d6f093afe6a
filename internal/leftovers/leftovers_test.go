package leftovers

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/nfttest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// run runs one of the iptables programs, which the package itself never does.
func run(t *testing.T, stdin, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// saved returns the rules of a variant (nft or legacy) in both families, without counters.
func saved(t *testing.T, variant string) string {
	t.Helper()
	var out string
	for _, name := range []string{"iptables", "ip6tables"} {
		out += name + "\n" + run(t, "", name+"-"+variant+"-save")
	}
	return regexp.MustCompile(`(?m)^#.*\n| \[\d+:\d+\]$`).ReplaceAllString(out, "")
}

// recorded has what kube-proxy left in its mode iptables, in the words of iptables-save.
var recorded = map[string]string{
	"iptables":  "../../integration/takeover/testdata/iptables-ip.rules",
	"ip6tables": "../../integration/takeover/testdata/iptables-ip6.rules",
}

// leaveKubeProxy makes the rules that kube-proxy made, beside what is there.
func leaveKubeProxy(t *testing.T, variant string) {
	t.Helper()
	for name, path := range recorded {
		rules, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		run(t, string(rules), name+"-"+variant+"-restore", "--noflush")
	}
}

// The kubelet's chains as it makes them in v1.36, a firewall, and plugins with names that begin like kube-proxy's.
const ofOthers = `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER -p tcp -m tcp --dport 8080 -j REDIRECT --to-ports 80
-A POSTROUTING -o eth9 -m comment --comment "KUBE-SERVICES in a comment" -j MASQUERADE
COMMIT
*filter
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-SVCS - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-ROUTER-INPUT -g KUBE-NWPLCY-DEFAULT
-A FORWARD -j KUBE-SVCS
COMMIT
`

func leaveOthers(t *testing.T, variant string) {
	t.Helper()
	for name := range recorded {
		run(t, ofOthers, name+"-"+variant+"-restore", "--noflush")
	}
}

func find(t *testing.T) []Leftover {
	t.Helper()
	found, err := Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestFind(t *testing.T) {
	t.Run("an empty namespace has nothing, and looking makes nothing", func(t *testing.T) {
		netns.EnterForTest(t)
		if found := find(t); found != nil {
			t.Errorf("found %+v", found)
		}
		if tables := run(t, "", "nft", "list", "tables"); tables != "" {
			t.Errorf("looking made tables:\n%s", tables)
		}
		for _, f := range legacyFamilies {
			if tables, err := f.tables(); err != nil || len(tables) > 0 {
				t.Errorf("looking made tables %v of iptables-legacy (%v)", tables, err)
			}
		}
	})
	for kind, variant := range map[Kind]string{NFT: "nft", Legacy: "legacy"} {
		t.Run("chains of others are not kube-proxy's, "+variant, func(t *testing.T) {
			netns.EnterForTest(t)
			leaveOthers(t, variant)
			if found := find(t); found != nil {
				t.Errorf("found %+v", found)
			}
		})
		t.Run("every chain that only kube-proxy makes counts, "+variant, func(t *testing.T) {
			netns.EnterForTest(t)
			leaveOthers(t, variant)
			leaveKubeProxy(t, variant)
			count := 0
			for _, line := range strings.Split(saved(t, variant), "\n") {
				name, _, _ := strings.Cut(strings.TrimPrefix(line, ":"), " ")
				if strings.HasPrefix(line, ":KUBE-") && !slices.Contains(
					[]string{"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT", "KUBE-ROUTER-INPUT", "KUBE-NWPLCY-DEFAULT", "KUBE-SVCS", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"}, name) {
					count++
				}
			}
			found := find(t)
			if len(found) != 1 || found[0].Kind != kind || found[0].Count != count || !strings.HasPrefix(found[0].Example, "ip ") || count < 50 {
				t.Errorf("found %+v, want %d chains of %s", found, count, kind)
			}
		})
	}
	t.Run("the device of the mode ipvs", func(t *testing.T) {
		netns.EnterForTest(t)
		// A device of another type: the kernel need not have dummy devices.
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: ipvsDevice}}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]Leftover{{Kind: IPVS, Count: 1, Example: "kube-ipvs0"}}, find(t), cmpopts.IgnoreUnexported(Leftover{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestRemove(t *testing.T) {
	remove := func(t *testing.T) Removal {
		t.Helper()
		removal, err := new(Remover).Remove(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return removal
	}
	for _, variant := range []string{"nft", "legacy"} {
		t.Run("what others have stays as it was, "+variant, func(t *testing.T) {
			netns.EnterForTest(t)
			leaveOthers(t, variant)
			// kube-proxy makes this rule in the kubelet's chain when it starts, and leaves it.
			run(t, "*filter\n-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP\nCOMMIT\n", "iptables-"+variant+"-restore", "--noflush")
			before := saved(t, variant)
			leaveKubeProxyAlone(t, variant)
			removal := remove(t)
			if diff := cmp.Diff(before, saved(t, variant)); diff != "" {
				t.Errorf("the rules are not those of before kube-proxy (-before +after):\n%s", diff)
			}
			if removal.Removed.Count < 50 || removal.Kept.Count != 0 {
				t.Errorf("removed %v, kept %v", removal.Removed, removal.Kept)
			}
			if found := find(t); found != nil {
				t.Errorf("found %+v after the removal", found)
			}
			if removal := remove(t); removal.Removed.Count != 0 || removal.Kept.Count != 0 {
				t.Errorf("a second removal did %+v", removal)
			}
		})
		t.Run("a chain that somebody else uses stays, with what belongs to it, "+variant, func(t *testing.T) {
			netns.EnterForTest(t)
			leaveKubeProxy(t, variant)
			// As the CNI plugin portmap does with externalSetMarkChain.
			run(t, "*nat\n:CNI-HOSTPORT-SETMARK - [0:0]\n-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ\nCOMMIT\n", "iptables-"+variant+"-restore", "--noflush")
			removal := remove(t)
			if diff := cmp.Diff([]string{"ip nat KUBE-MARK-MASQ", "ip nat KUBE-POSTROUTING"}, removal.Kept.First); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
			if found := find(t); len(found) > 0 {
				t.Errorf("found %+v after the removal", found)
			}
			rules := run(t, "", "iptables-"+variant+"-save", "-t", "nat")
			for _, want := range []string{"-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ", "-A KUBE-MARK-MASQ -j MARK", "-A KUBE-POSTROUTING", "-j KUBE-POSTROUTING"} {
				if !strings.Contains(rules, want) {
					t.Errorf("%s is gone:\n%s", want, rules)
				}
			}
		})
		t.Run("a chain of another program keeps the chain that it calls, but not the rules that called that one, "+variant, func(t *testing.T) {
			netns.EnterForTest(t)
			leaveKubeProxy(t, variant)
			run(t, "*nat\n:MINE - [0:0]\n-A OUTPUT -j MINE\n-A MINE -j KUBE-SERVICES\nCOMMIT\n", "iptables-"+variant+"-restore", "--noflush")
			services := regexp.MustCompile("(?m)^-A KUBE-SERVICES .*$")
			before := services.FindAllString(run(t, "", "iptables-"+variant+"-save", "-t", "nat"), -1)
			removal := remove(t)
			if removal.Kept.Count < 20 || removal.Removed.Count < 20 {
				t.Errorf("kept %v, removed %v", removal.Kept, removal.Removed)
			}
			rules := run(t, "", "iptables-"+variant+"-save", "-t", "nat")
			if diff := cmp.Diff(before, services.FindAllString(rules, -1)); diff != "" {
				t.Errorf("the chain (-before +after):\n%s", diff)
			}
			if strings.Contains(rules, "-A PREROUTING") || strings.Count(rules, "-A OUTPUT") != 1 || !strings.Contains(rules, "-A MINE -j KUBE-SERVICES") {
				t.Errorf("left is\n%s", rules)
			}
			if rules := run(t, "", "iptables-"+variant+"-save", "-t", "filter"); strings.Contains(rules, "KUBE-SERVICES") || strings.Contains(rules, "KUBE-FORWARD") {
				t.Errorf("left is\n%s", rules)
			}
			if again := remove(t); again.Removed.Count != 0 || again.Kept.Count != removal.Kept.Count {
				t.Errorf("a second removal did %+v", again)
			}
		})
		t.Run("chains that a network plugin is configured to use stay, "+variant, func(t *testing.T) {
			netns.EnterForTest(t)
			leaveKubeProxy(t, variant)
			useCNI(t, map[string]string{"10-bridge.conflist": `{"plugins":[{"type":"bridge"},{"type":"portmap","externalSetMarkChain":"KUBE-MARK-MASQ"}]}`})
			if diff := cmp.Diff([]string{"ip nat KUBE-MARK-MASQ", "ip nat KUBE-POSTROUTING", "ip6 nat KUBE-MARK-MASQ", "ip6 nat KUBE-POSTROUTING"}, remove(t).Kept.First); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
			if rules := run(t, "", "iptables-"+variant+"-save", "-t", "nat"); !strings.Contains(rules, "-A POSTROUTING") || !strings.Contains(rules, "-A KUBE-MARK-MASQ -j MARK") {
				t.Errorf("left is\n%s", rules)
			}
			if found := find(t); len(found) > 0 {
				t.Errorf("found %+v after the removal", found)
			}
		})
		t.Run("a rule of a base chain that is not kube-proxy's keeps the chain, "+variant, func(t *testing.T) {
			netns.EnterForTest(t)
			leaveKubeProxy(t, variant)
			const rule = "-A PREROUTING -s 10.9.0.0/16 -j KUBE-MARK-MASQ"
			run(t, "*nat\n"+rule+"\nCOMMIT\n", "iptables-"+variant+"-restore", "--noflush")
			if kept := remove(t).Kept; kept.Count != 2 {
				t.Errorf("kept %v", kept)
			}
			if rules := run(t, "", "iptables-"+variant+"-save", "-t", "nat"); !strings.Contains(rules, rule) {
				t.Errorf("it is gone:\n%s", rules)
			}
		})
	}
	t.Run("where there is nothing, nothing is done", func(t *testing.T) {
		netns.EnterForTest(t)
		if removal := remove(t); removal.Removed.Count != 0 || removal.Kept.Count != 0 {
			t.Errorf("removed %+v", removal)
		}
		if tables := run(t, "", "nft", "list", "tables"); tables != "" {
			t.Errorf("the removal made tables:\n%s", tables)
		}
	})
	t.Run("a verdict map of another program keeps the chain that it names, and all else goes", func(t *testing.T) {
		netns.EnterForTest(t)
		leaveKubeProxyAlone(t, "nft")
		const vmap = "tcp dport vmap { 99 : jump KUBE-NODEPORTS }"
		run(t, "add rule ip nat PREROUTING "+vmap, "nft", "-f", "-")
		before := run(t, "", "nft", "list", "chain", "ip", "nat", "KUBE-NODEPORTS")
		removal := remove(t)
		// It calls these.
		kept := regexp.MustCompile(`KUBE-(NODEPORTS|EXT|SVC|SVL|SEP|MARK-MASQ|POSTROUTING)`)
		if removal.Kept.Count < 20 || removal.Kept.First[0] != "ip nat KUBE-NODEPORTS" {
			t.Errorf("kept %v", removal.Kept)
		}
		if diff := cmp.Diff(before, run(t, "", "nft", "list", "chain", "ip", "nat", "KUBE-NODEPORTS")); diff != "" {
			t.Errorf("the chain (-before +after):\n%s", diff)
		}
		for _, line := range strings.Split(run(t, "", "nft", "list", "ruleset"), "\n") {
			if chain, is := strings.CutPrefix(line, "\tchain KUBE-"); is && !kept.MatchString("KUBE-"+chain) {
				t.Errorf("left is %s", line)
			}
		}
		rules := run(t, "", "nft", "list", "chain", "ip", "nat", "PREROUTING")
		if strings.Contains(rules, "jump KUBE-SERVICES") || !strings.Contains(rules, vmap) {
			t.Errorf("left is %s", rules)
		}
		if found := find(t); len(found) != 1 || strings.HasPrefix(found[0].Example, "ip6") {
			t.Errorf("found %v", found)
		}
	})
	t.Run("another program commits all the time", func(t *testing.T) {
		netns.EnterForTest(t)
		leaveKubeProxy(t, "nft")
		conn, err := nft.Dial(nft.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var others sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		others.Go(func() {
			defer conn.Close()
			for gap := 200 * time.Microsecond; ctx.Err() == nil; gap += gap / 20 { // up to some milliseconds
				_, _ = conn.Commit(ctx, nft.Diff(nil, &nft.Table{Family: nft.FamilyIP, Name: fmt.Sprint("somebody-elses-", gap)}))
				time.Sleep(gap)
			}
		})
		removal, err := new(Remover).Remove(t.Context())
		stop()
		others.Wait()
		if err != nil || removal.Removed.Count < 50 {
			t.Errorf("removed %d chains, error %v", removal.Removed.Count, err)
		}
	})
	t.Run("the rules changed since they were read", testRulesThatChangedSince)
}

// meddler is a socket of a connection beside which somebody commits, just before the connection's first transaction.
type meddler struct {
	nft.Socket
	meddle func()
}

func (m *meddler) Send(parts ...[]byte) error {
	if binary.NativeEndian.Uint16(parts[0][4:]) == unix.NFNL_MSG_BATCH_BEGIN && m.meddle != nil {
		meddle := m.meddle
		m.meddle = nil
		meddle()
	}
	return m.Socket.Send(parts...)
}

// Somebody makes the table anew: the kernel counts handles from 1 again, so that of a rule that was read is now that of
// another one.
func testRulesThatChangedSince(t *testing.T) {
	kernel := &nfttest.Kernel{}
	others, err := nft.Dial(nft.Config{Open: kernel.Open})
	if err != nil {
		t.Fatal(err)
	}
	nat := func(rules ...nft.Rule) *nft.Table {
		return &nft.Table{Family: nft.FamilyIP, Name: "nat", Chains: []*nft.Chain{
			{Name: "PREROUTING", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT, Rules: rules}, {Name: "KUBE-SERVICES"},
		}}
	}
	commit := func(tx nft.Transaction) {
		if _, err := others.Commit(t.Context(), tx); err != nil {
			t.Error(err)
		}
	}
	jump, foreign := nft.NewRule(nft.Jump("KUBE-SERVICES")), nft.NewRule(nft.Accept)
	commit(nft.Diff(nil, nat(jump, foreign)))
	meddled := false
	conn, err := nft.Dial(nft.Config{Open: func() (nft.Socket, error) {
		s, err := kernel.Open()
		return &meddler{s, func() {
			meddled = true
			commit(nft.Diff(nat(), nil))
			commit(nft.Diff(nil, nat(foreign, jump)))
		}}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := nftRemover{t.Context(), conn, new(Removal)}
	if err := r.cut(table{nft.FamilyIP, "nat"}, isFixed); err != nil || !meddled {
		t.Error(err, meddled)
	}
	got, err := others.ReadTable(t.Context(), nft.FamilyIP, "nat")
	if err != nil || got.String() != nat(foreign).String() {
		t.Errorf("left is %v, %v", got, err)
	}
}

// leaveKubeProxyAlone makes kube-proxy's rules without the one chain that it shares with the kubelet.
func leaveKubeProxyAlone(t *testing.T, variant string) {
	t.Helper()
	for name, path := range recorded {
		rules, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		own := slices.DeleteFunc(strings.SplitAfter(string(rules), "\n"), func(line string) bool { return strings.Contains(line, "KUBE-FIREWALL") })
		run(t, strings.Join(own, ""), name+"-"+variant+"-restore", "--noflush")
	}
}

// TestWatchBesideAKubeProxy plays a kube-proxy that makes its rules again after each removal, and one that was interrupted.
func TestWatchBesideAKubeProxy(t *testing.T) {
	newWatch := func(conflict *bool) *watch {
		r := new(Remover)
		w := &watch{Options: Options{Synced: make(chan struct{}), OnLook: func(_ map[Kind]int, _ Draining, c bool) { *conflict = c }}, find: Find, back: r.back, remove: r.remove}
		w.logger = funcr.New(func(_, _ string) {}, funcr.Options{})
		return w
	}
	for _, variant := range []string{"nft", "legacy"} {
		t.Run("its rules stay in the end, "+variant, func(t *testing.T) {
			netns.EnterForTest(t)
			var conflict bool
			w := newWatch(&conflict)
			for minute := range conflictReturns + 1 {
				leaveKubeProxy(t, variant)
				last := minute == conflictReturns
				if w.pass(t.Context(), time.Unix(int64(60*minute), 0)); conflict != last || (find(t) != nil) != last {
					t.Errorf("minute %d: conflict %v, found %v", minute, conflict, find(t))
				}
			}
			leaveKubeProxy(t, variant)
			if w.pass(t.Context(), time.Unix(600, 0)); !conflict || find(t) == nil {
				t.Errorf("conflict %v, found %v", conflict, find(t))
			}
		})
		t.Run("rules that are half removed, "+variant, func(t *testing.T) {
			netns.EnterForTest(t)
			leaveOthers(t, variant)
			before := saved(t, variant)
			leaveKubeProxyAlone(t, variant)
			// kube-proxy's own cleanup begins with the jumps, and then removes the chains of nat.
			program := "iptables-" + variant
			run(t, "", program, "-t", "nat", "-D", "POSTROUTING", "-m", "comment", "--comment", "kubernetes postrouting rules", "-j", "KUBE-POSTROUTING")
			run(t, "", program, "-t", "nat", "-F", "KUBE-SERVICES")
			run(t, "", program, "-F", "KUBE-FORWARD")
			var conflict bool
			newWatch(&conflict).pass(t.Context(), time.Unix(0, 0))
			if diff := cmp.Diff(before, saved(t, variant)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// A host can use both variants, and then a look or a removal in one place must not depend on the other.
func TestBothVariants(t *testing.T) {
	t.Run("both are found, and removed from among the rules of others", func(t *testing.T) {
		netns.EnterForTest(t)
		before := map[string]string{}
		for _, variant := range []string{"nft", "legacy"} {
			leaveOthers(t, variant)
			before[variant] = saved(t, variant)
			leaveKubeProxyAlone(t, variant)
		}
		if found := find(t); len(found) != 2 || found[0].Kind != NFT || found[1].Kind != Legacy || found[0].Count != found[1].Count {
			t.Errorf("found %+v", found)
		}
		removal, err := new(Remover).Remove(t.Context())
		if err != nil || removal.Removed.Count < 100 || removal.Kept.Count != 0 {
			t.Errorf("removed %d chains, kept %v, error %v", removal.Removed.Count, removal.Kept, err)
		}
		for variant, want := range before {
			if diff := cmp.Diff(want, saved(t, variant)); diff != "" {
				t.Errorf("%s (-before +after):\n%s", variant, diff)
			}
		}
	})
	for _, test := range []struct {
		name, path string
		want       string // in the error
	}{
		{"a kernel without iptables-legacy", "/nonexistent/ip_tables_names", ""},
		{"a list of tables that cannot be read", "/", "look for what iptables-legacy left: read /: is a directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			netns.EnterForTest(t)
			for i := range legacyFamilies {
				f := &legacyFamilies[i]
				t.Cleanup(func(was string) func() { return func() { f.names = was } }(f.names))
				f.names = test.path
			}
			leaveKubeProxy(t, "nft")
			says := func(err error) bool {
				return test.want == "" && err == nil || err != nil && test.want != "" && strings.Contains(err.Error(), test.want)
			}
			found, err := Find(t.Context())
			if len(found) != 1 || found[0].Kind != NFT || !says(err) {
				t.Errorf("found %+v, error %v", found, err)
			}
			removal, err := new(Remover).Remove(t.Context())
			if removal.Removed.Count < 50 || !says(err) {
				t.Errorf("removed %d chains, error %v", removal.Removed.Count, err)
			}
			others, err := FindOthers(t.Context(), 0, "filter")
			if !slices.Contains(others.Tables, "ip nat") || slices.Contains(others.Tables, "ip filter") || (err == nil) != (test.want == "") {
				t.Errorf("others %+v, error %v", others, err)
			}
		})
	}
}
