package nft

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/integration/netns"
)

// staleKeys returns a Comparison.StaleKeys that knows some keys of every set.
func staleKeys(keys ...Data) func(*Set, iter.Seq2[*Set, Element]) iter.Seq[Data] {
	return func(*Set, iter.Seq2[*Set, Element]) iter.Seq[Data] { return slices.Values(keys) }
}

// needCounts skips the test on a kernel that does not count the elements of a set. There Compare lists every set.
func needCounts(t *testing.T) {
	t.Helper()
	netns.NeedLinux(t, 6, 15)
}

func TestCompareByKey(t *testing.T) {
	const n = 5000
	stale := numberedAddr(200, 1)
	for _, tc := range []struct {
		name string
		// load is what the nft program does to the table; how may know keys that are not wanted.
		load, want string
		how        Comparison
		// lists says that the kernel counts an element that nobody knows.
		lists bool
	}{
		{name: "finds nothing where nothing differs"},
		{name: "finds a missing element",
			load: "delete element ip kube-proxy cluster-ips { 10.0.0.7 }",
			want: "add element ip kube-proxy cluster-ips {\n\t10.0.0.7,\n}\n"},
		{name: "finds an element with a foreign comment",
			load: `delete element ip kube-proxy cluster-ips { 10.0.0.7 }; add element ip kube-proxy cluster-ips { 10.0.0.7 comment "theirs" }`,
			want: "delete element ip kube-proxy cluster-ips {\n\t10.0.0.7,\n}\nadd element ip kube-proxy cluster-ips {\n\t10.0.0.7,\n}\n"},
		{name: "finds a stale element whose key the caller knows",
			load: "add element ip kube-proxy cluster-ips { 10.200.0.1 }",
			how:  Comparison{StaleKeys: staleKeys(AddrData(stale), AddrData(numberedAddr(0, 1)), AddrData(stale), "another length")},
			want: "delete element ip kube-proxy cluster-ips {\n\t10.200.0.1,\n}\n"},
		{name: "lists the set if there are more elements than keys",
			load: "add element ip kube-proxy cluster-ips { 10.200.0.1 }",
			want: "delete element ip kube-proxy cluster-ips {\n\t10.200.0.1,\n}\n", lists: true},
		{name: "lists the set if a foreign element is in the place of a wanted one",
			load: "delete element ip kube-proxy cluster-ips { 10.0.0.7 }; add element ip kube-proxy cluster-ips { 10.200.0.1 }",
			want: "delete element ip kube-proxy cluster-ips {\n\t10.200.0.1,\n}\nadd element ip kube-proxy cluster-ips {\n\t10.0.0.7,\n}\n", lists: true},
		{name: "finds a catch-all",
			load: "add element ip kube-proxy cluster-ips { * }",
			want: "delete element ip kube-proxy cluster-ips {\n\t*,\n}\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			needCounts(t)
			table := manyAddresses(n)
			c, another := dialOver(t, table)
			another.askFrom = n / 2
			if tc.load != "" {
				runNft(t, tc.load+"\n", "-f", "-")
			}
			for _, uncounted := range []bool{false, true} {
				another.uncounted = uncounted
				pieces := 0
				how := tc.how
				how.Guard = func(work func()) error {
					pieces++
					work()
					return nil
				}
				tx, err := another.Compare(t.Context(), table, how)
				if got := tx.String(); got != tc.want || err != nil {
					t.Errorf("Compare = %.200s, %v; want %s", got, err, tc.want)
				}
				// A listing has some 700 such elements in each message.
				asked := pieces > n/askedAtOnce
				t.Logf("%d pieces, uncounted %v", pieces, uncounted)
				if uncounted && asked || !uncounted && !tc.lists && !asked {
					t.Errorf("the kernel was asked for the elements by their keys: %v, in %d pieces; uncounted %v", asked, pieces, uncounted)
				}
			}
			commitAll(t, c, compare(t, c, table, tc.how))
			if rest := compare(t, c, table, Comparison{}); !rest.Empty() {
				t.Errorf("after the repair there is still:\n%.200s", rest)
			}
		})
	}
	t.Run("finds changed values", testCompareByKeyFindsChangedValues)
	t.Run("tells the caller what is stale in smaller sets", testCompareByKeyTellsWhatIsStale)
	t.Run("ends when somebody deletes the table", testCompareByKeyEndsWithoutTheTable)
	t.Run("finds a foreign element beside deletions", testCompareByKeyBesideDeletions)
	t.Run("ends if there is no end of stale keys", testCompareByKeyBoundsStaleKeys)
	t.Run("refuses a key of another length", testCompareByKeyRefusesKeys)
	t.Run("is faster in long sets", testFasterByKey)
}

func testCompareByKeyFindsChangedValues(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	table := manyServices(askFrom / 2)
	commitAll(t, c, Diff(nil, table))
	changed := manyServices(askFrom / 2)
	endpoints := changed.Set("endpoints")
	var want []Element
	for e := range endpoints.each() {
		if e.Value = AddrData(numberedAddr(99, len(want))) + PortData(8080); len(want) < 100 {
			want = append(want, e)
		}
	}
	for _, e := range want {
		endpoints.Put(e)
	}
	tx := compare(t, c, changed, Comparison{})
	if len(tx.Steps) != 2 || tx.Steps[0].Len() != len(want) || tx.Steps[1].Len() != len(want) {
		t.Errorf("Compare = %.300s; want %d elements to delete and to add", tx, len(want))
	}
	commitAll(t, c, tx)
	if rest := compare(t, c, changed, Comparison{}); !rest.Empty() {
		t.Errorf("after the repair there is still:\n%.200s", rest)
	}
}

func testCompareByKeyTellsWhatIsStale(t *testing.T) {
	needCounts(t)
	netns.EnterForTest(t)
	c := dial(t)
	const n = 5000
	commitAll(t, c, Diff(nil, manyServices(n)))
	want := manyServices(n - 1) // the last one has gone meanwhile
	c.askFrom = n
	calls := 0
	tx, err := c.Compare(t.Context(), want, Comparison{StaleKeys: func(set *Set, deleted iter.Seq2[*Set, Element]) iter.Seq[Data] {
		return func(yield func(Data) bool) {
			for from, e := range deleted {
				calls++
				if set.Name != "endpoints" || from.Name != "service-ips" {
					t.Errorf("asked for the stale keys of %s because of %s", set.Name, from.Name)
				}
				_ = yield(e.Key+IntegerData(0)) && yield(e.Key+IntegerData(1))
			}
		}
	}})
	if err != nil || calls != 1 || len(tx.Steps) != 2 || tx.Steps[0].Len()+tx.Steps[1].Len() != 3 {
		t.Errorf("Compare = %.300s, %v, after %d calls; want one Service and two endpoints to delete", tx, err, calls)
	}
}

func testCompareByKeyEndsWithoutTheTable(t *testing.T) {
	needCounts(t)
	const n = 5000
	table := manyAddresses(n)
	c, another := dialOver(t, table)
	another.askFrom = n
	for _, how := range []Comparison{{}, {ThroughCommits: true}} {
		calls := 0
		how.Guard = func(work func()) error {
			if calls++; calls == 20 {
				commitAll(t, c, Remove(table.Family, table.Name))
			}
			work()
			return nil
		}
		if tx, err := another.Compare(context.Background(), table, how); !errors.Is(err, ErrGenerationMoved) || calls < 20 {
			t.Errorf("Compare = %.200s, %v after %d calls, want ErrGenerationMoved", tx, err, calls)
		}
		commitAll(t, c, Replace(table))
	}
}

// An element that is deleted between the answer and its comparison must not count as one that the kernel still has: it
// would take the place of a foreign one.
func testCompareByKeyBesideDeletions(t *testing.T) {
	needCounts(t)
	const n = 20_000
	table := manyAddresses(n)
	set := table.Sets[0]
	c, another := dialOver(t, table)
	another.askFrom = n
	runNft(t, "delete element ip kube-proxy cluster-ips { 10.0.0.7 }; add element ip kube-proxy cluster-ips { 10.200.0.1 }\n", "-f", "-")
	calls := 0
	tx, err := another.Compare(t.Context(), table, Comparison{ThroughCommits: true, Guard: func(work func()) error {
		if calls++; calls == 40 {
			var gone []Element
			for i := 0; i < n; i += 2 {
				gone = append(gone, Element{Key: AddrData(numberedAddr(byte(i>>16), i&0xffff))})
				set.Remove(gone[len(gone)-1].Key)
			}
			commitAll(t, c, Transaction{Steps: []Step{{Op: DeleteElements, Table: table, Set: set, Elements: gone}}})
		}
		work()
		return nil
	}})
	if calls < 40 || !errors.Is(err, ErrGenerationMoved) {
		t.Fatalf("Compare ended with %v after %d calls", err, calls)
	}
	for _, s := range tx.Steps {
		for e := range s.EachElement() {
			if s.Op == DeleteElements && e.Key == AddrData(numberedAddr(200, 1)) {
				return
			}
		}
	}
	t.Errorf("Compare does not delete the foreign element:\n%.200s", tx)
}

func testCompareByKeyBoundsStaleKeys(t *testing.T) {
	needCounts(t)
	const n = 5000
	table := manyAddresses(n)
	_, another := dialOver(t, table)
	another.askFrom = n / 2
	for name, key := range map[string]Data{"of another length": "*", "wanted": AddrData(numberedAddr(0, 1))} {
		keys := 0
		tx, err := another.Compare(t.Context(), table, Comparison{StaleKeys: func(*Set, iter.Seq2[*Set, Element]) iter.Seq[Data] {
			return func(yield func(Data) bool) {
				for yield(key) && keys < 100*n {
					keys++
				}
			}
		}})
		if err != nil || !tx.Empty() || keys > 2*n {
			t.Errorf("%s: Compare = %.200s, %v after %d keys", name, tx, err, keys)
		}
	}
}

func testCompareByKeyRefusesKeys(t *testing.T) {
	const n = 500
	table := manyAddresses(n)
	_, another := dialOver(t, table)
	table.Sets[0].Put(Element{Key: "a"})
	for _, another.askFrom = range []int{0, math.MaxInt32} {
		if tx, err := another.Compare(t.Context(), table, Comparison{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("Compare = %.200s, %v, want ErrInvalid", tx, err)
		}
	}
}

func testFasterByKey(t *testing.T) {
	c := comparison{reader: reader{conn: &Conn{askFrom: askFrom}}}
	for _, tc := range []struct {
		count, keys int
		want        bool
	}{{255, 1, false}, {256, 1, true}, {65_535, 65_536, false}, {65_536, 65_536, true}, {250_000, 250_000, true}, {250_000, 1_000_000, false}, {-1, 1, false}} {
		if got := c.fasterByKey(&Set{kernelCount: tc.count}, tc.keys); got != tc.want {
			t.Errorf("asking for %d keys of %d: %v, want %v", tc.keys, tc.count, got, tc.want)
		}
	}
}

// ways are the ways in which Compare can find the same differences, on connections of their own: whatever the length
// of a set, by listing it; by key; by key, when the caller knows all keys; and as before Linux 6.15.
func ways(have *Table) map[string]func(*Conn) Comparison {
	var keys []Data
	if have != nil {
		for _, s := range have.Sets {
			for e := range s.each() {
				keys = append(keys, e.Key)
			}
		}
	}
	return map[string]func(*Conn) Comparison{
		"listed":           func(c *Conn) Comparison { c.askFrom = math.MaxInt32; return Comparison{} },
		"by key":           func(c *Conn) Comparison { c.askFrom = 0; return Comparison{} },
		"by all keys":      func(c *Conn) Comparison { c.askFrom = 0; return Comparison{StaleKeys: staleKeys(keys...)} },
		"by uncounted key": func(c *Conn) Comparison { c.askFrom, c.uncounted = 0, true; return Comparison{} },
	}
}

// checkComparisons compares the kernel's table, which was read as have, with want in each way.
func checkComparisons(t fataler, c *Conn, have, want *Table) {
	t.Helper()
	for name, way := range ways(have) {
		another, err := c.Another()
		if err != nil {
			t.Fatal(err)
		}
		got, err := another.Compare(context.Background(), want, way(another))
		another.Close()
		if diff := cmp.Diff(sortedText(Diff(have, want)), sortedText(got)); diff != "" || err != nil {
			t.Fatal(fmt.Sprintf("%s: transaction (-Diff +Compare), %v:\n%s", name, err, diff))
		}
	}
}
