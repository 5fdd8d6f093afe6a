package process

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"syscall"

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
