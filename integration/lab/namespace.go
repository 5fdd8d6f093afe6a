package lab

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrPrivilege says that this process may not create network namespaces.
var ErrPrivilege = errors.New("creating network namespaces needs root, here or in a user namespace of one's own (CAP_SYS_ADMIN)")

// errExited is what a function that never returned gets, as t.FailNow does it.
var errExited = errors.New("the function ended its goroutine instead of returning")

// namespaces makes network namespaces and runs functions inside them.
type namespaces struct {
	// home is where threads go back to.
	home *os.File
}

func openNamespaces() (*namespaces, error) {
	home, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	return &namespaces{home: home}, nil
}

func (n *namespaces) close() error {
	return n.home.Close()
}

// create makes a namespace, which exists for as long as the file is open or something runs inside.
func (n *namespaces) create() (*os.File, error) {
	var created *os.File
	err := n.away(func() error {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if errors.Is(err, unix.EPERM) {
			return ErrPrivilege
		}
		if err != nil {
			return fmt.Errorf("unshare network namespace: %w", err)
		}
		created, err = currentNamespace()
		return err
	})
	return created, err
}

// inside runs fn on a thread that is in namespace.
func (n *namespaces) inside(namespace *os.File, fn func() error) error {
	return n.away(func() error {
		if err := enter(namespace); err != nil {
			return err
		}
		return fn()
	})
}

// away runs fn on a thread of its own and brings the thread home afterwards. A thread that
// cannot return stays locked, so it dies with its goroutine and no other Go code
// ever runs in the wrong namespace.
func (n *namespaces) away(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		result := errExited
		runtime.LockOSThread()
		defer func() {
			if enter(n.home) == nil {
				runtime.UnlockOSThread()
			}
			done <- result
		}()
		result = fn()
	}()
	return <-done
}

func enter(namespace *os.File) error {
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// currentNamespace opens the namespace of the calling thread, which need not be that of the process.
func currentNamespace() (*os.File, error) {
	return os.Open("/proc/thread-self/ns/net")
}
