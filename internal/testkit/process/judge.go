// Package process measures a process, and puts a judge between its threads and the kernel: seccomp hands the judge each
// system call that a filter selects, and the judge has it run, has it fail, or answers it itself. So tests inject faults
// beneath the code under test, which has no hook for that.
//
// A filter stays on its thread, and on what the thread starts, for as long as that lives.
package process

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Verdict decides on a system call. The zero value lets the kernel run it.
type Verdict struct {
	// Errno, if not 0, is the error with which the call fails. The kernel does not see it.
	Errno unix.Errno
	// Answered makes the call return Value without the kernel.
	Answered bool
	// Value is the result of a call that is Answered.
	Value int
}

// Pass lets the kernel run the call.
var Pass = Verdict{}

// Fail makes the call fail.
func Fail(errno unix.Errno) Verdict { return Verdict{Errno: errno} }

// Return has the call succeed without the kernel.
func Return(value int) Verdict { return Verdict{Answered: true, Value: value} }

// Judge decides on one system call. It may take its time. It is called from several goroutines at once if several
// threads are behind the filter.
type Judge func(c *Call) Verdict

// Behind runs f on a thread of its own that is behind a filter. Goroutines that f starts are not. The judge is called
// for the last time before Behind returns. Calls that Go makes without telling its scheduler, such as socket, cannot be
// judged by the same process.
func Behind(filter Filter, judge Judge, f func()) error {
	var judging sync.WaitGroup
	err := OnThread(func() error {
		err := install(filter, judge, &judging)
		if err == nil {
			f()
		}
		return err
	})
	judging.Wait()
	return err
}

// OnThread runs f on a thread that ends afterwards.
func OnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread is not to be used again
		if unix.Gettid() == unix.Getpid() {
			// The first thread of a process does not end. While this goroutine holds it, another has another.
			defer runtime.UnlockOSThread()
			done <- OnThread(f)
			return
		}
		done <- f()
	}()
	return <-done
}

// Install puts the calling thread, and what it starts, behind a filter. The goroutine must be locked to the thread for good.
func Install(filter Filter, judge Judge) error { return install(filter, judge, new(sync.WaitGroup)) }

// waitKillable is SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (Linux 5.19): a call that is being judged is not interrupted by
// signals, which would have it judged twice.
const waitKillable = 1 << 5

func install(filter Filter, judge Judge, judging *sync.WaitGroup) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|waitKillable, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	judging.Go(func() { hear(int(listener), judge) })
	return nil
}

// notification and answer are seccomp_notif and seccomp_notif_resp.
type notification struct {
	id           uint64
	pid, flags   uint32
	number       int32
	architecture uint32
	instruction  uint64
	arguments    [6]uint64
}

type answer struct {
	id    uint64
	value int64
	error int32
	flags uint32
}

// hear answers until all that run behind the filter have ended.
func hear(listener int, judge Judge) {
	var answering sync.WaitGroup
	defer unix.Close(listener)
	defer answering.Wait() // before others can get the listener's number
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err == unix.EINTR {
			continue
		} else if err != nil || poll[0].Revents&unix.POLLIN == 0 {
			return
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // it was killed meanwhile
		}
		answering.Go(func() {
			a := judge(&Call{n}).answer(n.id)
			unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
		})
	}
}

func (v Verdict) answer(id uint64) answer {
	switch {
	case v.Errno != 0:
		return answer{id: id, error: -int32(v.Errno)}
	case v.Answered:
		return answer{id: id, value: int64(v.Value)}
	default:
		return answer{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	}
}
