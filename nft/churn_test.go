package nft

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// exchange replaces elements of a set by others, in the kernel and in the table.
func exchange(t *testing.T, c *Conn, table *Table, gone, added []Element) {
	t.Helper()
	set := table.Sets[0]
	commitAll(t, c, Transaction{Steps: []Step{
		{Op: DeleteElements, Table: table, Set: set, Elements: gone},
		{Op: AddElements, Table: table, Set: set, Elements: added},
	}})
	for _, e := range gone {
		set.Remove(e.Key)
	}
	for _, e := range added {
		set.Put(e)
	}
}

// listed returns the first n elements in the order in which the kernel lists them.
func listed(t *testing.T, c *Conn, table *Table, n int) (elements []Element) {
	t.Helper()
	for e, err := range c.Elements(t.Context(), table.Family, table.Name, table.Sets[0]) {
		if err != nil {
			t.Fatal(err)
		}
		if elements = append(elements, e); len(elements) == n {
			break
		}
	}
	return elements
}

// freshAddress returns an element that manyAddresses does not have.
func freshAddress(i int) Element { return Element{Key: AddrData(numberedAddr(200, i))} }

// The kernel lists a set in pieces, and begins each where it thinks that it left off: after as many elements of its
// hash as it has listed. When one of those goes meanwhile, the next piece begins one too late.
func testCompareBesideElementsThatGo(t *testing.T) {
	for _, tc := range []struct {
		name    string
		disturb func(t *testing.T, c *Conn, table *Table, first []Element)
		want    string
	}{
		{"finds nothing missing when an element that was listed is exchanged", func(t *testing.T, c *Conn, table *Table, first []Element) {
			exchange(t, c, table, first[:1], []Element{freshAddress(0)})
		}, ""},
		{"finds nothing missing when many elements are exchanged", func(t *testing.T, c *Conn, table *Table, first []Element) {
			var added []Element
			for i := range first {
				added = append(added, freshAddress(i))
			}
			exchange(t, c, table, first, added)
		}, ""},
		{"finds what is missing all the same", func(t *testing.T, c *Conn, table *Table, first []Element) {
			exchange(t, c, table, first[:1], []Element{freshAddress(0)})
			table.Sets[0].Put(freshAddress(1))
		}, "add element ip kube-proxy cluster-ips {\n\t10.200.0.1,\n}\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table := manyAddresses(20_000)
			c, another := dialOver(t, table)
			first := listed(t, c, table, 100)
			calls := 0
			tx, err := another.Compare(t.Context(), table, CompareOptions{ThroughCommits: true, Guard: func(work func()) error {
				work()
				if calls++; calls == 5 { // one has looked at sets and chains
					tc.disturb(t, c, table, first)
				}
				return nil
			}})
			if got := tx.String(); got != tc.want || (err != nil) != (tc.want != "") || err != nil && !errors.Is(err, ErrGenerationMoved) {
				t.Errorf("Compare = %.300s, %v; want %s", got, err, tc.want)
			}
			if calls < 10 {
				t.Errorf("the comparison took %d pieces only", calls)
			}
		})
	}
}

func testCompareWithASetThatSomebodyEmptied(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	const n = 3 * maxAsked
	table := manyAddresses(n)
	commitAll(t, c, Diff(nil, table))
	runNft(t, "", "flush", "set", "ip", "kube-proxy", "cluster-ips")
	tx := compare(t, c, table, CompareOptions{})
	if len(tx.Steps) != 1 || tx.Steps[0].Op != AddElements || tx.Steps[0].Len() != n {
		t.Errorf("Compare = %.300s, want %d elements to add", tx, n)
	}
}

// Other commits all the time change which elements the set has, and how many.
func testCompareUnderConstantChurn(t *testing.T) {
	table := manyAddresses(20_000)
	c, another := dialOver(t, table)
	var lock sync.Mutex
	ctx, cancel := context.WithCancel(t.Context())
	changes := 0
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel()
	busy.Go(func() {
		var last []Element
		for n := 0; ctx.Err() == nil; n++ {
			next := make([]Element, 1+n%20)
			for i := range next {
				next[i] = freshAddress(n%2000*20 + i)
			}
			lock.Lock()
			exchange(t, c, table, last, next)
			lock.Unlock()
			last = next
			changes++
			time.Sleep(time.Millisecond)
		}
	})
	const comparisons = 10
	succeeded := 0
	for range comparisons {
		tx, err := another.Compare(t.Context(), table, CompareOptions{ThroughCommits: true, Guard: func(work func()) error {
			lock.Lock()
			defer lock.Unlock()
			work()
			return nil
		}})
		if err == nil || errors.Is(err, ErrGenerationMoved) && !tx.Empty() {
			succeeded++
		} else {
			t.Log(err)
		}
		for _, s := range tx.Steps {
			for e := range s.EachElement() {
				if AddrData(numberedAddr(200, 0))[:2] != e.Key[:2] {
					t.Errorf("the comparison finds %s, which nobody has touched", s.Set.FormatElement(e))
				}
			}
		}
	}
	cancel()
	busy.Wait()
	t.Logf("%d changes", changes)
	if succeeded < comparisons-1 {
		t.Errorf("%d of %d comparisons came to an end", succeeded, comparisons)
	}
}
