package process

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Entries of the auxiliary vector that a program finds on its stack (getauxval(3)).
const (
	auxiliaryNull   = 0
	auxiliaryIgnore = 1
	auxiliaryVDSO   = 33
)

// StartWithoutVDSO starts a 64-bit program that asks the kernel for the time, instead of reading it from memory that it
// shares with the kernel. So a filter sees it. The goroutine must be locked to its thread.
func StartWithoutVDSO(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = true // it stops before its first instruction
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		return fmt.Errorf("process %d has not stopped: %v, %w", pid, status, err)
	}
	if err := hideVDSO(pid); err != nil {
		return err
	}
	return unix.PtraceDetach(pid)
}

// hideVDSO looks over the process's arguments and environment for the auxiliary vector.
func hideVDSO(pid int) error {
	at, err := stackStart(pid)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	m := memory{file}
	word := func() uint64 {
		at += 8
		return binary.NativeEndian.Uint64(m.at(at-8, 8))
	}
	word() // argc
	for word() != 0 {
	}
	for word() != 0 {
	}
	for kind := word(); kind != auxiliaryNull; kind = word() {
		if kind == auxiliaryVDSO {
			m.put(at-8, binary.NativeEndian.AppendUint64(nil, auxiliaryIgnore))
			return nil
		}
		word()
	}
	return fmt.Errorf("process %d has no vDSO", pid)
}

// stackStart returns the address of argc: the field startstack in proc_pid_stat(5).
func stackStart(pid int) (uint64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.StartStack, err
}

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

// ProcessorTime returns the time of processors that this process has used so far, to the microsecond.
func ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// ProcessorTimeOf returns the time of processors that another process has used so far, to 10 ms.
func ProcessorTimeOf(t testing.TB, pid int) time.Duration {
	t.Helper()
	return time.Duration(stat(t, pid).CPUTime() * float64(time.Second))
}

// ResidentBytes returns how much memory a process has.
func ResidentBytes(t testing.TB, pid int) int {
	t.Helper()
	return stat(t, pid).ResidentMemory()
}

func stat(t testing.TB, pid int) procfs.ProcStat {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
