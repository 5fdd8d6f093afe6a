package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"pgregory.net/rapid"
)

// compare compares the kernel's table with want, on a connection of its own, or ends the test.
func compare(t fataler, c *Conn, want *Table, how CompareOptions) Transaction {
	t.Helper()
	another, err := c.Another()
	if err != nil {
		t.Fatal(err)
	}
	defer another.Close()
	tx, err := another.Compare(context.Background(), want, how)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// awaitRehash waits until the kernel has rehashed the sets of the table, which have just grown, and lists them whole.
func awaitRehash(t testing.TB, c *Conn, table *Table) {
	t.Helper()
	begin := time.Now()
	for {
		tx, err := c.Compare(context.Background(), table, CompareOptions{})
		switch {
		case err == nil && tx.Empty():
			return
		case err == nil && time.Since(begin) > 30*time.Second: // before Linux 6.15 the kernel does not say how many there are
			t.Fatalf("what was committed differs by %.200s", tx)
		case err != nil && (!errors.Is(err, ErrGenerationMoved) || time.Since(begin) > 30*time.Second):
			t.Fatal(err)
		}
	}
}

// dialOver commits a table in a namespace of its own and returns two connections, once the kernel lists it whole.
func dialOver(t *testing.T, table *Table) (c, another *Conn) {
	t.Helper()
	netns.EnterForTest(t)
	c = dial(t)
	commitAll(t, c, Diff(nil, table))
	awaitRehash(t, c, table)
	another, err := c.Another()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { another.Close() })
	return c, another
}

// sortedText prints a transaction with the sets, chains and so on of each kind of step in order: the order in which the
// kernel lists differs each time.
func sortedText(tx Transaction) string {
	var steps []string
	for _, s := range tx.Steps {
		steps = append(steps, fmt.Sprintf("%02d %s", s.Op, s))
	}
	slices.Sort(steps)
	return strings.Join(steps, "\n")
}

func TestCompare(t *testing.T) {
	t.Run("finds what Diff finds", testCompareFindsWhatDiffFinds)
	t.Run("repairs what others did", testCompareRepairsWhatOthersDid)
	t.Run("gives up", testCompareGivesUp)
	t.Run("notices that a table without sets goes", testCompareNoticesThatTheTableGoes)
	t.Run("through commits", testCompareThroughCommits)
	t.Run("lists no set that packets add to", testCompareListsNoSetThatPacketsAddTo)
	t.Run("refills maps with values alone", testCompareRefillsMapsWithValuesAlone)
	t.Run("beside changes", testCompareBesideChanges)
	t.Run("beside elements that go", testCompareBesideElementsThatGo)
	t.Run("with a set that somebody emptied", testCompareWithASetThatSomebodyEmptied)
	t.Run("under constant churn", testCompareUnderConstantChurn)
}

func testCompareFindsWhatDiffFinds(t *testing.T) {
	limitChecks(t, 60)
	netns.EnterForTest(t)
	c := dial(t)
	rapid.Check(t, func(r *rapid.T) {
		g := generator{r, rapid.SampledFrom(Families[:]).Draw(r, "family")}
		have, want := g.table(), g.table()
		if want == nil {
			r.Skip("nothing is wanted")
		}
		tx := Remove(g.family, want.Name)
		tx.Append(Diff(nil, have))
		commitAll(t, c, tx)
		read, err := c.ReadTable(t.Context(), g.family, want.Name)
		if err != nil {
			r.Fatal(err)
		}
		checkComparisons(r, c, read, want)
		commitAll(t, c, compare(r, c, want, CompareOptions{RefillFrom: rapid.IntRange(0, 3).Draw(r, "refill from")}))
		if rest := compare(r, c, want, CompareOptions{}); !rest.Empty() {
			r.Fatalf("after the repair there is still:\n%s", rest)
		}
	})
}

func testCompareRepairsWhatOthersDid(t *testing.T) {
	for _, load := range []string{
		"delete table ip kube-proxy",
		"flush table ip kube-proxy",
		"add element ip kube-proxy service-ips { * : drop }",
		"add element ip kube-proxy affinity { * : 10.0.0.9 . 80 }",
		"add rule ip kube-proxy services ip saddr { 10.0.0.1, 10.0.0.2 } drop",
		"add counter ip kube-proxy theirs",
		"delete element ip kube-proxy cluster-ips { 10.96.0.1 }",
		"delete element ip kube-proxy cluster-ips { 10.96.0.1 }; add element ip kube-proxy cluster-ips { 10.96.0.2, 10.96.0.3 }",
		`delete element ip kube-proxy protocols { udp }; add element ip kube-proxy protocols { udp comment "another" }`,
		"delete element ip kube-proxy ports { 1 }; add element ip kube-proxy ports { 1 : 3 }",
		"delete table ip kube-proxy; add table ip kube-proxy",
	} {
		t.Run(load, func(t *testing.T) {
			netns.EnterForTest(t)
			c := dial(t)
			want := everything(FamilyIP)
			commitAll(t, c, Diff(nil, want))
			if tx := compare(t, c, want, CompareOptions{}); !tx.Empty() {
				t.Fatalf("what was committed differs by\n%s", tx)
			}
			runNft(t, load+"\n", "-f", "-")
			tx := compare(t, c, want, CompareOptions{})
			if diff := cmp.Diff(sortedText(Diff(readTable(t, c, want), want)), sortedText(tx)); diff != "" {
				t.Errorf("transaction (-Diff +Compare):\n%s", diff)
			}
			commitAll(t, c, tx)
			if rest := compare(t, c, want, CompareOptions{}); !rest.Empty() {
				t.Errorf("after the repair there is still:\n%s", rest)
			}
		})
	}
}

// readTable reads a table that may not be there.
func readTable(t *testing.T, c *Conn, want *Table) *Table {
	t.Helper()
	got, err := c.ReadTable(t.Context(), want.Family, want.Name)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// giveUpTime bounds the time until a listing ends when nobody wants it any more. The kernel makes a piece in less than
// 10 ms; the rest is for busy machines and for emulated ones. The number of pieces is the stricter measure.
const giveUpTime = 10 * time.Second

// A comparison is disturbed after disturbedAt pieces of work. It may do givingUp more: those under way. Without a
// disturbance it has 30 pieces.
const disturbedAt, givingUp = 10, 8

func testCompareGivesUp(t *testing.T) {
	table := manyAddresses(50_000)
	for _, tc := range []struct {
		name string
		// disturb is called once, early in the comparison.
		disturb func(t *testing.T, c *Conn, cancel func())
		guard   error
		want    error
	}{
		{"because its context is done", func(_ *testing.T, _ *Conn, cancel func()) { cancel() }, nil, context.Canceled},
		{"because somebody commits", func(t *testing.T, c *Conn, _ func()) {
			commitAll(t, c, Diff(nil, &Table{Family: FamilyIP6, Name: "other"}))
		}, nil, ErrGenerationMoved},
		{"because its guard says so", func(*testing.T, *Conn, func()) {}, errors.New("something else is to do"), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, another := dialOver(t, table)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			calls, disturbed := 0, time.Time{}
			tx, err := another.Compare(ctx, table, CompareOptions{Guard: func(work func()) error {
				work()
				if calls++; calls == disturbedAt {
					tc.disturb(t, c, cancel)
					disturbed = time.Now()
					return tc.guard
				}
				return nil
			}})
			took := time.Since(disturbed)
			want := tc.want
			if tc.guard != nil {
				want = tc.guard
			}
			if !errors.Is(err, want) || !tx.Empty() || took > giveUpTime {
				t.Errorf("Compare = %v, %v, %v after it had been disturbed; want %v", tx, err, took, want)
			}
			if calls > disturbedAt+givingUp {
				t.Errorf("it went on for %d pieces of work after it had been disturbed", calls-disturbedAt)
			}
			t.Logf("gave up after %v", took)
			// The kernel may still be rehashing the set, which has just grown.
			for deadline := time.Now().Add(20 * time.Second); ; {
				tx, err := another.Compare(context.Background(), table, CompareOptions{})
				if errors.Is(err, ErrGenerationMoved) && time.Now().Before(deadline) {
					continue
				}
				if err != nil || !tx.Empty() {
					t.Errorf("the next one: %v, %v", tx, err)
				}
				break
			}
		})
	}
}

// A table with nothing that Compare asks for by its name later.
func testCompareNoticesThatTheTableGoes(t *testing.T) {
	table := &Table{Family: FamilyIP, Name: "kube-proxy", Chains: []*Chain{{Name: "chain"}}}
	netns.EnterForTest(t)
	c := dial(t)
	commitAll(t, c, Diff(nil, table))
	another, err := c.Another()
	if err != nil {
		t.Fatal(err)
	}
	defer another.Close()
	tx, err := another.Compare(t.Context(), table, CompareOptions{Guard: func(work func()) error {
		work()
		commitAll(t, c, Remove(table.Family, table.Name))
		return nil
	}})
	if !errors.Is(err, ErrGenerationMoved) {
		t.Errorf("Compare = %.200s, %v, want ErrGenerationMoved", tx, err)
	}
}

func testCompareThroughCommits(t *testing.T) {
	t.Run("when the kernel counts", func(t *testing.T) { compareThroughCommits(t, false) })
	t.Run("when the kernel does not count", func(t *testing.T) { compareThroughCommits(t, true) })
}

func compareThroughCommits(t *testing.T, uncounted bool) {
	table := manyAddresses(50_000)
	c, another := dialOver(t, table)
	another.uncounted = uncounted
	calls := 0
	others := CompareOptions{ThroughCommits: true, Guard: func(work func()) error {
		work()
		if calls++; calls%5 == 0 {
			commitAll(t, c, Replace(&Table{Family: FamilyIP, Name: "other"}))
		}
		return nil
	}}
	if tx, err := another.Compare(t.Context(), table, others); err != nil || !tx.Empty() {
		t.Errorf("commits to another table make a difference: %.200s, %v", tx, err)
	}
	if calls < 25 {
		t.Errorf("there were %d commits only", calls/5)
	}
	want := manyAddresses(50_001)
	tx, err := another.Compare(context.Background(), want, others)
	if got := tx.String(); !errors.Is(err, ErrGenerationMoved) || got != "add element ip kube-proxy cluster-ips {\n\t10.0.195.80,\n}\n" {
		t.Errorf("Compare = %.200s, %v, want the missing element and ErrGenerationMoved", got, err)
	}
}

// fillAffinity adds elements as packets would.
func fillAffinity(t testing.TB, c *Conn, table *Table, n int) {
	t.Helper()
	set := table.Set("affinity")
	elements := make([]Element, n)
	for i := range elements {
		e := affinityElement(table.Family, 1, time.Hour, time.Hour)
		e.Key = Data(binary.BigEndian.AppendUint32(nil, uint32(i))) + e.Key[4:]
		elements[i] = e
	}
	commitAll(t, c, Transaction{Steps: []Step{{Op: AddElements, Table: table, Set: set, Elements: elements}}})
}

func testCompareListsNoSetThatPacketsAddTo(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	want := everything(FamilyIP)
	commitAll(t, c, Diff(nil, want))
	fillAffinity(t, c, want, 200_000)
	pieces := 0
	begin := time.Now()
	tx := compare(t, c, want, CompareOptions{Guard: func(work func()) error {
		pieces++
		work()
		return nil
	}})
	if !tx.Empty() || pieces > 4*len(want.Sets) {
		t.Errorf("the difference is %.200s, found in %d pieces", tx, pieces)
	}
	t.Logf("%d pieces, %v", pieces, time.Since(begin))
	runNft(t, "", "add", "element", "ip", "kube-proxy", "affinity", "{ * : 10.0.0.9 . 80 }")
	tx = compare(t, c, want, CompareOptions{})
	if got := tx.String(); got != "delete element ip kube-proxy affinity {\n\t*,\n}\n" {
		t.Errorf("the repair of a catch-all is\n%s", got)
	}
}

func testCompareRefillsMapsWithValuesAlone(t *testing.T) {
	want := everything(FamilyIP)
	counted := &Set{Name: "counted-values", Key: Concat{IPDaddr}, Data: Concat{IPDaddr}, Counter: true}
	counted.Put(Element{Key: "\x0a\x00\x00\x01", Value: "\x0a\x00\x00\x02"})
	want.Sets = append(want.Sets, counted)
	var expected []string
	for _, s := range want.Sets {
		if s.Data != nil && !s.Dynamic && !s.Counter && s.Len() > 0 {
			expected = append(expected, s.Name)
		}
	}
	c, another := dialOver(t, want)
	foreign := want.Set(expected[0]).Elements()[0]
	commitAll(t, another, Transaction{Steps: []Step{{Op: DeleteElements, Table: want, Set: want.Set(expected[0]), Elements: []Element{foreign}}}})
	tx := compare(t, c, want, CompareOptions{RefillFrom: 1})
	var flushed, added []string
	for _, s := range tx.Steps {
		switch s.Op {
		case FlushSet:
			flushed = append(flushed, s.Set.Name)
		case AddElements:
			added = append(added, s.Set.Name)
		default:
			t.Errorf("another step: %s", s)
		}
	}
	if !slices.Equal(flushed, expected) || !slices.Equal(added, expected) {
		t.Errorf("flushed %q and added to %q, want %q", flushed, added, expected)
	}
	runNft(t, tx.String(), "-f", "-") // the text has the same effect
	if rest := compare(t, c, want, CompareOptions{}); !rest.Empty() {
		t.Errorf("after that there is still:\n%s", rest)
	}
	if tx := compare(t, c, want, CompareOptions{RefillFrom: 1000}); !tx.Empty() {
		t.Errorf("short maps are refilled:\n%s", tx)
	}
}

func TestElements(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	want := everything(FamilyIP)
	commitAll(t, c, Diff(nil, want))
	fillAffinity(t, c, want, 50_000)
	set := want.Set("affinity")
	t.Run("are all listed", func(t *testing.T) {
		// While the kernel rehashes the set, which has just grown, it leaves some out.
		seen := map[Data]bool{}
		for deadline := time.Now().Add(20 * time.Second); len(seen) != 50_000 && time.Now().Before(deadline); {
			clear(seen)
			for e, err := range c.Elements(context.Background(), FamilyIP, want.Name, set) {
				if err != nil {
					t.Fatal(err)
				}
				seen[e.Key] = true
			}
		}
		if len(seen) != 50_000 {
			t.Errorf("%d elements, want 50,000", len(seen))
		}
	})
	t.Run("end when the loop does", func(t *testing.T) {
		n := 0
		for range c.Elements(context.Background(), FamilyIP, want.Name, set) {
			if n++; n == 10 {
				break
			}
		}
		if _, err := c.Generation(t.Context()); err != nil || n != 10 {
			t.Errorf("after %d elements, the connection says %v", n, err)
		}
	})
	t.Run("end when the context is done", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		n := 0
		var last error
		for _, err := range c.Elements(ctx, FamilyIP, want.Name, set) {
			if n++; n == 10 {
				cancel()
			}
			last = err
		}
		if !errors.Is(last, context.Canceled) || n > 5000 {
			t.Errorf("after %d elements: %v", n, last)
		}
	})
	// listWhile lists elements while another connection commits, after the tenth one.
	listWhile := func(t *testing.T, table *Table, set *Set) (n int, last error) {
		t.Helper()
		other, err := c.Another()
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		for _, err := range c.Elements(context.Background(), FamilyIP, table.Name, set) {
			if n++; n == 10 {
				commitAll(t, other, Replace(&Table{Family: FamilyIP6, Name: "other"}))
			}
			last = err
		}
		return n, last
	}
	t.Run("go on when somebody commits", func(t *testing.T) {
		if n, last := listWhile(t, want, set); last != nil || n < 25_000 {
			t.Errorf("after %d elements: %v", n, last)
		}
	})
	t.Run("of a set that packets do not add to end when somebody commits", func(t *testing.T) {
		plain := manyAddresses(50_000)
		plain.Name = "plain"
		commitAll(t, c, Diff(nil, plain))
		if n, last := listWhile(t, plain, plain.Sets[0]); !errors.Is(last, ErrGenerationMoved) || n > 5000 {
			t.Errorf("after %d elements: %v", n, last)
		}
	})
	t.Run("of another type are an error", func(t *testing.T) {
		var last error
		for _, err := range c.Elements(context.Background(), FamilyIP, want.Name, &Set{Name: "affinity", Key: Concat{IPDaddr}}) {
			last = err
		}
		if last == nil || !strings.Contains(last.Error(), "its elements are not typeof ip daddr") {
			t.Errorf("error %v", last)
		}
	})
}

// checkComparisons compares the kernel's table, which was read as have, with want: with the kernel's counts, and as
// before Linux 6.15.
func checkComparisons(t fataler, c *Conn, have, want *Table) {
	t.Helper()
	for _, uncounted := range []bool{false, true} {
		another, err := c.Another()
		if err != nil {
			t.Fatal(err)
		}
		another.uncounted = uncounted
		got, err := another.Compare(context.Background(), want, CompareOptions{})
		another.Close()
		if diff := cmp.Diff(sortedText(Diff(have, want)), sortedText(got)); diff != "" || err != nil {
			t.Fatal(fmt.Sprintf("uncounted %v: transaction (-Diff +Compare), %v:\n%s", uncounted, err, diff))
		}
	}
}

func TestCompareRefusesAKeyOfAnotherLength(t *testing.T) {
	table := manyAddresses(500)
	_, another := dialOver(t, table)
	table.Sets[0].Put(Element{Key: "a"})
	if tx, err := another.Compare(t.Context(), table, CompareOptions{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("Compare = %.200s, %v, want ErrInvalid", tx, err)
	}
}

// The lock that a Guard takes keeps the wanted table still; a race detector would see if it did not.
func testCompareBesideChanges(t *testing.T) {
	table := manyAddresses(20_000)
	_, another := dialOver(t, table)
	lock := make(chan struct{}, 1)
	var revision atomic.Int64
	errChanged := errors.New("the wanted table changed")
	outcome := make(chan error)
	go func() {
		for range 20 {
			at := revision.Load()
			_, err := another.Compare(context.Background(), table, CompareOptions{Guard: func(work func()) error {
				lock <- struct{}{}
				defer func() { <-lock }()
				if revision.Load() != at {
					return errChanged
				}
				work()
				return nil
			}})
			if err != nil && !errors.Is(err, errChanged) && !errors.Is(err, ErrGenerationMoved) {
				outcome <- err
				return
			}
		}
		outcome <- nil
	}()
	for {
		select {
		case err := <-outcome:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(time.Duration(rand.IntN(10)) * time.Millisecond):
			lock <- struct{}{}
			revision.Add(1)
			table.Sets[0].Put(Element{Key: IntegerData(rand.Uint32N(1000))})
			<-lock
		}
	}
}

func TestSeenKeys(t *testing.T) {
	const n = 10_000
	seen := newSeenKeys(10) // grows
	key := func(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }
	for round := range 2 {
		for i := range n {
			if isNew := seen.add(key(i)); isNew != (round == 0) {
				t.Fatalf("round %d: add(%d) = %v", round, i, isNew)
			}
		}
		if seen.len() != n {
			t.Fatalf("%d keys, want %d", seen.len(), n)
		}
	}
	for i := range 2 * n {
		if got := seen.has(Data(key(i))); got != (i < n) {
			t.Fatalf("has(%d) = %v", i, got)
		}
	}
}

func TestSetComplete(t *testing.T) {
	t.Run("refuses an incomplete listing", testSetCompleteRefusesAnIncompleteListing)
}

// The kernel cannot be made to leave elements out at will.
func testSetCompleteRefusesAnIncompleteListing(t *testing.T) {
	key := Concat{IPDaddr}
	for _, tc := range []struct {
		set    Set
		listed int
		want   error
	}{
		{Set{Key: key, kernel: kernelSet{count: 5}}, 4, ErrGenerationMoved},
		{Set{Key: key, kernel: kernelSet{count: 5}}, 5, nil},
		{Set{Key: key, kernel: kernelSet{count: -1}}, 4, nil}, // kernels before 6.15
		{Set{Key: key, kernel: kernelSet{count: 9}, Interval: true}, 4, nil},
	} {
		if err := tc.set.complete(tc.listed); !errors.Is(err, tc.want) {
			t.Errorf("%d listed of %d: %v, want %v", tc.listed, tc.set.kernel.count, err, tc.want)
		}
	}
}
