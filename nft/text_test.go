package nft

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

// badComments are comments that cannot be kept as they are, and what is kept.
var badComments = []struct{ comment, kept string }{
	{"a\x00", "a?"},
	{"\x00", "?"},
	{"a\x00b", "a?b"},
	{"two\nlines", "two?lines"},
	{"a\ttab", "a?tab"},
	{`a "quote"`, "a 'quote'"},
	{"\xff\xfe", "??"},
	{"ünïcödé", "ünïcödé"},
	{strings.Repeat("a", 127), strings.Repeat("a", 127)},
	{strings.Repeat("a", 128), strings.Repeat("a", 124) + "..."},
	{strings.Repeat("a", 123) + "üüü", strings.Repeat("a", 123) + "..."},
	{strings.Repeat("a", 126) + "\x00\x00", strings.Repeat("a", 124) + "..."},
}

func TestTruncateComment(t *testing.T) {
	for _, tc := range badComments {
		if got := TruncateComment(tc.comment); got != tc.kept {
			t.Errorf("TruncateComment(%q) = %q, want %q", tc.comment, got, tc.kept)
		}
	}
}

func FuzzTruncateComment(f *testing.F) {
	for _, tc := range badComments {
		f.Add(tc.comment)
	}
	set := &Set{Name: "s", Key: Concat{IPDaddr}}
	f.Fuzz(func(t *testing.T, comment string) {
		kept := TruncateComment(comment)
		switch {
		case len(kept) > maxComment || !utf8.ValidString(kept) || strings.ContainsAny(kept, "\x00\n\""):
			t.Errorf("TruncateComment(%q) = %q", comment, kept)
		case TruncateComment(kept) != kept:
			t.Errorf("TruncateComment(%q) = %q, and of that it is %q", comment, kept, TruncateComment(kept))
		case (comment == "") != (kept == ""):
			t.Errorf("TruncateComment(%q) = %q", comment, kept)
		}
		e := Element{Key: IntegerData(1), Comment: comment}
		read := &Set{Name: "s", Key: set.Key}
		if err := decodeElements(onlyMessage(t, Step{Op: AddElements, Table: &Table{Family: FamilyIP, Name: "t"}, Set: set, Elements: []Element{e}}), read); err != nil {
			t.Fatal(err)
		}
		got, _ := read.Element(e.Key)
		if got.Comment != kept || !got.same(e) || !e.same(got) || read.FormatElement(got) != set.FormatElement(e) {
			t.Errorf("written as %q, read as %q", kept, got.Comment)
		}
	})
}

// commented returns a table with the comment on everything that can have one.
func commented(comment string) *Table {
	set := &Set{Name: "s", Key: Concat{IPDaddr}, Comment: comment}
	set.Put(Element{Key: "\x0a\x00\x00\x01", Comment: comment})
	rule := NewRule(Counter{})
	rule.Comment = comment
	return &Table{Family: FamilyIP, Name: "t", Comment: comment, Sets: []*Set{set}, Chains: []*Chain{{Name: "c", Comment: comment, Rules: []Rule{rule}}}}
}

func testCommentsAreReadBackAsWhatWasWanted(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	for _, tc := range badComments {
		want := commented(tc.comment)
		commitAll(t, c, Replace(want))
		got := readBack(t, c, FamilyIP, "t")
		if tx := Diff(got, want); !tx.Empty() {
			t.Errorf("comment %q is repaired for ever:\n%s", tc.comment, tx)
		}
		if text(got) != text(want) {
			t.Errorf("comment %q: wanted\n%s\nread\n%s", tc.comment, want, got)
		}
		// As nft has it: in its listing, and from our text.
		listing := runNft(t, "", "list", "table", "ip", "t")
		if n := strings.Count(listing, quote(tc.comment)); n != 5 {
			t.Errorf("comment %q: nft lists it %d times, want 5:\n%s", tc.comment, n, listing)
		}
		runNft(t, "delete table ip t\n"+want.String(), "-f", "-")
		if tx := Diff(readBack(t, c, FamilyIP, "t"), want); !tx.Empty() {
			t.Errorf("comment %q, loaded by nft, differs:\n%s", tc.comment, tx)
		}
	}
}

func testNamesThatCannotBeAreRefusedByName(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	long := strings.Repeat("x", 256)
	for _, tc := range []struct {
		want  string
		table *Table
	}{
		{`name of table "t\x00" has a NUL in it`, &Table{Family: FamilyIP, Name: "t\x00"}},
		{`table without a name`, &Table{Family: FamilyIP}},
		{`name of chain "c\x00c" has a NUL in it`, &Table{Family: FamilyIP, Name: "t", Chains: []*Chain{{Name: "c\x00c"}}}},
		{`name of map "m\x00" has a NUL in it`, &Table{Family: FamilyIP, Name: "t", Sets: []*Set{{Name: "m\x00", Key: Concat{IPDaddr}, Verdicts: true}}}},
		{fmt.Sprintf("name of chain %q has 256 bytes, at most 255 are allowed", long), &Table{Family: FamilyIP, Name: "t", Chains: []*Chain{{Name: long}}}},
		{`name of interface "eth0\x00" has a NUL in it`, &Table{Family: FamilyIP, Name: "t", Chains: []*Chain{{Name: "c", Rules: []Rule{NewRule(Match{Field: MetaIifname, Op: Equal, Value: "eth0\x00"})}}}}},
		{`name of interface "a-long-interface" has 16 bytes, at most 15 are allowed`, &Table{Family: FamilyIP, Name: "t", Chains: []*Chain{{Name: "c", Rules: []Rule{NewRule(Match{Field: MetaIifname, Op: Equal, Value: "a-long-interface"})}}}}},
	} {
		if _, err := c.Commit(t.Context(), Diff(nil, tc.table)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Commit = %v, want %q", err, tc.want)
		}
	}
	commitAll(t, c, Diff(nil, &Table{Family: FamilyIP, Name: strings.Repeat("x", 255), Chains: []*Chain{{Name: strings.Repeat("y", 255)}}}))
}

func TestFamily(t *testing.T) {
	numbers := map[Family]uint32{FamilyIP: unix.NFPROTO_IPV4, FamilyIP6: unix.NFPROTO_IPV6}
	for _, family := range Families {
		t.Run("the kernel's number of "+family.String()+" leads back to it", func(t *testing.T) {
			if got := uint32(family); got != numbers[family] {
				t.Errorf("number %d, want %d", got, numbers[family])
			}
			if got, err := familyOf(numbers[family]); err != nil || got != family {
				t.Errorf("number %d is family %s (%v)", numbers[family], got, err)
			}
		})
	}
	for name, number := range map[string]uint32{
		"unspecified": unix.NFPROTO_UNSPEC, "inet": unix.NFPROTO_INET, "a number whose low byte is that of ip": 0x100 | unix.NFPROTO_IPV4,
	} {
		t.Run("is not "+name, func(t *testing.T) {
			if got, err := familyOf(number); err == nil {
				t.Errorf("number %d is family %s", number, got)
			}
		})
	}
	inet := &Table{Family: unix.NFPROTO_INET, Name: "t"}
	t.Run("of a table to write is checked", func(t *testing.T) {
		tx := Transaction{Steps: []Step{{Op: AddTable, Table: inet}}}
		if _, err := tx.encode(); !errors.Is(err, ErrInvalid) {
			t.Errorf("a table of family inet: %v, want ErrInvalid", err)
		}
	})
	t.Run("of a table that was read is checked", func(t *testing.T) {
		if table, err := decodeTable(start(inet.Family, "", 4)); err == nil {
			t.Errorf("a table of family inet is read as %s", table)
		}
	})
	t.Run("of a translation is that of the table", func(t *testing.T) {
		sets := func(string) *Set { return &Set{Name: "m", Key: Concat{IPDaddr}, Data: Concat{IPDaddr, ThDport}} }
		for number, external := range map[uint32]bool{unix.NFPROTO_IPV4: false, unix.NFPROTO_IPV6: true, 0x100 | unix.NFPROTO_IPV4: true} {
			var exprs []any
			expressions, _ := NewRule(DNAT(FamilyIP, Concat{IPDaddr}, "m")).linearize()
			for _, e := range expressions {
				if nat, ok := e.(*expr.NAT); ok {
					nat.Family = number
				}
				exprs = append(exprs, e)
			}
			if got := delinearize(FamilyIP, sets, exprs); got.External() != external {
				t.Errorf("family %d reads as %q, external: %v", number, got, got.External())
			}
		}
	})
}
