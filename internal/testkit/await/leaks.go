package await

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakPatience bounds the wait for goroutines and descriptors to end once the test has closed what it opened.
const leakPatience = 10 * time.Second

// NoLeaks fails the test if more goroutines run, or more descriptors are open, when it ends than now. What the test
// closes in cleanups must be registered later. Tests that run in parallel would be blamed for one another.
func NoLeaks(t testing.TB) {
	t.Helper()
	goroutines, before := goleak.IgnoreCurrent(), descriptors(t, os.Getpid())
	t.Cleanup(func() {
		if t.Failed() {
			return // whatever went wrong may have left much
		}
		if err := Poll(leakPatience, func() error { return goleak.Find(goroutines) }); err != nil {
			t.Errorf("goroutines are left; see who should end them: %v", err)
		}
		NoMoreDescriptors(t, os.Getpid(), before)
	})
}

// Descriptors says how many file descriptors of each kind a process has open: sockets, pipes, and files by name.
type Descriptors map[string]int

// DescriptorsOf returns the open descriptors of a process.
func DescriptorsOf(t testing.TB, pid int) Descriptors {
	t.Helper()
	return descriptors(t, pid)
}

// NoMoreDescriptors fails the test if the process does not come down to the descriptors that it had before.
func NoMoreDescriptors(t testing.TB, pid int, before Descriptors) {
	t.Helper()
	if err := Poll(leakPatience, func() error { return descriptors(t, pid).beyond(before) }); err != nil {
		t.Errorf("file descriptors are left; see who should close them: %v", err)
	}
}

func (d Descriptors) beyond(before Descriptors) error {
	for kind, n := range d {
		if n > before[kind] {
			return fmt.Errorf("%d are open for %s, before there were %d", n, kind, before[kind])
		}
	}
	return nil
}

func descriptors(t testing.TB, pid int) Descriptors {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	open := Descriptors{}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // it was the one for the directory, or has been closed
		}
		kind, _, _ := strings.Cut(target, ":[") // socket:[1234], net:[1234]
		if runtimeOwn(kind) {
			continue
		}
		open[kind]++
	}
	return open
}

// runtimeOwn reports whether Go's runtime opens such a descriptor once, when the first goroutine waits for one, or the
// descriptor is that of the listing itself.
func runtimeOwn(kind string) bool {
	return strings.HasPrefix(kind, "anon_inode:") || strings.HasPrefix(kind, "/proc/")
}
