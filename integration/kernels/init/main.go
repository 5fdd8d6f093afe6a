// Command init is the first process of a test machine: it loads the modules, runs the tests that the host wrote
// into the image, says on the console how they ended, and turns the machine off.
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

	"github.com/nftproxy/nftproxy/integration/kernels/internal/protocol"
)

func main() {
	if err := run(); err != nil {
		fmt.Println("init:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("init: power off:", err)
	}
}

func run() error {
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
	data, err := os.ReadFile(protocol.JobFile)
	if err != nil {
		return err
	}
	var job protocol.Job
	if err := json.Unmarshal(data, &job); err != nil {
		return err
	}
	runJob(job)
	return nil
}

func runJob(j protocol.Job) {
	fmt.Println(protocol.Mark + "begin")
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
	fmt.Printf("\n%send %s %.1f\n", protocol.Mark, status, time.Since(start).Seconds())
}

// loadModules loads what the host packed. A module that does not load is said and passed over: the tests
// that need it tell more.
func loadModules() error {
	files, err := filepath.Glob(protocol.Modules + "/*.ko")
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
	return os.RemoveAll(protocol.Modules)
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
