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

// enter moves the calling thread to a namespace.
func enter(namespace *os.File) error {
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// current opens the namespace of the calling thread, which need not be that of the process.
func current() (*os.File, error) {
	return os.Open("/proc/thread-self/ns/net")
}
