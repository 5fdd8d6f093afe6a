package integration

import (
	"bytes"
	endian "encoding/binary"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where seccomp_data has the number of the system call, and the first and third argument of socket.
const (
	callNumber     = 0
	socketDomain   = 16
	socketProtocol = 32
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

func netfilterSockets(action uint32) []unix.SockFilter {
	return []unix.SockFilter{
		load(callNumber), unless(unix.SYS_SOCKET, 5),
		load(socketDomain), unless(unix.AF_NETLINK, 3),
		load(socketProtocol), unless(unix.NETLINK_NETFILTER, 1),
		verdict(action), verdict(unix.SECCOMP_RET_ALLOW),
	}
}

func messages(action uint32) []unix.SockFilter {
	return []unix.SockFilter{load(callNumber), unless(unix.SYS_SENDMSG, 1), verdict(action), verdict(unix.SECCOMP_RET_ALLOW)}
}

// judgement says what becomes of a message that is about to be sent: an error, or 0 to send it. It may take its time.
type judgement func(message []byte) unix.Errno

// withoutFib refuses what is about fib, as a kernel does that does not know it.
func withoutFib(message []byte) unix.Errno {
	if bytes.Contains(message, []byte("fib\x00")) {
		return unix.ENOENT
	}
	return 0
}

// install puts a filter before the system calls of this thread and of what it starts. Messages that the filter wants judged
// are, each by itself.
func install(filter []unix.SockFilter, judge judgement) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	go hear(int(listener), judge)
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
func hear(listener int, judge judgement) {
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
			a := answer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			if errno := judge(sent(n)); errno != 0 {
				a = answer{id: n.id, error: -int32(errno)}
			}
			unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
		})
	}
}

// sent reads what sendmsg is about to send out of the memory of who calls it.
func sent(n notification) (data []byte) {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", n.pid))
	if err != nil {
		return nil
	}
	defer memory.Close()
	at := func(address uint64, size uint64) []byte {
		part := make([]byte, size)
		memory.ReadAt(part, int64(address))
		return part
	}
	header := at(n.arguments[1], 56)
	vectors, count := endian.NativeEndian.Uint64(header[16:]), endian.NativeEndian.Uint64(header[24:])
	for ; count > 0; count, vectors = count-1, vectors+16 {
		vector := at(vectors, 16)
		data = append(data, at(endian.NativeEndian.Uint64(vector), endian.NativeEndian.Uint64(vector[8:]))...)
	}
	return data
}
