package process

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// onlyVariable has ExecOnly restrict the process.
const onlyVariable = "NFTPROXY_TEST_ONLY_SYSCALLS"

// Only is the environment that has a program whose main function calls ExecOnly run another program instead, with these
// system calls (unix.SYS_…). Any other call ends that program with SIGSYS, so that nobody overlooks it; a program in Go
// then prints where it was.
func Only(numbers []int) string { return onlyVariable + "=" + strings.Trim(fmt.Sprint(numbers), "[]") }

// ExecOnly returns at once, unless the environment has Only. Then the program that os.Args[1:] names takes the place of
// this one. Its filter comes into force right before, so no other code runs behind it.
func ExecOnly() {
	numbers, restricted := os.LookupEnv(onlyVariable)
	if !restricted {
		return
	}
	if err := execOnly(strings.Fields(numbers)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func execOnly(numbers []string) error {
	filter := Filter{load(callNumber)}
	for _, text := range numbers {
		number, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return err
		}
		filter = append(filter, unless(uint32(number), 1), verdict(unix.SECCOMP_RET_ALLOW))
	}
	filter = append(filter, verdict(unix.SECCOMP_RET_TRAP))
	runtime.LockOSThread()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
}
