// Package process measures a process, and puts a judge between its threads and the kernel: seccomp hands the judge each
// system call that a filter selects, and the judge has it run, has it fail, or answers it itself. So tests inject
// faults beneath the code under test, which has no hook for that.
//
// A filter stays on its thread, and on what the thread starts, for as long as that lives.
package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
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
	done := make(chan error, 1)
	go func() {
		err := errors.New("the function ended its goroutine instead of returning") // as t.FailNow does it
		defer func() { done <- err }()
		runtime.LockOSThread() // for good: the thread is not to be used again
		if unix.Gettid() == unix.Getpid() {
			// The first thread of a process does not end. While this goroutine holds it, another has another.
			defer runtime.UnlockOSThread()
			err = OnThread(f)
			return
		}
		err = f()
	}()
	return <-done
}

// Install puts the calling thread, and what it starts, behind a filter. The goroutine
// must be locked to the thread for good.
func Install(filter Filter, judge Judge) error { return install(filter, judge, new(sync.WaitGroup)) }

// waitKillable is SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (Linux 5.19): a call that is being judged is not interrupted
// by signals, which would have it judged twice.
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

// Filter says which system calls the kernel runs, which it refuses, and which it has judged.
type Filter []unix.SockFilter

// Judged is the action of a filter that leaves the decision to the judge.
const Judged = unix.SECCOMP_RET_USER_NOTIF

// Refused is the action of a filter that has system calls fail.
func Refused(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

// Where seccomp_data has the number of the system call and the low half of its arguments, on a little-endian machine.
const (
	callNumber    = 0
	firstArgument = 16
	argumentSize  = 8
)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// unless skips instructions if what was loaded is something else.
func unless(value uint32, skip uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: skip}
}

func verdict(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

// Calls selects system calls by their numbers (unix.SYS_…).
func Calls(action uint32, numbers ...uint32) Filter {
	filter := Filter{load(callNumber)}
	for _, number := range numbers {
		filter = append(filter, unless(number, 1), verdict(action))
	}
	return append(filter, verdict(unix.SECCOMP_RET_ALLOW))
}

// NetfilterSockets selects the opening of netlink sockets to netfilter.
func NetfilterSockets(action uint32) Filter {
	return Filter{
		load(callNumber), unless(unix.SYS_SOCKET, 5),
		load(firstArgument), unless(unix.AF_NETLINK, 3),
		load(firstArgument + 2*argumentSize), unless(unix.NETLINK_NETFILTER, 1),
		verdict(action), verdict(unix.SECCOMP_RET_ALLOW),
	}
}

// WallClock selects the reading of the wall clock by programs that ask the kernel for it: see HideVDSO.
func WallClock(action uint32) Filter {
	return Filter{
		load(callNumber), unless(unix.SYS_CLOCK_GETTIME, 3),
		load(firstArgument), unless(unix.CLOCK_REALTIME, 1),
		verdict(action), verdict(unix.SECCOMP_RET_ALLOW),
	}
}

// Call is a system call that waits for its verdict.
type Call struct{ n notification }

// Number is the number of the call (unix.SYS_…).
func (c *Call) Number() int { return int(c.n.number) }

// Argument returns an argument of the call; the first is 0.
func (c *Call) Argument(i int) uint64 { return c.n.arguments[i] }

// FD is the first argument, as a file descriptor of who calls.
func (c *Call) FD() int { return int(int32(c.n.arguments[0])) }

// Message returns what sendmsg is about to send.
func (c *Call) Message() (data []byte) {
	m := c.memory()
	defer m.Close()
	for _, v := range m.vectors(c.n.arguments[1]) {
		data = append(data, m.at(v.address, v.size)...)
	}
	return data
}

// Received returns the verdict that has recvmsg receive a datagram with these flags
// (MSG_TRUNC). What is longer than the buffer is cut.
func (c *Call) Received(datagram []byte, flags int) Verdict {
	m := c.memory()
	defer m.Close()
	header := c.n.arguments[1]
	m.put(header+headerFlags, binary.NativeEndian.AppendUint32(nil, uint32(flags)))
	m.put(header+headerNameLength, binary.NativeEndian.AppendUint32(nil, 0))
	left := datagram
	for _, v := range m.vectors(header) {
		n := min(uint64(len(left)), v.size)
		m.put(v.address, left[:n])
		left = left[n:]
	}
	return Return(len(datagram) - len(left))
}

// Store writes to the memory of who calls.
func (c *Call) Store(address uint64, data []byte) {
	m := c.memory()
	defer m.Close()
	m.put(address, data)
}

// memory is that of a thread that waits.
type memory struct{ *os.File }

func (c *Call) memory() memory {
	file, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", c.n.pid), os.O_RDWR, 0)
	if err != nil {
		return memory{} // it was killed meanwhile; reading nil is an error
	}
	return memory{file}
}

func (m memory) at(address, size uint64) []byte {
	part := make([]byte, size)
	_, _ = m.ReadAt(part, int64(address))
	return part
}

func (m memory) put(address uint64, data []byte) { _, _ = m.WriteAt(data, int64(address)) }

// Parts of a msghdr on 64-bit machines.
const (
	headerSize       = 56
	headerNameLength = 8
	headerVectors    = 16
	headerCount      = 24
	headerFlags      = 48
	vectorSize       = 16
)

type vector struct{ address, size uint64 }

func (m memory) vectors(header uint64) (all []vector) {
	b := m.at(header, headerSize)
	at, count := binary.NativeEndian.Uint64(b[headerVectors:]), binary.NativeEndian.Uint64(b[headerCount:])
	for ; count > 0; count, at = count-1, at+vectorSize {
		v := m.at(at, vectorSize)
		all = append(all, vector{binary.NativeEndian.Uint64(v), binary.NativeEndian.Uint64(v[8:])})
	}
	return all
}

// Netlink are the system calls that work with netlink sockets once they are open, and few others do: Go's network
// connections read and write.
var Netlink = []uint32{unix.SYS_BIND, unix.SYS_SETSOCKOPT, unix.SYS_SENDMSG, unix.SYS_RECVMSG}
