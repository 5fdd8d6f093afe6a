package netns

import (
	"runtime"
	"testing"
)

// Need skips the test with -short, which leaves out all tests that need a kernel and the privileges to change it.
// Without -short a test that lacks them fails.
func Need(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a network namespace: left out with -short")
	}
}

// ForTest returns a namespace that is closed when the test ends. The test itself stays where it is:
// give the descriptor to what is to work inside, or use Do.
func ForTest(t testing.TB) *Namespace {
	t.Helper()
	Need(t)
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// EnterForTest moves the goroutine of the test to a new namespace, until the test ends. Subtests and
// goroutines do not run inside: a subtest calls EnterForTest itself.
func EnterForTest(t testing.TB) {
	t.Helper()
	Need(t)
	if errHome != nil {
		t.Fatal(errHome)
	}
	runtime.LockOSThread()
	if err := unshare(); err != nil {
		runtime.UnlockOSThread()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A thread that cannot return stays locked and ends with the test's goroutine.
		if enter(home) == nil {
			runtime.UnlockOSThread()
		}
	})
}
