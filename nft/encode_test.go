package nft

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Steps with many elements are encoded by goroutines.
func TestTransactionEncode(t *testing.T) {
	table := manyServices(2 * besideFrom)
	tx := Replace(table)
	t.Run("messages are in the order of the steps and have all elements", func(t *testing.T) {
		messages, err := tx.encode()
		if err != nil {
			t.Fatal(err)
		}
		want, got := map[string]int{}, map[string]int{}
		for _, s := range table.Sets {
			want[s.Name] = s.Len()
		}
		at := 0
		for _, m := range messages {
			for at < len(tx.Steps) && (tx.Steps[at].Op != m.step.Op || tx.Steps[at].Set != m.step.Set) {
				at++
			}
			if m.step.Op != AddElements {
				continue
			}
			if err := eachElement(m.Data, func(*rawElement) error { got[m.step.Set.Name]++; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if at == len(tx.Steps) {
			t.Error("the messages are in another order than the steps")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("elements in the messages (-want +got):\n%s", diff)
		}
	})
	t.Run("an element that its set cannot hold is refused, and nothing reads the sets afterwards", func(t *testing.T) {
		table.Sets[1].Put(Element{Key: "short"})
		_, err := tx.encode()
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("error %v, want %v", err, ErrInvalid)
		}
		for i := range besideFrom {
			table.Sets[0].Put(Element{Key: Data(fmt.Sprintf("%012d", i)), Verdict: Drop}) // the race detector looks
		}
	})
}
