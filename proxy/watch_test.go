package proxy

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/nfttest"
	"golang.org/x/sys/unix"
)

// manyPorts is n Services with two endpoints each. The last byte of the first endpoint's address is version.
func manyPorts(n int, version byte) *model.Changes {
	changes := &model.Changes{Full: true, Node: &model.Node{Name: "node-1"}, Ports: map[model.PortID]*model.ServicePort{}}
	for i := range n {
		at := func(network, last byte) netip.Addr {
			return netip.AddrFrom4([4]byte{10, network + byte(i>>8), byte(i), last})
		}
		p := &model.ServicePort{
			ID:        model.PortID{Namespace: "default", Service: fmt.Sprintf("service-%d", i), Protocol: model.TCP, Family: model.IPv4},
			ClusterIP: at(0, 1), Port: 80,
			Cluster: []model.Endpoint{{AddrPort: netip.AddrPortFrom(at(100, version), 8080)}, {AddrPort: netip.AddrPortFrom(at(100, 255), 8080)}},
		}
		changes.Ports[p.ID] = p
	}
	return changes
}

// watched returns a backend that has committed n Services, and a connection of another program.
func watched(t *testing.T, n int, hooks Hooks) (*Backend, *nft.Conn) {
	t.Helper()
	c := namespaceConn(t)
	b, err := NewBackend(c, compiler.Default(), hooks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	if err := b.Sync(t.Context(), manyPorts(n, 1)); err != nil {
		t.Fatal(err)
	}
	others, err := c.Another()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = others.Close() })
	return b, others
}

// watch runs Watch until the test ends.
func watch(t *testing.T, b *Backend) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { b.Watch(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	const patience = 2 * time.Minute // an emulated machine (make test-kernels) is slow
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func commit(t *testing.T, c *nft.Conn, tx nft.Transaction) {
	t.Helper()
	if _, err := c.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

// foreignElement adds an element to service-ips that nobody wants.
func foreignElement(b *Backend, last byte) nft.Transaction {
	table := b.Tables()[0]
	key := nft.AddrData(netip.AddrFrom4([4]byte{192, 0, 2, last})) + nft.ProtoData(6) + nft.PortData(80)
	return nft.Transaction{Steps: []nft.Step{{
		Op: nft.AddElements, Table: table, Set: table.Set("service-ips"), Elements: []nft.Element{{Key: key, Verdict: nft.Drop}},
	}}}
}

func TestBackendWatch(t *testing.T) {
	t.Run("adds a missing table again and again", testWatchAddsAMissingTable)
	t.Run("asks for the generation without the lock of Syncs", testWatchAsksWithoutTheLock)
	t.Run("backs off while the kernel refuses the repair", testWatchBacksOff)
	t.Run("notices a flush while comparisons rest", testWatchWhileComparisonsRest)
	t.Run("makes a comparison that rested", testWatchMakesAComparisonThatRested)
	t.Run("rests for its comparisons alone", testWatchRestsForItsComparisons)
	t.Run("rests for a minute at most", testWatchRestsForAMinuteAtMost)
}

// syncTime is the length of a Sync beside which a comparison of a few Services takes next to nothing.
const syncTime = 2 * time.Second

// besideASync runs f while a Sync runs, which begins before f.
func besideASync(t *testing.T, b *Backend, changes *model.Changes, f func()) {
	t.Helper()
	begun := make(chan struct{})
	b.hooks.OnCompile = func(time.Duration) {
		close(begun)
		time.Sleep(syncTime)
	}
	var syncing sync.WaitGroup
	syncing.Go(func() {
		if err := b.Sync(t.Context(), changes); err != nil {
			t.Error(err)
		}
	})
	<-begun
	f()
	syncing.Wait()
}

func testWatchRestsForItsComparisons(t *testing.T) {
	repairs := 0
	b, others := watched(t, 10, Hooks{OnRepair: func() { repairs++ }})
	c := b.repairs
	commit(t, others, foreignElement(b, 1))
	besideASync(t, b, manyPorts(11, 1), func() { c.next(t.Context(), others) })
	if repairs != 1 {
		t.Errorf("%d repairs of a foreign element", repairs)
	}
	if rest := time.Until(c.nextComparison); c.nextComparison.IsZero() || rest > restPerComparison*syncTime/2 {
		t.Errorf("after a Sync of %v, the next comparison is in %v", syncTime, rest)
	}
	// A Sync that begins after the comparison did.
	commit(t, others, foreignElement(b, 2))
	comparison, _, err := b.repairs.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	besideASync(t, b, manyPorts(12, 1), func() {
		compared := comparison.lock.work(func() { _, err = comparison.run(t.Context(), others) })
		if err != nil || compared > syncTime/2 {
			t.Errorf("beside a Sync of %v, a comparison took %v, %v", syncTime, compared, err)
		}
	})
}

func testWatchRestsForAMinuteAtMost(t *testing.T) {
	b, others := watched(t, 10, Hooks{})
	c := b.repairs
	for compared, want := range map[time.Duration]time.Duration{0: 0, time.Second: 20 * time.Second, time.Hour: time.Minute} {
		if got := restAfter(compared); got != want {
			t.Errorf("after a comparison of %v it rests for %v, want %v", compared, got, want)
		}
	}
	// A check that compares nothing does not put the next comparison off.
	c.next(t.Context(), others)
	if !c.nextComparison.Before(time.Now()) {
		t.Errorf("after a check without a comparison, the next one is in %v", time.Until(c.nextComparison))
	}
}

func testWatchAddsAMissingTable(t *testing.T) {
	b, others := watched(t, 10, Hooks{})
	watch(t, b)
	// That there is a table is not enough: before Linux 6.3 there is an empty one while the repair is being committed,
	// because the transaction begins with one that it adds and deletes.
	repaired := func() error { return kernelDiffers(t.Context(), others, b) }
	for version := range byte(5) {
		commit(t, others, nft.Remove(nft.FamilyIP, compiler.TableName))
		await.Until(t, "the table is back", repaired)
		if err := b.Sync(t.Context(), manyPorts(10, version)); err != nil {
			t.Fatal(err)
		}
		commit(t, others, nft.Remove(nft.FamilyIP6, compiler.TableName))
		await.Until(t, "the table is back after a Sync", repaired)
	}
}

// asking counts the requests for the generation number that are sent over a socket.
type asking struct {
	nft.Socket
	asked *atomic.Int32
}

func (a *asking) Send(parts ...[]byte) error {
	if binary.NativeEndian.Uint16(parts[0][4:]) == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN {
		a.asked.Add(1)
	}
	return a.Socket.Send(parts...)
}

func testWatchAsksWithoutTheLock(t *testing.T) {
	var kernel nfttest.Kernel
	var asked atomic.Int32
	c, err := nft.Dial(nft.Config{Open: func() (nft.Socket, error) {
		s, err := kernel.Open()
		return &asking{s, &asked}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := NewBackend(c, compiler.Default(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	if err := b.Sync(t.Context(), manyPorts(10, 1)); err != nil {
		t.Fatal(err)
	}
	b.repairs.interval = time.Millisecond
	watch(t, b)
	asksAgain := func(what string) {
		t.Helper()
		before := asked.Load()
		eventually(t, what, func() bool { return asked.Load() > before+5 })
	}
	asksAgain("it asks after its first check")
	b.mu.Lock()
	defer b.mu.Unlock()
	asksAgain("it asks while a Sync holds the lock")
}

// A foreign change that is found while comparisons rest is undone afterwards, although nobody commits again.
func testWatchMakesAComparisonThatRested(t *testing.T) {
	b, others := watched(t, 10, Hooks{})
	b.repairs.rest(500 * time.Millisecond)
	rested := b.repairs.nextComparison
	commit(t, others, foreignElement(b, 1))
	watch(t, b)
	await.Until(t, "the foreign element is gone", func() error { return kernelDiffers(t.Context(), others, b) })
	if time.Now().Before(rested) {
		t.Error("the tables were compared while comparisons rest")
	}
}

func TestBackendCheck(t *testing.T) {
	t.Run("finds what is foreign and nothing else beside Syncs and commits", testCheckBesideSyncsAndCommits)
	t.Run("compares the tables if others committed, and not for own commits", testCheckComparesIfOthersCommitted)
	t.Run("finds what is foreign although an own commit changed nothing", testCheckAfterAnOwnCommitThatChangedNothing)
	t.Run("finds a foreign policy of a chain that a commit rewrote meanwhile", testCheckBesideARewrittenChain)
}

func testCheckBesideSyncsAndCommits(t *testing.T) {
	const services = 500
	repairs := 0
	b, others := watched(t, services, Hooks{OnRepair: func() { repairs++ }})
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel()
	busy.Go(func() {
		for last := byte(0); ctx.Err() == nil; last++ {
			theirs := nft.Table{Family: nft.FamilyIP, Name: "theirs"}
			if _, err := others.Commit(t.Context(), nft.Replace(&theirs)); err != nil {
				t.Error(err)
			}
		}
	})
	busy.Go(func() {
		for version := byte(0); ctx.Err() == nil; version++ {
			if err := b.Sync(t.Context(), manyPorts(services, version%200)); err != nil {
				t.Error(err)
			}
		}
	})
	another, err := others.Another()
	if err != nil {
		t.Fatal(err)
	}
	defer another.Close()
	for last := range byte(5) {
		before := repairs
		commit(t, another, foreignElement(b, last))
		eventually(t, "the foreign element is found", func() bool {
			if _, err := b.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			return repairs > before
		})
	}
	cancel()
	busy.Wait()
	if repairs != 5 {
		t.Errorf("%d repairs of 5 foreign elements: what Syncs changed was taken for foreign", repairs)
	}
	compareWithKernel(t, others, b)
}

func testCheckComparesIfOthersCommitted(t *testing.T) {
	b, others := watched(t, 10, Hooks{})
	version := byte(1)
	own := func(t *testing.T) {
		version++
		changes := manyPorts(10, version)
		for _, p := range manyPorts(10, version).Ports { // and in the other family, for one batch of both
			p.ID.Family = model.IPv6
			p.ClusterIP = netip.AddrFrom16([16]byte{0: 0xfd, 14: p.ClusterIP.As4()[2], 15: 1})
			p.Cluster = []model.Endpoint{{AddrPort: netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 15: version}), 8080)}}
			changes.Ports[p.ID] = p
		}
		if err := b.Sync(t.Context(), changes); err != nil {
			t.Fatal(err)
		}
	}
	theirs := func(t *testing.T) {
		tx := nft.Replace(&nft.Table{Family: nft.FamilyIP, Name: "theirs"})
		tx.Append(nft.Replace(&nft.Table{Family: nft.FamilyIP6, Name: "theirs"}))
		commit(t, others, tx)
	}
	check := func(t *testing.T) {
		if repaired, err := b.Check(t.Context()); err != nil || repaired {
			t.Fatalf("Check = %v, %v", repaired, err)
		}
	}
	for _, tc := range []struct {
		name  string
		steps []func(*testing.T)
		want  bool
	}{
		{"after a start", nil, false},
		{"after own commits", []func(*testing.T){own, own}, false},
		{"after a commit of others", []func(*testing.T){theirs}, true},
		{"after a commit of others before an own one", []func(*testing.T){theirs, own}, true},
		{"after one between own ones", []func(*testing.T){own, theirs, own}, true},
		{"after as many of others as own ones", []func(*testing.T){own, theirs, own, theirs}, true},
		{"after own commits that follow the check", []func(*testing.T){theirs, own, check, own, own}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, step := range tc.steps {
				step(t)
			}
			c, _, err := b.repairs.begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if compares := c != nil; compares != tc.want {
				t.Errorf("the check compares the tables: %v, want %v", compares, tc.want)
			}
			b.repairs.end()
			check(t)
		})
	}
}

// Somebody else commits what a Sync is about to commit, such as a second proxy on the node, and something foreign. Then
// the commit of the Sync changes nothing, and the kernel does not raise its generation.
func testCheckAfterAnOwnCommitThatChangedNothing(t *testing.T) {
	netns.NeedLinux(t, 5, 10)
	const services = 10
	b, others := watched(t, services, Hooks{})
	// The kernel shows that it echoes generations, as it does to Probe when the proxy starts.
	if err := b.Sync(t.Context(), manyPorts(services+1, 1)); err != nil {
		t.Fatal(err)
	}
	more := manyPorts(services+2, 1)
	kept, err := compiler.New(compiler.Default())
	if err != nil {
		t.Fatal(err)
	}
	kept.Apply(more)
	tx, err := others.Compare(t.Context(), kept.Tables()[0], nft.CompareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tx.Append(foreignElement(b, 1))
	commit(t, others, tx)
	if err := b.Sync(t.Context(), more); err != nil {
		t.Fatal(err)
	}
	if repaired, err := b.Check(t.Context()); err != nil || !repaired {
		t.Errorf("Check = %v, %v: the commit of somebody else was taken for the one of the Sync", repaired, err)
	}
	compareWithKernel(t, others, b)
}

// A commit that rewrites a chain deletes foreign rules in it, but leaves a foreign policy.
func testCheckBesideARewrittenChain(t *testing.T) {
	b, others := watched(t, 10, Hooks{})
	table := b.Tables()[0]
	chain := table.Chains[slices.IndexFunc(table.Chains, func(c *nft.Chain) bool { return c.Name == "filter-input" })]
	theirs := *chain
	theirs.DropPolicy = true
	commit(t, others, nft.Transaction{Steps: []nft.Step{{Op: nft.AddChain, Table: table, Chain: &theirs}}})

	c, _, err := b.repairs.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx, err := c.run(t.Context(), others)
	if err != nil || tx.Empty() {
		t.Fatalf("the comparison finds %v, %v", tx, err)
	}
	b.mu.Lock()
	err = b.commit(t.Context(), nft.Transaction{Steps: []nft.Step{
		{Op: nft.FlushChain, Table: table, Chain: chain}, {Op: nft.AddRules, Table: table, Chain: chain},
	}})
	b.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if _, left, err := b.repairs.undo(t.Context(), c, tx); err != nil || !left {
		t.Fatalf("a difference in a chain that was rewritten meanwhile: %v, %v; want another comparison", left, err)
	}
	b.repairs.end()

	if repaired, err := b.Check(t.Context()); err != nil || !repaired {
		t.Errorf("the next check = %v, %v", repaired, err)
	}
	compareWithKernel(t, others, b)
	if repaired, err := b.Check(t.Context()); err != nil || repaired {
		t.Errorf("the check after the repair = %v, %v", repaired, err)
	}
}

func testWatchBacksOff(t *testing.T) {
	var mu sync.Mutex
	refused, resolved := 0, 0
	b, others := watched(t, 10, Hooks{OnDiverged: func(yes bool) {
		mu.Lock()
		defer mu.Unlock()
		if yes {
			refused++
		} else {
			resolved++
		}
	}})
	netns.NeedLinux(t, 6, 9) // table flag persist
	mine := &nft.Table{Family: nft.FamilyIP, Name: compiler.TableName, Owner: true, Persist: true}
	commit(t, others, nft.Replace(mine))
	b.repairs.interval = 10 * time.Millisecond
	watch(t, b)
	const observed = 3 * time.Second
	eventually(t, "a refused repair", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return refused > 0
	})
	time.Sleep(observed)
	mu.Lock()
	if n := refused; n > 3 {
		t.Errorf("%d refused repairs within %v, want one at once, and the others after 1 s and 2 s more", n, observed)
	}
	mu.Unlock()
	commit(t, others, nft.Remove(nft.FamilyIP, compiler.TableName))
	eventually(t, "the repair", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return resolved == 1
	})
	compareWithKernel(t, others, b)
}

// While the tables are not compared, because comparisons take long or fail, a flush must not go unnoticed.
func testWatchWhileComparisonsRest(t *testing.T) {
	b, others := watched(t, 1, Hooks{})
	b.repairs.rest(time.Hour)
	watch(t, b)
	commit(t, others, nft.Remove(nft.FamilyIP6, compiler.TableName))
	eventually(t, "the table is back", func() bool {
		there, err := others.HasTable(t.Context(), nft.FamilyIP6, compiler.TableName)
		return there && err == nil
	})
}

func TestRepairConflict(t *testing.T) {
	start := time.Now()
	for _, tc := range []struct {
		name string
		// gap is the time between repairs.
		gap     time.Duration
		repairs int
		want    time.Duration
	}{
		{"a few repairs may be chance", time.Second, conflictRepairs, 0},
		{"one more makes the next comparison wait", time.Second, conflictRepairs + 1, firstRetryDelay},
		{"each further one waits twice as long", time.Second, conflictRepairs + 3, 4 * firstRetryDelay},
		{"repairs now and then do not belong together", conflictGap + time.Second, 100, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newRepairConflict()
			now, wait := start, time.Duration(0)
			for range tc.repairs {
				now = now.Add(tc.gap)
				wait = c.repaired(now)
			}
			if wait != tc.want {
				t.Errorf("the wait is %v, want %v", wait, tc.want)
			}
		})
	}
	t.Run("it waits for as long as it goes on at the pace of the waits", func(t *testing.T) {
		c := newRepairConflict()
		now, wait := start, time.Duration(0)
		for range conflictRepairs + 20 {
			now = now.Add(wait + time.Second)
			wait = c.repaired(now)
		}
		if wait != maxRetryDelay {
			t.Errorf("the wait is %v, want %v", wait, maxRetryDelay)
		}
	})
}
