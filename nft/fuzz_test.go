package nft

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

var record = flag.Bool("record", false, "record what the kernel answers as seeds of the fuzz targets")

// kernelReplies has what a kernel answered when it was asked for everything(f): a line for each message, with the name
// of the fuzz target and the message in hexadecimal. It was recorded on a little-endian machine.
const kernelReplies = "testdata/kernel-replies.txt"

// TestRecordSeeds writes kernelReplies anew, with -record.
func TestRecordSeeds(t *testing.T) {
	if !*record {
		t.Skip("only with -record")
	}
	netns.EnterForTest(t)
	c := dial(t)
	var lines strings.Builder
	for _, f := range Families {
		commitAll(t, c, Diff(nil, everything(f)))
		for _, kind := range []struct {
			target string
			typ    uint16
		}{
			{"FuzzDecodeTable", unix.NFT_MSG_GETTABLE}, {"FuzzDecodeChain", unix.NFT_MSG_GETCHAIN},
			{"FuzzDecodeSet", unix.NFT_MSG_GETSET}, {"FuzzDecodeRule", unix.NFT_MSG_GETRULE},
		} {
			recordReplies(t, c, &lines, kind.target, query{typ: kind.typ, flags: netlink.Dump, family: f})
		}
		for _, s := range everything(f).Sets {
			recordReplies(t, c, &lines, "FuzzDecodeElements", query{typ: unix.NFT_MSG_GETSETELEM, flags: netlink.Dump, family: f, table: "kube-proxy", attrs: elementList(s.Name)})
		}
	}
	if err := os.WriteFile(kernelReplies, []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func recordReplies(t *testing.T, c *Conn, lines *strings.Builder, target string, q query) {
	t.Helper()
	if err := c.ask(t.Context(), q, func(r reply) error {
		fmt.Fprintf(lines, "%s %x\n", target, r.Data)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// addKernelReplies adds what a kernel answered.
func addKernelReplies(f *testing.F) {
	f.Helper()
	text, err := os.ReadFile(kernelReplies)
	if err != nil {
		f.Fatal(err)
	}
	added := 0
	for line := range strings.Lines(string(text)) {
		target, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		if target != f.Name() {
			continue
		}
		data, err := hex.DecodeString(digits)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		added++
	}
	if added == 0 {
		f.Fatalf("%s has no line for %s", kernelReplies, f.Name())
	}
}

// addSeeds adds what this package itself encodes for steps of the kind, and what a kernel answered.
func addSeeds(f *testing.F, op StepOp) {
	f.Helper()
	addKernelReplies(f)
	f.Add([]byte{})
	f.Add([]byte{2, 0, 0, 0, 3, 0, 1, 0})
	for _, family := range Families {
		tx := Diff(nil, everything(family))
		messages, err := tx.encode()
		if err != nil {
			f.Fatal(err)
		}
		for _, m := range messages {
			if m.step.Op == op {
				f.Add(m.Data)
			}
		}
	}
}

func FuzzDecodeTable(f *testing.F) {
	addSeeds(f, AddTable)
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := decodeTable(data)
		if err != nil {
			return
		}
		_ = table.String()
		if !fits(table.Comment, table.Name) {
			return
		}
		again, err := decodeTable(onlyMessage(t, Step{Op: AddTable, Table: table}))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(table.String(), again.String()); diff != "" {
			t.Errorf("decoded, encoded and decoded again (-once +twice):\n%s", diff)
		}
	})
}

// fits reports whether texts are such as the kernel would hold.
func fits(comment string, names ...string) bool {
	for _, name := range names {
		if checkText("it", name, maxName) != nil {
			return false
		}
	}
	return len(comment) <= maxComment
}

// onlyMessageAbout encodes a step on the table that data is about, and checks that the message is about that table.
func onlyMessageAbout(t *testing.T, data []byte, s Step) []byte {
	t.Helper()
	name := netlinkattr.Text(netlinkattr.Find(data[nfgenmsgLen:], attrTable))
	if !fits("", name) {
		name = "t"
	}
	s.Table = &Table{Family: FamilyIP, Name: name}
	message := onlyMessage(t, s)
	if !isAbout(message, name) {
		t.Errorf("a message about the table %q, encoded again, is not", name)
	}
	return message
}

func FuzzDecodeChain(f *testing.F) {
	addSeeds(f, AddChain)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeChain(data)
		if err != nil {
			return
		}
		want := (&Table{Name: "t", Chains: []*Chain{c}}).String()
		if !fits(c.Comment, c.Name, string(c.Type)+"x") || c.Hook != "" && !slices.Contains(hookNumbers, c.Hook) {
			return
		}
		got, err := decodeChain(onlyMessageAbout(t, data, Step{Op: AddChain, Chain: c}))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, (&Table{Name: "t", Chains: []*Chain{got}}).String()); diff != "" {
			t.Errorf("decoded, encoded and decoded again (-once +twice):\n%s", diff)
		}
	})
}

func FuzzDecodeSet(f *testing.F) {
	addSeeds(f, AddSet)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeSet(data)
		if err != nil {
			return
		}
		_ = (&Table{Name: "t", Sets: []*Set{s}}).String()
		if !fits(s.Comment, s.Name) || isOpaque(s.Key) || isOpaque(s.Data) || len(s.Key) == 0 {
			return
		}
		got, err := decodeSet(onlyMessageAbout(t, data, Step{Op: AddSet, Set: s}))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s.typeText(), got.typeText()); diff != "" {
			t.Errorf("decoded, encoded and decoded again (-once +twice):\n%s", diff)
		}
	})
}

func isOpaque(c Concat) bool {
	for _, e := range c {
		if _, ok := e.(Opaque); ok {
			return true
		}
	}
	return false
}

func FuzzDecodeElements(f *testing.F) {
	addSeeds(f, AddElements)
	catchAll := &Set{Name: "s", Key: Concat{IPDaddr}, Verdicts: true}
	catchAll.Put(Element{Key: CatchAll, Verdict: Drop, Comment: "the rest"})
	f.Add([]byte(onlyMessage(f, Step{Op: AddElements, Table: &Table{Family: FamilyIP, Name: "t"}, Set: catchAll, Elements: catchAll.Elements()})))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, shape := range append(everything(FamilyIP).Sets, everything(FamilyIP6).Sets...) {
			fuzzElements(t, data, shape)
		}
	})
}

func fuzzElements(t *testing.T, data []byte, shape *Set) {
	empty := func() *Set {
		return &Set{Name: shape.Name, Key: shape.Key, Data: shape.Data, Verdicts: shape.Verdicts, Interval: shape.Interval}
	}
	s := empty()
	if decodeElements(data, s) != nil {
		return
	}
	checkElementsAreThemselves(t, data, s)
	var sound []Element
	for _, e := range s.Elements() {
		_ = s.FormatElement(e)
		if s.kernel.unknown[e.Key] == "" && s.lengths().check(s, &e, true) == nil && fits(e.Comment, e.Verdict.Chain+"x") && roundTrips(s, e) {
			sound = append(sound, e)
		}
	}
	want := empty()
	for _, e := range sound {
		want.Put(e)
	}
	got := empty()
	tx := Transaction{Steps: []Step{{Op: AddElements, Table: &Table{Family: FamilyIP, Name: "t"}, Set: want, Elements: sound}}}
	messages, err := tx.encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if err := decodeElements(m.Data, got); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want.Elements(), got.Elements(), sameElements); diff != "" {
		t.Errorf("decoded, encoded and decoded again (-once +twice):\n%s", diff)
	}
}

// checkElementsAreThemselves compares each element with its own copy, and with another one.
func checkElementsAreThemselves(t *testing.T, data []byte, s *Set) {
	t.Helper()
	err := eachElement(data, func(r *rawElement) error {
		e := r.element()
		if r.catchAll() || r.hasVerdict && e.Verdict.Kind == 0 || max(r.timeout, r.expires) > 1<<40 {
			return nil // nothing that can be wanted
		}
		if !r.is(&e) {
			t.Errorf("the element is not what was read of it: %+v", e)
		}
		for _, change := range []func(*Element){
			func(e *Element) { e.Value += "\x00\x00\x00\x00" },
			func(e *Element) { e.KeyEnd += "x" },
			func(e *Element) { e.Verdict = Verdict{Kind: e.Verdict.Kind%VerdictGoto + 1, Chain: e.Verdict.Chain} },
			func(e *Element) { e.Verdict.Chain += "x" },
			func(e *Element) { e.Comment = "x" + e.Comment },
			func(e *Element) { e.Timeout += time.Millisecond },
		} {
			other := e
			change(&other)
			if r.is(&other) && !e.same(other) {
				t.Errorf("%+v is taken for %+v", e, other)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s was decoded before: %v", s.Name, err)
	}
}

// roundTrips leaves out what no kernel hands out: values beyond what the set declares, in
// the padding of a lone field or in a set without such values.
func roundTrips(s *Set, e Element) bool {
	if e.Key == CatchAll {
		return (s.Data == nil || pad(e.Value[:s.Data.keyLen()]) == e.Value) && (s.Verdicts || e.Verdict == Verdict{})
	}
	lone := func(c Concat, d Data) bool { return c == nil || pad(d[:c.keyLen()]) == d }
	return lone(s.Key, e.Key) && lone(s.Data, e.Value) && (s.Verdicts || e.Verdict == Verdict{}) && (s.Interval || e.KeyEnd == "")
}

func FuzzDecodeRule(f *testing.F) {
	addSeeds(f, AddRules)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRule(data)
		if err != nil {
			return
		}
		family, err := familyOf(uint32(data[0]))
		if err != nil {
			_ = delinearize(Family(data[0]), everything(FamilyIP).Set, r.exprs).String()
			return
		}
		table := everything(family)
		read := func(r decodedRule) Rule { return r.rule(family, table.Set) }
		rule := read(r)
		want := rule.String()
		if rule.External() || !fits(r.comment, r.chain) {
			return
		}
		tx := Transaction{Steps: []Step{{Op: AddRules, Table: table, Chain: &Chain{Name: r.chain, Rules: []Rule{rule}}}}}
		messages, err := tx.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeRule(messages[0].Data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, read(again).String()); diff != "" {
			t.Errorf("decoded, encoded and decoded again (-once +twice):\n%s", diff)
		}
	})
}

func FuzzUserdata(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 255, 0})
	for _, family := range Families {
		for _, s := range everything(family).Sets {
			f.Add(s.userdata())
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		total := 0
		eachUdata(data, func(_ byte, value []byte) { total += 2 + len(value) })
		if total > len(data) {
			t.Errorf("items of %d bytes in %d", total, len(data))
		}
		_ = commentIn(data)
		(&Set{}).decodeUserdata(data)
		c := decodeTypeof(data)
		if c == nil {
			return
		}
		if diff := cmp.Diff(c.String(), decodeTypeof(c.typeof(nil)).String()); diff != "" {
			t.Errorf("decoded, encoded and decoded again (-once +twice):\n%s", diff)
		}
	})
}

// FuzzDecodeObject feeds what no other target decodes: objects, flowtables, notices.
func FuzzDecodeObject(f *testing.F) {
	a := start(FamilyIP, "t", 64)
	a.Text(unix.NFTA_OBJ_NAME, "o")
	a.Uint32(unix.NFTA_OBJ_TYPE, 1)
	f.Add([]byte(a))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, isFlowtable := range []bool{false, true} {
			o, err := decodeObject(data, isFlowtable)
			if err != nil || !fits("", o.Name) {
				continue
			}
			message := onlyMessageAbout(t, data, Step{Op: DeleteObject, Object: o})
			if again, err := decodeObject(message, isFlowtable); err != nil || again != o {
				t.Errorf("%v, encoded and decoded again, is %v (%v)", o, again, err)
			}
		}
		var n Event
		_ = n.decodeGeneration(data)
		_ = n.String()
	})
}

func FuzzReplies(f *testing.F) {
	s := &socket{}
	f.Add(s.appendMessage(s.appendMessage(nil, batchMarker(unix.NFNL_MSG_BATCH_BEGIN)), batchMarker(unix.NFNL_MSG_BATCH_END)))
	f.Add([]byte("\x24\x00\x00\x00\x02\x00\x00\x03\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x24\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		total := 0
		_ = eachMessage(data, func(r reply) error {
			total += unix.NLMSG_HDRLEN + len(r.Data)
			_ = r.refusal()
			return nil
		})
		if total > len(data) {
			t.Errorf("messages of %d bytes in %d", total, len(data))
		}
		a := answers{batch: &batch{begin: 1, last: 9}}
		_ = eachMessage(data, a.take)
	})
}
