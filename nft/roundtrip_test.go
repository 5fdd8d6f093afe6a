package nft

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func drawFamily(t *rapid.T) Family {
	return rapid.SampledFrom(Families[:]).Draw(t, "family")
}

func drawBytes(t *rapid.T, n int) []byte {
	return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "bytes")
}

// drawValue draws a value of the field: any bytes, zero where it is padded.
func drawValue(t *rapid.T, e Expr) Data {
	return pad(Data(drawBytes(t, e.dataType().length)))
}

func drawPrefix(t *rapid.T, f Field) netip.Prefix {
	b := drawBytes(t, f.dataType().length)
	addr, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(addr, rapid.IntRange(0, 8*len(b)).Draw(t, "bits")).Masked()
}

// drawKey draws a key that a set may have.
func drawKey(t *rapid.T, f Family) Concat {
	parts := rapid.SliceOfN(rapid.SampledFrom([]Field{f.Saddr(), f.Daddr(), ThSport, ThDport, MetaL4proto, MetaMark}), 1, 3).Draw(t, "parts")
	var c Concat
	for _, p := range parts {
		c = append(c, p)
	}
	if rapid.Bool().Draw(t, "with numgen") {
		c = append(c, Numgen{Mod: rapid.Uint32Range(1, 1000).Draw(t, "mod")})
	}
	return c
}

func drawOp(t *rapid.T) Op { return rapid.SampledFrom([]Op{Equal, NotEqual}).Draw(t, "op") }

// drawStatement draws any statement; sets that it looks up are added to sets.
func drawStatement(t *rapid.T, f Family, sets map[string]*Set) Statement {
	lookIn := func(s Set) (Concat, string) {
		s.Name = fmt.Sprintf("set-%d", len(sets))
		s.Key = drawKey(t, f)
		sets[s.Name] = &s
		return s.Key, s.Name
	}
	ifname := func() string {
		return rapid.StringMatching(`[a-z0-9.]{1,14}\*?`).Draw(t, "name")
	}
	flags := func() uint32 { return rapid.Uint32Range(1, 1<<32-1).Draw(t, "flags") }
	switch rapid.IntRange(0, 14).Draw(t, "kind") {
	case 0:
		field := rapid.SampledFrom([]Field{ThSport, ThDport, MetaL4proto, MetaMark, CTState, CTStatus, FibSaddrType, FibDaddrType}).Draw(t, "field")
		return Match{Field: field, Op: drawOp(t), Value: drawValue(t, field)}
	case 1:
		field := rapid.SampledFrom([]Field{f.Saddr(), f.Daddr()}).Draw(t, "field")
		return Match{Field: field, Op: drawOp(t), Value: drawPrefix(t, field)}
	case 2:
		return Match{Field: rapid.SampledFrom([]Field{CTState, CTStatus}).Draw(t, "field"), Value: IntegerData(flags())}
	case 3:
		bits := flags()
		m := MatchMark(bits, bits&flags())
		m.Op = drawOp(t)
		return m
	case 4:
		return Match{Field: rapid.SampledFrom([]Field{MetaIifname, MetaOifname}).Draw(t, "field"), Op: drawOp(t), Value: ifname()}
	case 5:
		key, name := lookIn(Set{})
		return InSet{key, drawOp(t), name}
	case 6:
		key, name := lookIn(Set{Verdicts: true})
		return Vmap{key, name}
	case 7:
		key, name := lookIn(Set{Data: Concat{f.Daddr(), ThDport}})
		return DNAT(f, key, name)
	case 8:
		return SetMark(flags())
	case 9:
		return FlipMark(flags())
	case 10:
		return Masquerade
	case 11:
		return Reject{Family: f}
	case 12:
		return Counter{}
	case 13:
		data := Concat{f.Daddr(), CTReplyProtoSrc}
		_, name := lookIn(Set{Data: data, Dynamic: true})
		key := Concat{f.Saddr(), f.OriginalDaddr(), CTOriginalProtoDst}
		sets[name].Key = key
		return Update{Map: name, Key: key, Data: data, Timeout: rapid.Custom(drawTimeout).Draw(t, "timeout")}
	}
	return rapid.SampledFrom([]Verdict{Accept, Drop, Return, Jump("a-chain"), Goto("a-chain")}).Draw(t, "verdict")
}

func drawTimeout(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(1, 1e9).Draw(t, "milliseconds")) * time.Millisecond
}

func TestRoundTrip(t *testing.T) {
	t.Run("of every statement through expressions", testEveryStatementSurvivesTheWayThroughTheKernelsExpressions)
	t.Run("of every set", testEverySetDescriptionSurvivesItsEncoding)
	t.Run("of every element", testEveryElementSurvivesItsEncoding)
	t.Run("of a long element list over several messages", testALongElementListIsSplitOverMessagesAndLosesNothing)
	t.Run("of the largest elements in messages of any length", testLargestElementsInMessagesOfAnyLength)
}

func testEveryStatementSurvivesTheWayThroughTheKernelsExpressions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFamily(t)
		sets := map[string]*Set{}
		var want []Statement
		for range rapid.IntRange(1, 6).Draw(t, "statements") {
			want = append(want, drawStatement(t, f, sets))
		}
		var exprs []any
		expressions, err := Rule{Statements: want}.linearize()
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range expressions {
			exprs = append(exprs, remarshal(t, f, x))
		}
		read := delinearize(f, func(name string) *Set { return sets[name] }, exprs)
		if read.External() {
			t.Fatalf("%s is external", read)
		}
		got := read.Statements
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Fatalf("statements (-written +read):\n%s", diff)
		}
	})
}

// remarshal takes an expression through its encoding, as the kernel does.
func remarshal(t *rapid.T, f Family, x expr.Any) any {
	b, err := expr.Marshal(uint8(f), x)
	if err != nil {
		t.Fatal(err)
	}
	return decodeExpr(f, b)
}

func testEverySetDescriptionSurvivesItsEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFamily(t)
		want := &Set{Name: "s", Key: drawKey(t, f), Comment: rapid.StringMatching(`[a-z ]{0,60}`).Draw(t, "comment")}
		want.Counter = rapid.Bool().Draw(t, "counter")
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 1:
			want.Verdicts = true
		case 2:
			want.Data = Concat{f.Daddr(), ThDport}
			want.Dynamic = rapid.Bool().Draw(t, "dynamic")
			if want.Dynamic {
				want.Size = rapid.Uint32().Draw(t, "size")
			}
		}
		data := onlyMessage(t, Step{Op: AddSet, Table: &Table{Family: f, Name: "t"}, Set: want})
		got, err := decodeSet(data)
		if err != nil {
			t.Fatal(err)
		}
		if !isAbout(data, "t") || got.Name != want.Name || !got.sameType(want) {
			t.Fatalf("decoded %s, want %s", got.typeText(), want.typeText())
		}
	})
}

func testEveryElementSurvivesItsEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFamily(t)
		want := &Set{Name: "s", Key: drawKey(t, f)}
		want.Dynamic = rapid.Bool().Draw(t, "dynamic")
		if rapid.Bool().Draw(t, "verdicts") {
			want.Verdicts = true
		} else if rapid.Bool().Draw(t, "data") {
			want.Data = drawKey(t, f)
		}
		for range rapid.IntRange(1, 20).Draw(t, "elements") {
			e := Element{Comment: rapid.String().Draw(t, "comment")}
			for _, part := range want.Key {
				e.Key += drawValue(t, part)
			}
			for _, part := range want.Data {
				e.Value += drawValue(t, part)
			}
			if want.Verdicts {
				e.Verdict = rapid.SampledFrom([]Verdict{Accept, Drop, Return, Jump("a"), Goto("b-1")}).Draw(t, "verdict")
			}
			if want.Dynamic {
				e.Timeout, e.Expires = drawTimeout(t), drawTimeout(t)
			}
			want.Put(e)
		}
		step := Step{Op: AddElements, Table: &Table{Family: f, Name: "t"}, Set: want, Elements: want.Elements()}
		got := &Set{Name: "s", Key: want.Key, Data: want.Data, Verdicts: want.Verdicts}
		if err := decodeElements(onlyMessage(t, step), got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Elements(), got.Elements(), sameElements); diff != "" {
			t.Fatalf("elements (-written +read):\n%s", diff)
		}
	})
}

// sameElements compares elements as the kernel would hold them.
var sameElements = cmp.Comparer(Element.same)

type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// onlyMessage encodes a step that takes one message and returns its data.
func onlyMessage(t fataler, s Step) []byte {
	t.Helper()
	tx := Transaction{Steps: []Step{s}}
	messages, err := tx.encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(messages) != 1 {
		t.Fatalf("%d messages, want 1", len(messages))
	}
	return messages[0].Data
}

func testALongElementListIsSplitOverMessagesAndLosesNothing(t *testing.T) {
	want := &Set{Name: "s", Key: frontendKey(FamilyIP6), Verdicts: true}
	addr := netip.MustParseAddr("fd00::1")
	for range 5000 {
		want.Put(Element{Key: AddrData(addr) + ProtoData(6) + PortData(80), Verdict: Goto("cluster-2"), Comment: "namespace/a-service-with-a-name:port"})
		addr = addr.Next()
	}
	tx := Transaction{Steps: []Step{{Op: AddElements, Table: &Table{Family: FamilyIP6, Name: "t"}, Set: want, Elements: want.Elements()}}}
	messages, err := tx.encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(messages) < 2 {
		t.Errorf("5,000 elements take %d message", len(messages))
	}
	got := &Set{Name: "s", Key: want.Key, Verdicts: true}
	for _, m := range messages {
		if err := decodeElements(m.Data, got); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want.Elements(), got.Elements(), sameElements); diff != "" {
		t.Errorf("elements (-written +read):\n%s", diff)
	}
}

// largestElements returns a map of n elements that are as large as they can be, except for chains' names that are up to
// 40 bytes shorter. So a list of them can have any length. The map's table has the chains.
func largestElements(n int) *Table {
	key := Concat{IP6Saddr, IP6Daddr, IP6Saddr, IP6Daddr}
	large := &Set{Name: strings.Repeat("m", maxName), Key: key, Interval: true, Verdicts: true}
	table := &Table{Family: FamilyIP6, Name: "kube-proxy", Sets: []*Set{large}}
	for shorter := range 10 {
		table.Chains = append(table.Chains, &Chain{Name: strings.Repeat("c", maxName-4*shorter)})
	}
	addr := netip.MustParseAddr("fd00::")
	for i := range n {
		large.Put(Element{
			Key: AddrData(addr) + AddrData(addr) + AddrData(addr) + AddrData(addr), KeyEnd: AddrData(addr) + AddrData(addr) + AddrData(addr) + AddrData(addr),
			Verdict: Goto(table.Chains[i*i%len(table.Chains)].Name), Comment: strings.Repeat("n", maxComment),
		})
		addr = addr.Next()
	}
	return table
}

func testLargestElementsInMessagesOfAnyLength(t *testing.T) {
	table := largestElements(500)
	set := table.Sets[0]
	elements := set.Elements()
	longest := 0
	for seed := range uint64(200) {
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(elements), func(i, j int) { elements[i], elements[j] = elements[j], elements[i] })
		tx := Transaction{Steps: []Step{{Op: AddElements, Table: table, Set: set, Elements: elements}}}
		messages, err := tx.encode()
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		for _, m := range messages {
			list := netlinkattr.Find(m.Data[nfgenmsgLen:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			longest = max(longest, netlinkattr.HeaderLen+len(list))
			if err := eachElement(m.Data, func(*rawElement) error { read++; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if read != len(elements) {
			t.Fatalf("of %d elements, %d are read back from %d messages", len(elements), read, len(messages))
		}
	}
	if longest < maxList-100 {
		t.Errorf("the longest list has %d bytes of %d: no list was as long as it may be", longest, maxList)
	}
}

func TestEncodeRefuses(t *testing.T) {
	t.Run("what the kernel cannot hold", testWhatCannotBeHeldIsRefusedBeforeTheKernelSeesIt)
	t.Run("names that cannot be", testNamesThatCannotBeAreRefusedByName)
}

func testWhatCannotBeHeldIsRefusedBeforeTheKernelSeesIt(t *testing.T) {
	table := &Table{Family: FamilyIP, Name: "t"}
	ports := &Set{Name: "ports", Key: Concat{ThDport}, Data: Concat{ThDport}}
	verdicts := &Set{Name: "verdicts", Key: Concat{ThDport}, Verdicts: true}
	chain := func(s Statement) *Chain { return &Chain{Name: "c", Rules: []Rule{NewRule(s)}} }
	for _, tc := range []struct {
		name string
		step Step
	}{
		{"a key of another length", Step{Op: AddElements, Table: table, Set: ports, Elements: []Element{{Key: "12345678", Value: PortData(1)}}}},
		{"a key of another length in a deletion", Step{Op: DeleteElements, Table: table, Set: ports, Elements: []Element{{Key: ""}}}},
		{"a value of another length", Step{Op: AddElements, Table: table, Set: ports, Elements: []Element{{Key: PortData(1)}}}},
		{"a verdict that is none", Step{Op: AddElements, Table: table, Set: verdicts, Elements: []Element{{Key: PortData(1)}}}},
		{"a verdict of no known kind", Step{Op: AddElements, Table: table, Set: verdicts, Elements: []Element{{Key: PortData(1), Verdict: Verdict{Kind: VerdictGoto + 1}}}}},
		{"a verdict with a chain's name that is too long", Step{Op: AddElements, Table: table, Set: verdicts, Elements: []Element{{Key: PortData(1), Verdict: Goto(strings.Repeat("c", maxName+1))}}}},
		{"a statement that could not be read", Step{Op: AddRules, Table: table, Chain: chain(Unknown{"limit"})}},
		{"a rule with a verdict that is none", Step{Op: AddRules, Table: table, Chain: chain(Verdict{})}},
		{"a rule with a verdict of no known kind", Step{Op: AddRules, Table: table, Chain: chain(Verdict{Kind: VerdictGoto + 1})}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tx := Transaction{Steps: []Step{tc.step}}
			if _, err := tx.encode(); err == nil {
				t.Error("it was encoded")
			}
		})
	}
}

// decodeElements decodes an NFT_MSG_NEWSETELEM message into the set.
func decodeElements(data []byte, s *Set) error {
	err := eachElement(data, func(r *rawElement) error {
		s.putRead(r.element(), r.unknownIn(s))
		return nil
	})
	if err != nil {
		return fmt.Errorf("elements of %s %s: %w", s.Kind(), s.Name, err)
	}
	return nil
}

// limitChecks bounds how many random cases a test with the real kernel tries.
func limitChecks(t *testing.T, n int) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	old := checks.Value.String()
	if have, err := strconv.Atoi(old); err == nil && have <= n {
		return
	}
	if err := checks.Value.Set(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Value.Set(old) })
}
