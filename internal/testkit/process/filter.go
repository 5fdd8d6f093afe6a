package process

import "golang.org/x/sys/unix"

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
