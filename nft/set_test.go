package nft

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

// sized gives each set of the table that packets do not add to room for n elements.
func sized(table *Table, n uint32) *Table {
	for _, s := range table.Sets {
		if !s.Dynamic {
			s.Size = n
		}
	}
	return table
}

func TestSetSize(t *testing.T) {
	t.Run("is committed, read back, and loaded by nft", func(t *testing.T) {
		netns.EnterForTest(t)
		c := dial(t)
		for _, f := range Families {
			want := loadable(t, sized(everything(f), 64))
			commitAll(t, c, Diff(nil, want))
			got := readBack(t, c, f, want.Name)
			if diff := cmp.Diff(text(want), text(got)); diff != "" {
				t.Errorf("%s: read back (-want +got):\n%s", f, diff)
			}
			ours := runNft(t, "", "-s", "list", "table", f.String(), "kube-proxy")
			runNft(t, "delete table "+f.String()+" kube-proxy\n"+want.String(), "-f", "-")
			theirs := runNft(t, "", "-s", "list", "table", f.String(), "kube-proxy")
			if diff := cmp.Diff(listedLines(theirs), listedLines(ours)); diff != "" {
				t.Errorf("%s: nft lists (-loaded by nft +committed by us):\n%s", f, diff)
			}
			if tx := Diff(readBack(t, c, f, want.Name), want); !tx.Empty() {
				t.Errorf("%s: loaded by nft, it differs by\n%s", f, tx)
			}
		}
	})
	t.Run("changes in place, with the rules that use the set", func(t *testing.T) {
		for _, size := range []struct{ from, to uint32 }{{0, 64}, {64, 0}, {64, 128}} {
			netns.EnterForTest(t)
			c := dial(t)
			commitAll(t, c, Replace(sized(everything(FamilyIP), size.from)))
			want := everything(FamilyIP)
			want.Set("affinity").Size = 1 << 20
			client := affinityElement(FamilyIP, 1, 3600e9, 3600e9)
			commitAll(t, c, Transaction{Steps: []Step{{Op: AddElements, Table: want, Set: want.Set("affinity"), Elements: []Element{client}}}})
			tx := checkRepaired(t, c, sized(want, size.to))
			for _, s := range tx.Steps {
				if s.Op == FlushChain && (s.Chain.Name == "affinity-update" || s.Chain.Name == "mark-for-masquerade") {
					t.Errorf("chain %s is written anew, but uses no set of another size", s.Chain.Name)
				}
			}
			if got := affinityElements(t, c, want); len(got) != 1 {
				t.Errorf("of what packets added there is %v", got)
			}
		}
	})
	t.Run("of a set that packets add to stays, so that its elements do", func(t *testing.T) {
		have, want := everything(FamilyIP), everything(FamilyIP)
		want.Set("affinity").Size++
		if tx := Diff(have, want); !tx.Empty() {
			t.Errorf("the difference is\n%s", tx)
		}
	})
	t.Run("reached, the error says so", func(t *testing.T) {
		netns.EnterForTest(t)
		c := dial(t)
		table := manyAddresses(5)
		commitAll(t, c, Diff(nil, sized(table, 7)))
		more := manyAddresses(8)
		tx := Diff(table, sized(more, 7))
		added := slices.Collect(tx.Steps[0].EachElement())
		refused := "add element ip kube-proxy cluster-ips { " + table.Sets[0].FormatElement(added[2]) + " }"
		_, err := c.Commit(t.Context(), tx)
		if !errors.Is(err, ErrSetFull) || !strings.Contains(err.Error(), refused) {
			t.Errorf("Commit = %v, want ErrSetFull for %q, the third that was added", err, refused)
		}
		// Elements that are deleted before, in the same transaction, make room at once.
		all := table.Sets[0].Elements()
		exchanged := sized(manyAddresses(0), 7)
		for _, e := range all {
			e.Comment = "another"
			exchanged.Sets[0].Put(e)
		}
		exchanged.Sets[0].Remove(all[0].Key)
		exchanged.Sets[0].Put(Element{Key: IntegerData(1)})
		commitAll(t, c, Diff(table, exchanged))
		commitAll(t, c, Diff(exchanged, table))
		commitAll(t, c, Diff(table, sized(more, 8)))
		got := readBack(t, c, FamilyIP, table.Name)
		if !slices.Equal(got.Sets[0].Elements(), more.Sets[0].Elements()) || got.Sets[0].Size != 8 {
			t.Errorf("after the set has grown it is\n%s", got)
		}
	})
}

func TestSetType(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  *Set
		want string // in the error; empty for none
	}{
		{"of fields that nft's userdata can name", &Set{Key: Concat{IPDaddr, MetaL4proto, ThDport, Numgen{Mod: 2}}, Data: Concat{IPDaddr, ThDport}}, ""},
		{"of ct state is refused", &Set{Key: Concat{CTState}}, "set ip table name: ct state cannot be part of a set's type"},
		{"of a part of conntrack's tuple is refused", &Set{Key: Concat{IPSaddr, CTOriginalIPDaddr}}, "ct original ip daddr cannot be part of a set's type"},
		{"of values of a fib type is refused", &Set{Key: Concat{IPSaddr}, Data: Concat{FibDaddrType}}, "map ip table name: fib daddr type cannot be part of a set's type"},
		{"of a hash is refused", &Set{Key: Concat{JHash{Field: IPSaddr, Mod: 2}}}, "jhash ip saddr mod 2 seed 0x0 cannot be part of a set's type"},
		{"of an unknown field is refused", &Set{Key: Concat{Field(200)}}, "field-200 cannot be part of a set's type"},
		{"of nothing is refused", &Set{}, "its keys have no type"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.set.Name = "name"
			tx := Diff(nil, &Table{Family: FamilyIP, Name: "table", Sets: []*Set{tc.set}})
			_, err := tx.encode()
			if tc.want == "" && err != nil {
				t.Fatal(err)
			}
			if tc.want != "" && (!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("the error is %v, want an ErrInvalid with %q", err, tc.want)
			}
		})
	}
}

// dynamicTable has a map that packets add to, a rule that does it, and one that looks it up.
func dynamicTable(f Family) *Table {
	key := append(Concat{f.Saddr()}, frontendKey(f)...)
	return &Table{Family: f, Name: "kube-proxy",
		Sets: []*Set{{Name: "affinity", Key: key, Data: Concat{f.Daddr(), ThDport}, Dynamic: true, Size: 1000}},
		Chains: []*Chain{
			{Name: "affinity-update", Rules: []Rule{affinityUpdate(f)}},
			{Name: "use", Rules: []Rule{NewRule(DNAT(f, key, "affinity"))}},
		}}
}

func affinityElement(f Family, seed byte, timeout, expires time.Duration) Element {
	addr := strings.Repeat("\x0a", f.Daddr().dataType().length-1) + string([]byte{seed})
	return Element{
		Key:     Data(addr+addr) + ProtoData(unix.IPPROTO_TCP) + PortData(80),
		Value:   Data(addr) + PortData(8080),
		Timeout: timeout, Expires: expires,
	}
}

func TestDynamicSet(t *testing.T) {
	t.Run("with the rules that fill it is listed by the nft program", testTheNftProgramListsRulesThatFillAMap)
	t.Run("keeps what packets added through diffs", testWhatPacketsAddedStaysThroughDiffsAndIsReadOnRequest)
}

func testTheNftProgramListsRulesThatFillAMap(t *testing.T) {
	netns.EnterForTest(t)
	conn := dial(t)
	for _, f := range Families {
		if _, err := conn.Commit(t.Context(), Diff(nil, dynamicTable(f))); err != nil {
			t.Fatal(err)
		}
		listing := runNft(t, "", "list", "table", f.String(), "kube-proxy")
		for _, want := range []string{affinityUpdate(f).String(), "flags dynamic,timeout", "size 1000"} {
			if !strings.Contains(listing, want) {
				t.Errorf("%s: nft lists no %q:\n%s", f, want, listing)
			}
		}
	}
}

func testWhatPacketsAddedStaysThroughDiffsAndIsReadOnRequest(t *testing.T) {
	netns.EnterForTest(t)
	conn := dial(t)
	for _, f := range Families {
		want := dynamicTable(f)
		tx := Diff(nil, want)
		long, short := affinityElement(f, 1, time.Hour, 30*time.Minute), affinityElement(f, 2, time.Minute, time.Minute)
		tx.Steps = append(tx.Steps, Step{Op: AddElements, Table: want, Set: want.Sets[0], Elements: []Element{long, short}})
		if _, err := conn.Commit(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		have, err := conn.ReadTable(t.Context(), f, "kube-proxy")
		if err != nil {
			t.Fatal(err)
		}
		if diff := Diff(have, want); !diff.Empty() {
			t.Errorf("%s: the difference is not empty:\n%s", f, diff)
		}
		elements, err := conn.ReadElements(t.Context(), f, "kube-proxy", want.Sets[0])
		if err != nil {
			t.Fatal(err)
		}
		if len(elements) != 2 {
			t.Fatalf("%s: %d elements, want 2", f, len(elements))
		}
		for _, e := range elements {
			given := long
			if e.Key == short.Key {
				given = short
			}
			if left := given.Expires - e.Expires; left < 0 || left > 20*time.Second {
				t.Errorf("%s: an element that was to expire in %v expires in %v", f, given.Expires, e.Expires)
			}
			e.Expires = given.Expires
			if e != given {
				t.Errorf("%s: read %+v, want %+v", f, e, given)
			}
		}
	}
}
