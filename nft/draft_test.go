package nft

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"pgregory.net/rapid"
)

// Few names for random tables, so that they often meet: six regular chains, of which
// each may only lead to those after it (chains in a loop are refused), and three base chains.
const regularChains = 6

func regular(i int) string { return fmt.Sprintf("chain-%d", i) }

var baseChains = []Chain{
	{Name: "nat-prerouting", Type: TypeNAT, Hook: HookPrerouting, Priority: PriorityDstNAT},
	{Name: "filter-forward", Type: TypeFilter, Hook: HookForward, Priority: PriorityFilter},
	{Name: "nat-postrouting", Type: TypeNAT, Hook: HookPostrouting, Priority: PrioritySrcNAT},
}

// generator draws tables of one family.
type generator struct {
	*rapid.T
	family Family
}

func (g generator) one(of int, what string) bool { return rapid.IntRange(0, of-1).Draw(g.T, what) == 0 }

func (g generator) sets() []*Set {
	f := g.family
	return []*Set{
		{Name: "service-ips", Key: frontendKey(f), Verdicts: true},
		{Name: "endpoints", Key: append(frontendKey(f), Numgen{Mod: 2}), Data: Concat{f.Daddr(), ThDport}},
		{Name: "cluster-ips", Key: Concat{f.Daddr()}},
		{Name: "ports", Key: Concat{ThDport}, Data: Concat{ThDport}},
		{Name: "sources", Key: append(frontendKey(f), f.Saddr()), Interval: true},
	}
}

func (g generator) addr() netip.Addr {
	n := byte(rapid.IntRange(1, 4).Draw(g.T, "addr"))
	if g.family == FamilyIP6 {
		return netip.AddrFrom16([16]byte{0xfd, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, n})
}

// block draws the first address of one of a few blocks of 256.
func (g generator) block() netip.Addr {
	b := g.addr().AsSlice()
	b[len(b)-2], b[len(b)-1] = b[len(b)-1], 0
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

func (g generator) port() uint16 { return uint16(rapid.IntRange(80, 82).Draw(g.T, "port")) }

// key draws a key of the set out of few.
func (g generator) key(s *Set) Data {
	front := func() Data { return AddrData(g.addr()) + ProtoData(6) + PortData(g.port()) }
	switch s.Name {
	case "service-ips":
		return front()
	case "endpoints":
		return front() + IntegerData(rapid.Uint32Range(0, 1).Draw(g.T, "slot"))
	case "cluster-ips":
		return AddrData(g.addr())
	case "sources":
		return front() + AddrData(g.block())
	}
	return PortData(g.port())
}

// element draws an element that leads to one of the chains at most.
func (g generator) element(s *Set, chains []string) Element {
	e := Element{Key: g.key(s), Comment: rapid.SampledFrom([]string{"", "default/web", `a "quote"`}).Draw(g.T, "comment")}
	switch {
	case s.Interval:
		// Ranges must not overlap, so each ends in the block that it starts in.
		last := len(e.Key) - 1
		e.KeyEnd = e.Key[:last] + Data([]byte{byte(rapid.IntRange(0, 255).Draw(g.T, "end"))})
	case s.Verdicts && len(chains) > 0 && !g.one(4, "drop"):
		e.Verdict = Goto(rapid.SampledFrom(chains).Draw(g.T, "to"))
	case s.Verdicts:
		e.Verdict = Drop
	case s.Name == "endpoints":
		e.Value = AddrData(g.addr()) + PortData(g.port())
	case s.Name == "ports":
		e.Value = PortData(g.port())
	}
	return e
}

// chain draws a chain whose rules refer to the sets and regular chains given only.
func (g generator) chain(c Chain, sets []*Set, chains []string) *Chain {
	c.Comment = rapid.SampledFrom([]string{"", "", "", "what it does"}).Draw(g.T, "comment")
	if c.Hook != "" && g.one(3, "another priority") {
		c.Priority += 5
	}
	for range rapid.IntRange(0, 3).Draw(g.T, "rules") {
		c.Rules = append(c.Rules, Rule{
			Statements: append([]Statement{Match{Field: g.family.Saddr(), Op: NotEqual, Value: netip.PrefixFrom(g.addr(), 24)}}, g.action(&c, sets, chains)),
			Comment:    rapid.SampledFrom([]string{"", "why"}).Draw(g.T, "comment"),
		})
	}
	return &c
}

func (g generator) action(c *Chain, sets []*Set, chains []string) Statement {
	actions := []Statement{Counter{}, SetMark(0x4000), Drop, Return}
	for _, to := range chains {
		if c.Hook != "" || to > c.Name {
			actions = append(actions, Jump(to))
		}
	}
	for _, s := range sets {
		switch {
		case s.Name == "cluster-ips":
			actions = append(actions, InSet{s.Key, NotEqual, s.Name})
		case s.Interval:
			actions = append(actions, InSet{s.Key, Equal, s.Name})
		case s.Verdicts && c.Hook != "":
			actions = append(actions, Vmap{s.Key, s.Name})
		case s.Name == "endpoints" && c.Hook == HookPrerouting:
			actions = append(actions, DNAT(g.family, append(frontendKey(g.family), Numgen{Mod: 2}), s.Name))
		}
	}
	return actions[rapid.IntRange(0, len(actions)-1).Draw(g.T, "action")]
}

// table draws a whole table that the kernel would take; sometimes none.
func (g generator) table() *Table {
	if g.one(12, "none") {
		return nil
	}
	t := &Table{Family: g.family, Name: "random", Comment: rapid.SampledFrom([]string{"one", "one", "one", "another"}).Draw(g.T, "comment")}
	var chains []string
	for i := range regularChains {
		if g.one(2, "chain") {
			chains = append(chains, regular(i))
		}
	}
	for _, s := range g.sets() {
		if g.one(4, "no set") {
			continue
		}
		if s.Name == "ports" && g.one(3, "another type") {
			s.Data = Concat{MetaMark}
		} else {
			for range rapid.IntRange(0, 6).Draw(g.T, "elements") {
				s.Put(g.element(s, chains))
			}
		}
		t.Sets = append(t.Sets, s)
	}
	for _, name := range chains {
		t.Chains = append(t.Chains, g.chain(Chain{Name: name}, t.Sets, chains))
	}
	for _, base := range baseChains {
		if g.one(2, "base chain") {
			t.Chains = append(t.Chains, g.chain(base, t.Sets, chains))
		}
	}
	return t
}

func testTheDiffOfATableWithItselfIsEmpty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table := generator{rt, drawFamily(rt)}.table()
		if tx := Diff(table, table); !tx.Empty() {
			rt.Fatalf("diff:\n%s", tx)
		}
		if table == nil {
			return
		}
		if tx := Diff(clone(table), table); !tx.Empty() {
			rt.Fatalf("diff with a copy:\n%s", tx)
		}
	})
}

func testTheDiffOfTwoTablesTurnsOneIntoTheOther(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := generator{rt, drawFamily(rt)}
		have, want := g.table(), g.table()
		kernel := strictKernel{tables: map[string]*Table{}}
		for _, step := range []struct{ from, to *Table }{{nil, have}, {have, want}} {
			tx := Diff(step.from, step.to)
			if err := kernel.commit(tx); err != nil {
				rt.Fatalf("refused: %v\nof\n%s", err, tx)
			}
			if diff := cmp.Diff(inOrder(step.to), inOrder(kernel.tables[g.family.String()+" random"])); diff != "" {
				rt.Fatalf("the kernel holds (-wanted +held):\n%s\nafter\n%s", diff, tx)
			}
		}
	})
}

// kernelOf is the kernel to which a random walk commits: the strict one in memory or the real one.
type kernelOf interface {
	commit(Transaction) error
	read(Family, string) (*Table, error)
}

func (k *strictKernel) read(f Family, name string) (*Table, error) {
	return k.tables[f.String()+" "+name], nil
}

// walk takes a draft through random changes, with commits in between, of which some fail,
// and compares what the kernel holds after each that succeeds.
func walk(rt *rapid.T, kernel kernelOf) {
	g := generator{rt, drawFamily(rt)}
	d := NewDraft(g.family, "random", "a draft")
	for _, s := range g.sets() {
		d.AddSet(s)
	}
	if g.one(2, "a table is there before") {
		if err := kernel.commit(Diff(nil, &Table{Family: g.family, Name: "random", Sets: g.sets()[:1]})); err != nil {
			rt.Fatal(err)
		}
	}
	for range rapid.IntRange(1, 12).Draw(rt, "rounds") {
		for range rapid.IntRange(0, 6).Draw(rt, "changes") {
			g.change(d)
		}
		g.dropDangling(d)
		tx := d.Transaction()
		switch rapid.SampledFrom([]string{"commit", "commit", "commit", "fail", "invalidate"}).Draw(rt, "then") {
		case "fail":
			continue
		case "invalidate":
			d.Invalidate()
			tx = d.Transaction()
			if tx.Empty() || tx.Steps[0].Op != DestroyTable {
				rt.Fatalf("after Invalidate the transaction does not replace the table:\n%s", tx)
			}
		}
		if err := kernel.commit(tx); err != nil {
			rt.Fatalf("refused: %v\nof\n%s", err, tx)
		}
		d.Committed()
		got, err := kernel.read(g.family, "random")
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(inOrder(d.Table()), inOrder(got)); diff != "" {
			rt.Fatalf("the kernel holds (-wanted +held):\n%s\nafter\n%s", diff, tx)
		}
		if tx := d.Transaction(); !tx.Empty() {
			rt.Fatalf("after a commit there still is:\n%s", tx)
		}
		if tx := Diff(got, d.Table()); !tx.Empty() {
			rt.Fatalf("the diff with what the kernel holds:\n%s", tx)
		}
	}
}

func (d *Draft) hasChain(name string) bool { return d.chains.now[name] != nil }

func (d *Draft) regularChains() []string {
	var names []string
	for i := range regularChains {
		if d.hasChain(regular(i)) {
			names = append(names, regular(i))
		}
	}
	return names
}

func (g generator) change(d *Draft) {
	s := rapid.SampledFrom(d.sets).Draw(g.T, "set")
	switch rapid.SampledFrom([]string{"put", "put", "put", "remove", "put chain", "put chain", "put base chain", "remove chain", "remove base chain"}).Draw(g.T, "change") {
	case "put":
		d.Put(s, g.element(s, d.regularChains()))
	case "remove":
		d.Remove(s, g.key(s))
	case "put chain":
		d.PutChain(g.chain(Chain{Name: regular(rapid.IntRange(0, regularChains-1).Draw(g.T, "chain"))}, d.sets, d.regularChains()))
	case "put base chain":
		d.PutChain(g.chain(rapid.SampledFrom(baseChains).Draw(g.T, "base"), d.sets, d.regularChains()))
	case "remove chain":
		d.RemoveChain(regular(rapid.IntRange(0, regularChains-1).Draw(g.T, "chain")))
	case "remove base chain":
		d.RemoveChain(rapid.SampledFrom(baseChains).Draw(g.T, "base").Name)
	}
}

// dropDangling takes out what leads to chains that are gone: a draft must be valid when it is committed.
func (g generator) dropDangling(d *Draft) {
	gone := func(r Rule) bool {
		return slices.ContainsFunc(references(r), func(ref reference) bool { return ref.chain != "" && !d.hasChain(ref.chain) })
	}
	for _, c := range d.Table().Chains {
		if slices.ContainsFunc(c.Rules, gone) {
			kept := *c
			kept.Rules = slices.DeleteFunc(slices.Clone(c.Rules), gone)
			d.PutChain(&kept)
		}
	}
	for _, s := range d.sets {
		for _, e := range s.Elements() {
			if e.Verdict.Chain == "" || d.hasChain(e.Verdict.Chain) {
				continue
			}
			if e.Verdict = Drop; len(e.Comment)%2 == 0 {
				d.Put(s, e)
			} else {
				d.Remove(s, e.Key)
			}
		}
	}
}

func TestDraft(t *testing.T) {
	t.Run("has transactions that end in its table", testADraftsTransactionsEndInItsTable)
	t.Run("has transactions that the kernel takes", testTheRealKernelTakesADraftsTransactionsAndHoldsItsTable)
	t.Run("replaces the table once when it is invalidated", testAnInvalidatedDraftReplacesTheTableOnce)
	t.Run("sends nothing for a change taken back", testAChangeTakenBackCostsNothing)
}

func testADraftsTransactionsEndInItsTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { walk(rt, &strictKernel{tables: map[string]*Table{}}) })
}

// realKernel checks invariant 4 on the way: an empty transaction leaves the generation alone.
type realKernel struct {
	conn *Conn
}

func (k realKernel) commit(tx Transaction) error {
	before, err := k.conn.Generation(context.Background())
	if err != nil {
		return err
	}
	if _, err := k.conn.Commit(context.Background(), tx); err != nil {
		return err
	}
	after, err := k.conn.Generation(context.Background())
	if err != nil {
		return err
	}
	want := before + 1
	if tx.Empty() {
		want = before
	}
	if after != want {
		return fmt.Errorf("the generation went from %d to %d, want %d", before, after, want)
	}
	return nil
}

func (k realKernel) read(f Family, name string) (*Table, error) {
	return k.conn.ReadTable(context.Background(), f, name)
}

func testTheRealKernelTakesADraftsTransactionsAndHoldsItsTable(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	limitChecks(t, 30)
	rapid.Check(t, func(rt *rapid.T) {
		for _, f := range Families {
			if _, err := c.Commit(t.Context(), Remove(f, "random")); err != nil {
				rt.Fatal(err)
			}
		}
		walk(rt, realKernel{c})
	})
}

func testTheRealKernelTakesTheDiffOfTwoTables(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	limitChecks(t, 30)
	rapid.Check(t, func(rt *rapid.T) {
		g := generator{rt, drawFamily(rt)}
		if _, err := c.Commit(t.Context(), Remove(g.family, "random")); err != nil {
			rt.Fatal(err)
		}
		have, want := g.table(), g.table()
		for _, step := range []struct{ from, to *Table }{{nil, have}, {have, want}} {
			tx := Diff(step.from, step.to)
			if err := (realKernel{c}).commit(tx); err != nil {
				rt.Fatalf("refused: %v\nof\n%s", err, tx)
			}
			got, err := c.ReadTable(t.Context(), g.family, "random")
			if err != nil {
				rt.Fatal(err)
			}
			if diff := cmp.Diff(inOrder(step.to), inOrder(got)); diff != "" {
				rt.Fatalf("the kernel holds (-wanted +held):\n%s\nafter\n%s", diff, tx)
			}
		}
	})
}

func testAnInvalidatedDraftReplacesTheTableOnce(t *testing.T) {
	d := NewDraft(FamilyIP, "t", "")
	ips := d.AddSet(&Set{Name: "ips", Key: Concat{IPDaddr}})
	addr := AddrData(netip.MustParseAddr("10.0.0.1"))
	d.Put(ips, Element{Key: addr})
	d.Committed()
	d.Remove(ips, addr)
	d.Invalidate()
	if got, want := d.Transaction().String(), Replace(d.Table()).String(); got != want {
		t.Errorf("transaction (-replacement +got):\n%s", cmp.Diff(want, got))
	}
	d.Committed()
	d.Put(ips, Element{Key: addr})
	if diff := cmp.Diff("add element ip t ips {\n\t10.0.0.1,\n}\n", d.Transaction().String()); diff != "" {
		t.Errorf("the next change (-want +got):\n%s", diff)
	}
}

func testAChangeTakenBackCostsNothing(t *testing.T) {
	d := NewDraft(FamilyIP, "t", "")
	ips := d.AddSet(&Set{Name: "ips", Key: Concat{IPDaddr}})
	addr := AddrData(netip.MustParseAddr("10.0.0.1"))
	d.Put(ips, Element{Key: addr})
	d.PutChain(&Chain{Name: "c", Rules: []Rule{NewRule(Drop)}})
	d.Committed()
	d.Put(ips, Element{Key: addr, Comment: "other"})
	d.Remove(ips, addr)
	d.Put(ips, Element{Key: addr})
	d.RemoveChain("c")
	d.PutChain(&Chain{Name: "c", Rules: []Rule{NewRule(Drop)}})
	if tx := d.Transaction(); !tx.Empty() {
		t.Errorf("transaction:\n%s", tx)
	}
}

func testARegularChainThatIsInUseCanGetAnotherComment(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	table := func(comment string) *Table {
		return &Table{Family: FamilyIP, Name: "t", Chains: []*Chain{
			{Name: "caller", Rules: []Rule{NewRule(Jump("called"))}}, {Name: "called", Comment: comment},
		}}
	}
	for _, tx := range []Transaction{Diff(nil, table("one")), Diff(table("one"), table("two"))} {
		if _, err := c.Commit(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.ReadTable(t.Context(), FamilyIP, "t")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(inOrder(got), `comment "two"`) {
		t.Errorf("the kernel holds:\n%s", inOrder(got))
	}
}
