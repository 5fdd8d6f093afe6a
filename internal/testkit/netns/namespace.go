// Package netns makes network namespaces for tests and for the lab.
//
// A namespace has no name in the file system. It lives as long as its file descriptor is open
// or something runs inside, so a test that dies leaves nothing behind. The namespace in which
// the process started is never changed.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// ErrPrivilege says that this process may not create network namespaces.
var ErrPrivilege = errors.New("creating network namespaces needs root, here or in a user namespace of one's own (CAP_SYS_ADMIN)")

// errExited is the error of a function that never returned, as t.FailNow does it.
var errExited = errors.New("the function ended its goroutine instead of returning")

// home is the namespace in which the process started; threads return to it. The file stays open
// for as long as the process runs.
var home, errHome = current()

// Namespace is a network namespace.
type Namespace struct {
	file *os.File
}

// New makes a namespace. The error is ErrPrivilege when the process may not.
func New() (*Namespace, error) {
	var n Namespace
	err := away(func() (err error) {
		if err := unshare(); err != nil {
			return err
		}
		n.file, err = current()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &n, nil
}

// Close releases the namespace. The kernel removes it once no socket and no process is left inside.
func (n *Namespace) Close() error { return n.file.Close() }

// File returns the open namespace, for libraries that take a descriptor. n keeps owning it.
func (n *Namespace) File() *os.File { return n.file }

// FD returns the descriptor of File.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Do runs fn inside the namespace, on a thread of its own. Sockets that fn itself opens belong to
// the namespace for good and may be used anywhere. Goroutines that fn starts do not run inside. fn must
// not call t.FailNow or the like: it does not run on the test's goroutine.
func (n *Namespace) Do(fn func() error) error {
	return away(func() error {
		if err := enter(n.file); err != nil {
			return err
		}
		return fn()
	})
}

// away runs fn on a thread of its own and brings the thread home afterwards. A thread that
// cannot return stays locked, so it dies with its goroutine and no other Go code
// ever runs in the wrong namespace.
func away(fn func() error) error {
	if errHome != nil {
		return fmt.Errorf("the network namespace of this process: %w", errHome)
	}
	done := make(chan error, 1)
	go func() {
		result := errExited
		runtime.LockOSThread()
		defer func() {
			if enter(home) == nil {
				runtime.UnlockOSThread()
			}
			done <- result
		}()
		result = fn()
	}()
	return <-done
}

// unshare moves the calling thread to a new namespace.
func unshare() error {
	err := unix.Unshare(unix.CLONE_NEWNET)
	if errors.Is(err, unix.EPERM) {
		return ErrPrivilege
	}
	if err != nil {
		return fmt.Errorf("unshare network namespace: %w", err)
	}
	return nil
}

// enter moves the calling thread to a namespace. A goroutine of a test may still call it when the namespace is closed:
// it gets an error then, where Fd would race with Close, or name a file that was opened since.
func enter(namespace *os.File) error {
	conn, err := namespace.SyscallConn()
	if err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	failed := conn.Control(func(fd uintptr) { err = unix.Setns(int(fd), unix.CLONE_NEWNET) })
	if err := errors.Join(failed, err); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// current opens the namespace of the calling thread, which need not be that of the process.
func current() (*os.File, error) {
	return os.Open("/proc/thread-self/ns/net")
}

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

// NeedLinux skips the test on a kernel that is older than major.minor. Newer ones must pass it: `make test-kernels`
// runs on older ones too, and lists what it skipped there.
func NeedLinux(t testing.TB, major, minor int) {
	t.Helper()
	release, hasMajor, hasMinor, err := linux()
	if err != nil {
		t.Fatal(err)
	}
	if hasMajor < major || hasMajor == major && hasMinor < minor {
		t.Skipf("needs Linux %d.%d, this is %s", major, minor, release)
	}
}

func linux() (release string, major, minor int, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", 0, 0, err
	}
	release = unix.ByteSliceToString(name.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return release, 0, 0, fmt.Errorf("kernel release %q: %w", release, err)
	}
	return release, major, minor, nil
}
