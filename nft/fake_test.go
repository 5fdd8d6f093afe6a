package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// NewFake returns the configuration of a connection to a new nfttest.Kernel. The external test
// package sets it: this one cannot import nfttest.
var NewFake func() Config

// dialFake returns a connection to a fake of its own.
func dialFake(t testing.TB) *Conn {
	t.Helper()
	c, err := Dial(NewFake())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestFake(t *testing.T) {
	t.Run("answers as the kernel does", testFakeAnswersAsTheKernelDoes)
	t.Run("lists a set that others empty meanwhile", testReadElementsOfASetThatIsEmptied)
	t.Run("lists chains wrongly", testChainsAreListedWrongly)
	t.Run("takes drafts through random changes", testFakeTakesWhatTheKernelTakes)
	t.Run("lets elements expire", testFakeLetsElementsExpire)
	t.Run("knows the owner of a table, as the kernel does", testFakeOwner)
}

// outcome prints a connection's result of a transaction, and the tables and events after it.
func outcome(t testing.TB, c *Conn, m *Monitor, tx Transaction) string {
	t.Helper()
	var b strings.Builder
	before := generation(t, c)
	stats, err := c.Commit(t.Context(), tx)
	last := generation(t, c)
	fmt.Fprintf(&b, "unchanged %v, error %v, raised %d\n", stats.Unchanged, err, last-before)
	for _, family := range Families {
		table, err := c.ReadTable(t.Context(), family, "t")
		fmt.Fprintf(&b, "%v %v\n", table, err)
		err = c.EachChain(t.Context(), family, func(table string, c *Chain) { fmt.Fprintln(&b, table, c.Name, c.Hook) })
		base, failure := c.ReadChain(t.Context(), family, "t", "base")
		fmt.Fprintln(&b, err, base, failure)
		if table == nil {
			continue
		}
		for _, s := range table.Sets {
			fmt.Fprintln(&b, s.Name, s.kernel.count, s.Size)
		}
		repair, err := c.Compare(t.Context(), table, CompareOptions{})
		fmt.Fprintln(&b, repair, err)
	}
	var events []string
	for heard := before; ; {
		wait := 20 * time.Millisecond
		if heard != last {
			wait = await.Patience // a busy machine takes its time
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		e, err := m.Next(ctx)
		cancel()
		if err != nil {
			break
		}
		if e.Kind == EventGeneration {
			heard = e.Generation
		}
		if e.Kind == EventGeneration {
			e.Generation = 0 // a namespace may begin with another one
		}
		events = append(events, e.String())
	}
	for i, e := range events {
		events[i], _, _ = strings.Cut(e, " expires ")
	}
	slices.Sort(events) // the kernel goes through what a table held in an order of its own
	return b.String() + strings.Join(events, "\n")
}

func monitor(t testing.TB, c *Conn, table string) *Monitor {
	t.Helper()
	m, err := c.Monitor(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func testFakeAnswersAsTheKernelDoes(t *testing.T) {
	netns.NeedLinux(t, 6, 15) // older kernels do not count elements, and have another error for some steps
	ip := func(n byte) Data { return AddrData(netip.AddrFrom4([4]byte{10, 0, 0, n})) }
	ips := &Set{Name: "ips", Key: Concat{IPDaddr}}
	few := &Set{Name: "few", Key: Concat{IPDaddr}, Size: 2}
	verdicts := &Set{Name: "verdicts", Key: Concat{IPDaddr}, Verdicts: true, Counter: true, Comment: "a map"}
	values := &Set{Name: "values", Key: Concat{IPDaddr, ThDport}, Data: Concat{IPDaddr, ThDport}}
	ranges := &Set{Name: "ranges", Key: Concat{ThDport, IPSaddr}, Interval: true}
	clients := &Set{Name: "clients", Key: Concat{IPSaddr}, Data: Concat{IPDaddr}, Dynamic: true}
	base := &Chain{Name: "base", Type: TypeFilter, Hook: HookForward, Comment: "a chain", Rules: []Rule{NewRule(Jump("regular")), {Statements: []Statement{Vmap{verdicts.Key, "verdicts"}}, Comment: "a rule"}}}
	regular := &Chain{Name: "regular", Rules: []Rule{NewRule(InSet{ips.Key, Equal, "ips"}, Counter{}, Drop)}}
	table := &Table{Family: FamilyIP, Name: "t", Comment: "a table", Sets: []*Set{ips, few, verdicts, values, ranges, clients}, Chains: []*Chain{base, regular}}
	port := func(from, to byte) Element {
		return Element{Key: PortData(80) + ip(from), KeyEnd: PortData(80) + ip(to)}
	}
	add := func(s *Set, elements ...Element) Step {
		return Step{Op: AddElements, Table: table, Set: s, Elements: elements}
	}
	remove := func(s *Set, elements ...Element) Step {
		return Step{Op: DeleteElements, Table: table, Set: s, Elements: elements}
	}
	chain := func(op StepOp, c *Chain) Step { return Step{Op: op, Table: table, Chain: c} }
	set := func(op StepOp, s *Set) Step { return Step{Op: op, Table: table, Set: s} }
	other := &Table{Family: FamilyIP6, Name: "t"}
	c1, c2 := &Chain{Name: "c1"}, &Chain{Name: "c2"}
	loop := func(c *Chain, to string) *Chain { return &Chain{Name: c.Name, Rules: []Rule{NewRule(Jump(to))}} }
	netns.EnterForTest(t)
	kernel, fake := dial(t), dialFake(t)
	kernelMonitor, fakeMonitor := monitor(t, kernel, "t"), monitor(t, fake, "t")
	for _, tc := range []struct {
		name  string
		steps []Step
	}{
		{"nothing to delete", []Step{{Op: DeleteTable, Table: table}}},
		{"nothing to destroy", []Step{{Op: DestroyTable, Table: table}}},
		{"a table", Diff(nil, table).Steps},
		{"the table again", []Step{{Op: AddTable, Table: table}}},
		{"a set again", []Step{set(AddSet, ips)}},
		{"a set of another type", []Step{set(AddSet, &Set{Name: "ips", Key: Concat{ThDport}})}},
		{"a chain again", []Step{chain(AddChain, regular)}},
		{"a base chain at another hook", []Step{chain(AddChain, &Chain{Name: "base", Type: TypeFilter, Hook: HookInput})}},
		{"a base chain with another policy", []Step{chain(AddChain, &Chain{Name: "base", Type: TypeFilter, Hook: HookForward, DropPolicy: true})}},
		{"a regular chain that gets a hook", []Step{chain(AddChain, &Chain{Name: "regular", Type: TypeFilter, Hook: HookForward})}},
		{"elements", []Step{
			add(ips, Element{Key: ip(1)}, Element{Key: ip(2), Comment: "two"}, Element{Key: CatchAll}),
			add(verdicts, Element{Key: ip(1), Verdict: Goto("regular"), Comment: "one"}, Element{Key: ip(2), Verdict: Drop}),
			add(values, Element{Key: ip(1) + PortData(80), Value: ip(7) + PortData(8080)}),
			add(ranges, port(1, 9), port(20, 29)),
			add(clients, Element{Key: ip(1), Value: ip(2), Timeout: time.Hour, Expires: 30 * time.Minute}),
		}},
		{"the same elements", []Step{add(ips, Element{Key: ip(1)}, Element{Key: ip(2), Comment: "other"}, Element{Key: CatchAll}), add(verdicts, Element{Key: ip(2), Verdict: Drop})}},
		{"an element with another verdict", []Step{add(verdicts, Element{Key: ip(3), Verdict: Drop}, Element{Key: ip(1), Verdict: Drop})}},
		{"an element with another value", []Step{add(values, Element{Key: ip(1) + PortData(80), Value: ip(8) + PortData(8080)})}},
		{"another verdict for an element that goes", []Step{remove(verdicts, Element{Key: ip(1)}), add(verdicts, Element{Key: ip(1), Verdict: Accept})}},
		{"an element that leads nowhere", []Step{add(verdicts, Element{Key: ip(4), Verdict: Goto("nowhere")})}},
		{"an element that leads to a new chain", []Step{chain(AddChain, c1), add(verdicts, Element{Key: ip(4), Verdict: Goto("c1")})}},
		{"deleting the chain that an element leads to", []Step{chain(DeleteChain, c1)}},
		{"deleting both", []Step{remove(verdicts, Element{Key: ip(4)}), chain(DeleteChain, c1)}},
		{"an element that is not there", []Step{remove(ips, Element{Key: ip(1)}, Element{Key: ip(9)})}},
		{"a catch-all that goes", []Step{remove(ips, Element{Key: CatchAll})}},
		{"ranges that overlap", []Step{add(ranges, port(5, 25))}},
		{"a range again", []Step{add(ranges, port(1, 9))}},
		{"a full set", []Step{add(few, Element{Key: ip(1)}, Element{Key: ip(2)}, Element{Key: ip(3)})}},
		{"a set that is made full", []Step{add(few, Element{Key: ip(1)}, Element{Key: ip(2)})}},
		{"room in the full set", []Step{remove(few, Element{Key: ip(1)}), add(few, Element{Key: ip(3)})}},
		{"a set that is emptied", []Step{set(FlushSet, few)}},
		{"an emptied set that is refilled", []Step{set(FlushSet, values), add(values, Element{Key: ip(1) + PortData(80), Value: ip(9) + PortData(8080)})}},
		{"a set to empty that is not there", []Step{set(FlushSet, &Set{Name: "gone", Key: Concat{IPDaddr}})}},
		{"a set that is not there", []Step{add(&Set{Name: "gone", Key: Concat{IPDaddr}}, Element{Key: ip(1)})}},
		{"a rule that leads nowhere", []Step{chain(AddRules, &Chain{Name: "base", Rules: []Rule{NewRule(Drop), NewRule(Jump("nowhere"))}})}},
		{"a rule of a set that is not there", []Step{chain(AddRules, &Chain{Name: "base", Rules: []Rule{NewRule(InSet{ips.Key, Equal, "gone"})}})}},
		{"a rule of a chain that is not there", []Step{chain(AddRules, &Chain{Name: "gone", Rules: []Rule{NewRule(Drop)}})}},
		{"a chain in use", []Step{chain(DeleteChain, regular)}},
		{"a chain that is not there", []Step{chain(DeleteChain, c1)}},
		{"a set in use", []Step{set(DeleteSet, ips)}},
		{"a set that is not there", []Step{set(DeleteSet, &Set{Name: "gone", Key: Concat{IPDaddr}})}},
		{"a loop", []Step{chain(AddChain, c1), chain(AddChain, c2), chain(AddRules, loop(c1, "c2")), chain(AddRules, loop(c2, "c1")), chain(AddRules, loop(base, "c1"))}},
		{"a rule whose handle is not there", []Step{{Op: DeleteRule, Table: table, Chain: base, Handle: 1 << 40}}},
		{"rules that go", []Step{chain(FlushChain, base)}},
		{"a chain with rules that goes", []Step{chain(DeleteChain, regular)}},
		{"a set with elements that goes", []Step{set(DeleteSet, verdicts)}},
		{"an object that is not there", []Step{{Op: DeleteObject, Table: table, Object: Object{Kind: "counter", Name: "gone", number: 1}}}},
		{"a table of the other family", []Step{{Op: AddTable, Table: other}}},
		{"a dormant table", []Step{{Op: AddTable, Table: &Table{Family: FamilyIP6, Name: "t", Dormant: true}}}},
		{"two refusals", []Step{chain(DeleteChain, c1), chain(DeleteChain, c2)}},
		{"tables that go", []Step{{Op: DeleteTable, Table: table}, {Op: DestroyTable, Table: other}}},
	} {
		want, got := outcome(t, kernel, kernelMonitor, Transaction{Steps: tc.steps}), outcome(t, fake, fakeMonitor, Transaction{Steps: tc.steps})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-kernel +fake):\n%s", tc.name, diff)
		}
	}
}

// TestDraft takes the same walk over the kernel.
func testFakeTakesWhatTheKernelTakes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { walk(rt, realKernel{dialFake(t)}) })
}

func testFakeLetsElementsExpire(t *testing.T) {
	c := dialFake(t)
	clients := &Set{Name: "clients", Key: Concat{IPSaddr}, Data: Concat{IPDaddr}, Dynamic: true}
	clients.Put(Element{Key: "\x0a\x00\x00\x01", Value: "\x0a\x00\x00\x02", Timeout: time.Hour, Expires: time.Minute})
	clients.Put(Element{Key: "\x0a\x00\x00\x02", Value: "\x0a\x00\x00\x02", Timeout: time.Hour, Expires: 20 * time.Millisecond})
	commitAll(t, c, Diff(nil, &Table{Family: FamilyIP, Name: "t", Sets: []*Set{clients}}))
	time.Sleep(25 * time.Millisecond)
	got, err := c.ReadElements(t.Context(), FamilyIP, "t", clients)
	if err != nil || len(got) != 1 || got[0].Timeout != time.Hour || got[0].Expires > time.Minute {
		t.Errorf("elements are %v, %v", got, err)
	}
}

func testFakeOwner(t *testing.T) {
	netns.NeedLinux(t, 6, 9) // the flag persist
	netns.EnterForTest(t)
	for name, dial := range map[string]func(testing.TB) *Conn{"the kernel": dial, "the fake": dialFake} {
		owner := dial(t)
		other, err := owner.Another()
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		owned := &Table{Family: FamilyIP, Name: "t", Owner: true, Persist: true}
		commitAll(t, owner, Diff(nil, owned))
		if _, err := other.Commit(t.Context(), Diff(owned, nil)); !errors.Is(err, ErrTableOwned) {
			t.Errorf("%s: Commit of another = %v", name, err)
		}
		if h := header(t, owner, owned); !owns(owner, h) || owns(other, h) {
			t.Errorf("%s: the owner is %d", name, h.Kernel.OwnerPort)
		}
		if err := owner.Close(); err != nil {
			t.Fatal(err)
		}
		orphan := header(t, other, owned)
		if orphan.Owner || !orphan.Persist || orphan.Kernel.OwnerPort != 0 {
			t.Errorf("%s: what the owner left has %q", name, orphan.flagsText())
		}
		commitAll(t, other, Diff(orphan, owned))
		if h := header(t, other, owned); !owns(other, h) {
			t.Errorf("%s: adopted, it has %q", name, h.flagsText())
		}
	}
}

// misled is a socket over which the third chain of the first listing of chains comes in another way.
type misled struct {
	Socket
	listed int
	alter  func(buffer []byte, n int) int
}

func (m *misled) Receive(buffer []byte) (n int, truncated bool, err error) {
	n, truncated, err = m.Socket.Receive(buffer)
	if n >= unix.NLMSG_HDRLEN && binary.NativeEndian.Uint16(buffer[4:]) == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWCHAIN {
		if m.listed++; m.listed == 3 {
			n = m.alter(buffer, n)
		}
	}
	return n, truncated, err
}

// So the kernel lists chains while other programs add or delete some, in any table.
func testChainsAreListedWrongly(t *testing.T) {
	table := &Table{Family: FamilyIP, Name: "t"}
	for _, name := range []string{"a", "b", "c"} {
		table.Chains = append(table.Chains, &Chain{Name: name, Rules: []Rule{NewRule(Accept)}})
	}
	leaveOut := func(buffer []byte, n int) int {
		binary.NativeEndian.PutUint16(buffer[4:], unix.NLMSG_NOOP)
		return n
	}
	repeat := func(buffer []byte, n int) int { return n + copy(buffer[n:], buffer[:n]) }
	read := func(c *Conn) (string, error) {
		got, err := c.ReadTable(t.Context(), FamilyIP, "t")
		return fmt.Sprint(got), err
	}
	compare := func(c *Conn) (string, error) {
		tx, err := c.Compare(t.Context(), table, CompareOptions{ThroughCommits: true})
		return tx.String(), err
	}
	for _, tc := range []struct {
		name  string
		alter func(buffer []byte, n int) int
		do    func(c *Conn) (text string, err error)
		want  string
	}{
		{"ReadTable, one left out", leaveOut, read, table.String() + " <nil>"},
		{"ReadTable, one twice", repeat, read, table.String() + " <nil>"},
		{"Compare, one left out", leaveOut, compare,
			" nft: compare table ip t: " + ErrGenerationMoved.Error() + ": the kernel listed rules of chain c, and not the chain"},
		{"Compare, one twice", repeat, compare, " <nil>"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := NewFake()
			open := config.Open
			config.Open = func() (Socket, error) {
				s, err := open()
				return &misled{Socket: s, alter: tc.alter}, err
			}
			c, err := Dial(config)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			commitAll(t, c, Diff(nil, table))
			text, err := tc.do(c)
			if diff := cmp.Diff(tc.want, fmt.Sprint(text, " ", err)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// emptied is a socket over which a listing of elements is cut short: others commit at its second element, and empty the
// set.
type emptied struct {
	Socket
	listed int
	empty  func()
}

func (e *emptied) Receive(buffer []byte) (n int, truncated bool, err error) {
	n, truncated, err = e.Socket.Receive(buffer)
	if n >= unix.NLMSG_HDRLEN+nfgenmsgLen && binary.NativeEndian.Uint16(buffer[4:])&0xff == unix.NFT_MSG_NEWSETELEM {
		if e.listed++; e.listed == 2 {
			buffer[unix.NLMSG_HDRLEN+3]++ // nfgenmsg.res_id
			e.empty()
		}
	}
	return n, truncated, err
}

func testReadElementsOfASetThatIsEmptied(t *testing.T) {
	config := NewFake()
	others, err := Dial(config)
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	table := &Table{Family: FamilyIP, Name: "t"}
	ips := &Set{Name: "ips", Key: Concat{IPDaddr}}
	ips.Put(Element{Key: "\x0a\x00\x00\x01"})
	ips.Put(Element{Key: "\x0a\x00\x00\x02"})
	table.Sets = []*Set{ips}
	commitAll(t, others, Diff(nil, table))
	open := config.Open
	config.Open = func() (Socket, error) {
		s, err := open()
		return &emptied{Socket: s, empty: func() {
			commitAll(t, others, Transaction{Steps: []Step{{Op: DeleteElements, Table: table, Set: ips, Elements: ips.Elements()}}})
		}}, err
	}
	c, err := Dial(config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := c.ReadElements(t.Context(), FamilyIP, "t", ips); err != nil || len(got) > 0 {
		t.Errorf("ReadElements = %v, %v, want no elements of a set that others emptied meanwhile", got, err)
	}
}
