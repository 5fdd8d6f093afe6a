package nft

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
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
