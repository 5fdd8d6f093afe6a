package leftovers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

var manyServices = flag.Int("services", 5000, "the number of Services of which mode iptables left the rules, three chains each")

// manyChains is table nat as kube-proxy leaves it: three chains and seven rules for each Service.
func manyChains(services int) *nft.Table {
	rules := func(to ...string) (rules []nft.Rule) {
		for _, chain := range to {
			rules = append(rules, nft.NewRule(nft.Counter{}, nft.Jump(chain)))
		}
		return rules
	}
	base := func(name string, hook nft.Hook, priority int32, to string) *nft.Chain {
		return &nft.Chain{Name: name, Type: nft.TypeNAT, Hook: hook, Priority: priority, Rules: rules(to)}
	}
	all := &nft.Chain{Name: "KUBE-SERVICES"}
	t := &nft.Table{Family: nft.FamilyIP, Name: "nat", Chains: []*nft.Chain{
		base("PREROUTING", nft.HookPrerouting, nft.PriorityDstNAT, all.Name), base("OUTPUT", nft.HookOutput, nft.PriorityDstNAT, all.Name),
		base("POSTROUTING", nft.HookPostrouting, nft.PrioritySrcNAT, postroutingChain),
		all, {Name: "KUBE-NODEPORTS"}, {Name: markChain}, {Name: postroutingChain, Rules: []nft.Rule{nft.NewRule(nft.Masquerade)}},
	}}
	for i := range services {
		service := fmt.Sprintf("KUBE-SVC-%016X", i)
		endpoints := []string{fmt.Sprintf("KUBE-SEP-%016X", 2*i), fmt.Sprintf("KUBE-SEP-%016X", 2*i+1)}
		all.Rules = append(all.Rules, rules(service)...)
		t.Chains = append(t.Chains, &nft.Chain{Name: service, Rules: rules(append(endpoints, markChain)...)})
		for _, e := range endpoints {
			t.Chains = append(t.Chains, &nft.Chain{Name: e, Rules: append(rules(markChain), nft.NewRule(nft.Counter{}))})
		}
	}
	all.Rules = append(all.Rules, rules("KUBE-NODEPORTS")...)
	return t
}

// inChild says what a child process of TestManyChains does.
const inChild = "LEFTOVERS_TEST_CHILD"

// usage is what a child process used: processor time, and how much its memory grew at most.
type usage struct {
	processor time.Duration
	memory    int // kB
}

func usageNow(t *testing.T) (u usage) {
	t.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	u.processor = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	u.memory, err = strconv.Atoi(string(regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// doInChild does what the environment says, and prints what it used.
func doInChild(t *testing.T, what string) {
	before := usageNow(t)
	switch what {
	case "watch":
		ctx, cancel := context.WithCancel(t.Context())
		synced := make(chan struct{})
		close(synced)
		Watch(ctx, Options{Synced: synced, OnLook: func(count map[Kind]int, _ Draining, _ bool) {
			fmt.Println("left:", count)
			cancel()
		}})
	case "read twice":
		conn, err := nft.Dial(nft.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			rules, err := conn.ReadTable(t.Context(), nft.FamilyIP, "nat")
			if err != nil {
				t.Fatal(err)
			}
			defer runtime.KeepAlive(rules)
		}
	}
	after := usageNow(t)
	fmt.Println("used:", (after.processor - before.processor).Milliseconds(), after.memory-before.memory)
}

// child runs the test in a process of its own, in the same namespace.
func child(t *testing.T, what string) (u usage, output string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inChild+"="+what)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", what, err, out)
	}
	var ms int
	_, used, _ := strings.Cut(string(out), "used: ")
	if _, err := fmt.Sscan(used, &ms, &u.memory); err != nil {
		t.Fatalf("%s printed %s", what, out)
	}
	u.processor = time.Duration(ms) * time.Millisecond
	t.Logf("to %s takes %v of processor time and %d kB", what, u.processor, u.memory)
	return u, string(out)
}

// TestManyChains removes many chains while other programs commit twenty times a second.
func TestManyChains(t *testing.T) {
	if what := os.Getenv(inChild); what != "" {
		doInChild(t, what)
		return
	}
	netns.EnterForTest(t)
	conn := dial(t)
	if _, err := conn.Commit(t.Context(), nft.Diff(nil, manyChains(*manyServices))); err != nil {
		t.Fatal(err)
	}
	// One table with 15,004 chains takes some 20 MB, and more with the race detector.
	read, _ := child(t, "read twice")
	if *manyServices >= 5000 && read.memory < 30<<10 {
		t.Errorf("all rules, twice, took %d kB: the measurement shows nothing", read.memory)
	}
	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	var commits atomic.Int32
	others.Go(func() { commitAllTheTime(ctx, conn, &commits) })
	watched := dial(t)
	others.Go(func() { expectJumpsGoFirst(ctx, t, watched) })
	u, output := child(t, "watch")
	stop()
	others.Wait()
	if commits.Load() < 10 {
		t.Errorf("others committed %d times: this test shows nothing", commits.Load())
	}
	if found := find(t); len(found) > 0 || !strings.Contains(output, "left: map[]") {
		t.Errorf("some are left\n%s", output)
	}
	if most := 3 * time.Second * time.Duration(max(1, *manyServices/5000)); u.processor > most || u.memory > read.memory/2 {
		t.Errorf("it took %v of processor time and %d kB, want at most %v, and %d kB, which is what one table takes", u.processor, u.memory, most, read.memory/2)
	}
}

// TestManyChainsInterrupted ends a removal after its first chains. What is left leads nowhere, and the next one goes on.
func TestManyChainsInterrupted(t *testing.T) {
	netns.EnterForTest(t)
	conn := dial(t)
	if _, err := conn.Commit(t.Context(), nft.Diff(nil, manyChains(2000))); err != nil {
		t.Fatal(err)
	}
	watched := dial(t)
	ctx, interrupt := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		for of := manyChains(0); of != nil && t.Context().Err() == nil; {
			of, _ = watched.ReadChain(t.Context(), nft.FamilyIP, "nat", "KUBE-SERVICES")
		}
		interrupt()
	})
	_, err := new(Remover).Remove(ctx)
	group.Wait()
	found := find(t)
	if !errors.Is(err, context.Canceled) || len(found) == 0 {
		t.Fatalf("error %v, %d kinds are left: it was not interrupted", err, len(found))
	}
	of, err := conn.ReadChain(t.Context(), nft.FamilyIP, "nat", "PREROUTING")
	if err != nil || len(of.Chains[0].Rules) > 0 {
		t.Errorf("%v, %v leads to the chains that are left", of, err)
	}
	removal, err := new(Remover).Remove(t.Context())
	if err != nil || removal.Removed.Count != found[0].Count+2 || len(find(t)) > 0 { // with the shared ones
		t.Errorf("%v, removed %d of %d", err, removal.Removed.Count, found[0].Count)
	}
}

func dial(t *testing.T) *nft.Conn {
	t.Helper()
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// commitAllTheTime adds a chain to a table of its own twenty times a second.
func commitAllTheTime(ctx context.Context, conn *nft.Conn, commits *atomic.Int32) {
	mine := &nft.Table{Family: nft.FamilyIP, Name: "mine"}
	for ctx.Err() == nil {
		chain := &nft.Chain{Name: fmt.Sprint("chain-", commits.Add(1))}
		// The end of the test ends a commit with an error.
		_, _ = conn.Commit(ctx, nft.Transaction{Steps: []nft.Step{{Op: nft.AddTable, Table: mine}, {Op: nft.AddChain, Table: mine, Chain: chain}}})
		time.Sleep(50 * time.Millisecond)
	}
}

// expectJumpsGoFirst looks for chains that go while rules of base chains still jump to kube-proxy's.
func expectJumpsGoFirst(ctx context.Context, t *testing.T, conn *nft.Conn) {
	begin, most := time.Now(), 0
	for cut := false; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		chains := 0
		if err := conn.EachChain(ctx, nft.FamilyIP, func(_ string, c *nft.Chain) {
			if isProxyChain(c.Name) {
				chains++
			}
		}); err != nil {
			continue
		}
		most = max(most, chains)
		of, err := conn.ReadChain(ctx, nft.FamilyIP, "nat", "OUTPUT")
		if err != nil {
			continue
		}
		jumps := len(of.Chains[0].Rules)
		if jumps > 0 && chains < most {
			t.Errorf("%d of %d chains are there, and %d rules that jump to them", chains, most, jumps)
		}
		if jumps == 0 && !cut {
			cut = true
			t.Logf("the jumps were gone after %v", time.Since(begin))
		}
	}
	if most < 3**manyServices {
		t.Errorf("%d chains at most: this test shows nothing", most)
	}
}
