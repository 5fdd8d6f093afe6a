package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Paths in the machine, for the host and for the first process.
const (
	sourceDir   = "/src"      // the module's files, so that tests find their data
	binariesDir = "/binaries" // the tests, kube-proxy and ruledump
	modulesDir  = "/modules"  // 000-name.ko, 001-name.ko, …: to be loaded in this order
	jobFile     = "/job.json" // a job
)

// A job is one run of a test binary.
type job struct {
	// Dir is the working directory.
	Dir string
	// Path is the path of the binary.
	Path string
	// Args are its arguments.
	Args []string
	Env  []string // beside what every job has
}

// Lines on the console that are not the tests' own begin with mark.
//
//	mark begin
//	mark end STATUS SECONDS
const mark = "=@= "

// firstProcess loads the modules, runs the tests that the host wrote into the image, prints on the console how they
// ended, and turns the machine off.
func firstProcess() {
	if err := runInMachine(); err != nil {
		fmt.Println("init:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("init: power off:", err)
	}
}

func runInMachine() error {
	for _, m := range []struct{ target, kind string }{{"/proc", "proc"}, {"/sys", "sysfs"}, {"/dev", "devtmpfs"}, {"/tmp", "tmpfs"}, {"/run", "tmpfs"}} {
		if err := unix.Mount(m.kind, m.target, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := os.Symlink("/proc/self/fd", "/dev/fd"); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	// An emulated processor falls behind with packets, and the kernel drops those beyond 1,000.
	if err := os.WriteFile("/proc/sys/net/core/netdev_max_backlog", []byte("100000"), 0o644); err != nil {
		return err
	}
	data, err := os.ReadFile(jobFile)
	if err != nil {
		return err
	}
	var j job
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	runJob(j)
	return nil
}

func runJob(j job) {
	fmt.Println(mark + "begin")
	start := time.Now()
	cmd := exec.Command(j.Path, j.Args...)
	cmd.Dir = j.Dir
	cmd.Env = []string{"PATH=/bin:/binaries", "HOME=/root", "TMPDIR=/tmp", "CI=true"}
	cmd.Env = append(cmd.Env, j.Env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	status := "ok"
	if err := cmd.Run(); err != nil {
		status = strings.ReplaceAll(err.Error(), " ", "-")
	}
	fmt.Printf("\n%send %s %.1f\n", mark, status, time.Since(start).Seconds())
}

// loadModules loads what the host packed. It reports a module that does not load and goes on: the tests that need it
// tell more.
func loadModules() error {
	files, err := filepath.Glob(modulesDir + "/*.ko")
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := unix.InitModule(data, ""); err != nil && err != unix.EEXIST {
			fmt.Printf("init: %s: %v\n", filepath.Base(file), err)
		}
	}
	return os.RemoveAll(modulesDir)
}

func loopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, request); err != nil {
		return err
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}
