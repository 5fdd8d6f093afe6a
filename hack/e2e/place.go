package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// place is a set of namespaces: the machine's or a node's. It lives as long as its init process.
type place struct {
	// name is "machine" or the node's name.
	name string
	// init is the process whose namespaces these are.
	init processID
	// cgroups are directories that what is started here moves to.
	cgroups []string
}

// namespaces are those of a place, and the flags to enter and to make them.
var namespaces = []struct {
	file string
	flag int
}{
	{"mnt", unix.CLONE_NEWNS}, {"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID},
	{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"cgroup", unix.CLONE_NEWCGROUP},
}

// start starts a program in the place. The program outlives this process.
func (p place) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its goroutine, and no other one ever runs in the place
		result <- func() error {
			if err := p.enter(); err != nil {
				return err
			}
			return cmd.Start()
		}()
	}()
	if err := <-result; err != nil {
		return fmt.Errorf("%s: %s: %w", p.name, filepath.Base(cmd.Path), err)
	}
	for _, dir := range p.cgroups {
		// A program that has ended already is in none.
		if err := join(dir, cmd.Process.Pid); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("%s: %s: %w", p.name, filepath.Base(cmd.Path), err)
		}
	}
	return nil
}

// enter moves the calling thread, which must end soon, to the place's namespaces.
func (p place) enter() error {
	// Threads share their root and working directory. Mount namespaces are only for those that do not.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	files := make([]*os.File, len(namespaces))
	for i, ns := range namespaces {
		file, err := p.init.open(filepath.Join("ns", ns.file))
		if err != nil {
			return err
		}
		defer file.Close()
		files[i] = file
	}
	for i, ns := range namespaces {
		if err := unix.Setns(int(files[i].Fd()), ns.flag); err != nil {
			return fmt.Errorf("entering %s: %w", ns.file, err)
		}
	}
	return nil
}

// do runs a function in the place's network, on a thread of its own. Sockets that it opens stay there.
func (p place) do(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		result <- func() error {
			file, err := p.init.open("ns/net")
			if err != nil {
				return err
			}
			defer file.Close()
			if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return fn()
		}()
	}()
	return <-result
}

// dial connects from the place's network.
func (p place) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = p.do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// program is a program with its own session, so that Ctrl-C reaches this process alone.
func program(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// ownProgram is this program, as another process.
func ownProgram(name string, args ...string) *exec.Cmd {
	path, err := os.Executable()
	cmd := program(path, args...)
	cmd.Args[0], cmd.Err = name, err
	return cmd
}

// background starts a program whose output goes to a log file, and that stays.
func (p place) background(logs string, cmd *exec.Cmd) (processID, error) {
	log, err := os.OpenFile(filepath.Join(logs, p.name+"-"+filepath.Base(cmd.Args[0])+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return processID{}, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := p.start(cmd); err != nil {
		return processID{}, err
	}
	go func() { _ = cmd.Wait() }() // its log says why it ended
	return identify(cmd.Process.Pid)
}

// processID is a process that is found again, unless it has ended.
type processID struct {
	PID int
	// Started is the time of its start, in the kernel's ticks since boot. A later process with the number has another.
	Started string
}

func identify(pid int) (processID, error) {
	started, err := startOf(pid)
	return processID{pid, started}, err
}

// open opens a file of the process in /proc.
func (id processID) open(name string) (*os.File, error) {
	if !id.alive() {
		return nil, fmt.Errorf("process %d: %w", id.PID, os.ErrProcessDone)
	}
	return os.Open(filepath.Join("/proc", strconv.Itoa(id.PID), name))
}

func (id processID) alive() bool {
	started, err := startOf(id.PID)
	return err == nil && started == id.Started
}

func (id processID) signal(s syscall.Signal) {
	if id.alive() {
		_ = syscall.Kill(id.PID, s)
	}
}
