package nft

import (
	"encoding/binary"
	"errors"
	"testing"
)

func TestSeenKeys(t *testing.T) {
	const n = 10_000
	seen := newSeenKeys(10) // grows
	key := func(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }
	for round := range 2 {
		for i := range n {
			if isNew := seen.add(key(i)); isNew != (round == 0) {
				t.Fatalf("round %d: add(%d) = %v", round, i, isNew)
			}
		}
		if seen.n != n {
			t.Fatalf("%d keys, want %d", seen.n, n)
		}
	}
	for i := range 2 * n {
		if got := seen.has(Data(key(i))); got != (i < n) {
			t.Fatalf("has(%d) = %v", i, got)
		}
	}
}

func TestSetComplete(t *testing.T) {
	t.Run("refuses an incomplete listing", testSetCompleteRefusesAnIncompleteListing)
}

// The kernel cannot be made to leave elements out at will.
func testSetCompleteRefusesAnIncompleteListing(t *testing.T) {
	key := Concat{IPDaddr}
	for _, tc := range []struct {
		set    Set
		listed int
		want   error
	}{
		{Set{Key: key, kernel: &kernelSet{count: 5}}, 4, ErrGenerationMoved},
		{Set{Key: key, kernel: &kernelSet{count: 5}}, 5, nil},
		{Set{Key: key, kernel: &kernelSet{count: -1}}, 4, nil}, // kernels before 6.15
		{Set{Key: key, kernel: &kernelSet{count: 9}, Interval: true}, 4, nil},
	} {
		if err := tc.set.complete(tc.listed); !errors.Is(err, tc.want) {
			t.Errorf("%d listed of %d: %v, want %v", tc.listed, tc.set.kernel.count, err, tc.want)
		}
	}
}
