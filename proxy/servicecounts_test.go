package proxy

import (
	"testing"
)

func TestServiceCounts(t *testing.T) {
	t.Run("leave out large sets", testServiceCountsLeaveOutLargeSets)
}

func testServiceCountsLeaveOutLargeSets(t *testing.T) {
	c := cluster{services: 3, endpoints: 1, counted: true}
	b, err := NewBackend(namespaceConn(t), c.config(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	counts := NewServiceCounts(b)
	read := func() (sets, left int) {
		t.Helper()
		if err := counts.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(counts.totals.sets), counts.TooLarge()
	}
	if sets, left := read(); sets != 0 || left != 0 {
		t.Errorf("before the first Sync %d sets were read, %d left out", sets, left)
	}
	if err := b.Sync(t.Context(), c.changes()); err != nil {
		t.Fatal(err)
	}
	counts.maxElements = 2
	if sets, left := read(); sets != 0 || left != 2 {
		t.Errorf("of 3 elements, 2 allowed: %d sets were read, %d left out; want 0 and 2", sets, left)
	}
	counts.maxElements = 3
	if sets, left := read(); sets != 2 || left != 0 {
		t.Errorf("of 3 elements, 3 allowed: %d sets were read, %d left out; want 2 and 0", sets, left)
	}
}
