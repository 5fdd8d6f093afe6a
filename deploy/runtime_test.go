package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// container is a process with what a container runtime gives it: a root directory, a /proc,
// and certain capabilities. Its network is that of the thread that starts it.
type container struct {
	Root    string
	Command []string
	Env     []string
	// Privileged gives it all capabilities and a writable /proc/sys; else it gets Capabilities.
	Privileged             bool
	Capabilities           []uintptr
	ReadOnlyRootFilesystem bool
}

// containerVariable holds a container, for the process that becomes it.
const containerVariable = "NFTPROXY_TEST_CONTAINER"

// TestMain is also the container runtime: the test program starts itself in a mount namespace
// of its own, and that process turns into the container's.
func TestMain(m *testing.M) {
	if text := os.Getenv(containerVariable); text != "" {
		var c container
		err := json.Unmarshal([]byte(text), &c)
		if err == nil {
			err = c.become()
		}
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(125)
	}
	var err error
	if imageDir, err = os.MkdirTemp("", "nftproxy-image"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(imageDir)
	os.Exit(code)
}

// command returns the command that runs the container.
func (c container) command(t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{containerVariable + "=" + string(text)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	return cmd
}

// become replaces the process by the container's. It returns only with an error.
func (c container) become() error {
	runtime.LockOSThread() // capabilities belong to the thread
	if err := c.mount(); err != nil {
		return err
	}
	if err := unix.Chroot(c.Root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if !c.Privileged {
		if err := c.dropCapabilities(); err != nil {
			return fmt.Errorf("drop capabilities: %w", err)
		}
	}
	return fmt.Errorf("%s: %w", c.Command[0], unix.Exec(c.Command[0], c.Command, c.Env))
}

func (c container) mount() error {
	for _, m := range c.mounts() {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

type mount struct {
	source, target, kind string
	flags                uintptr
}

func (c container) mounts() []mount {
	const readOnly = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY
	proc := filepath.Join(c.Root, "proc")
	mounts := []mount{
		{target: "/", flags: unix.MS_REC | unix.MS_PRIVATE},
		{c.Root, c.Root, "", unix.MS_BIND},
		{"proc", proc, "proc", unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV},
	}
	if !c.Privileged {
		sysctls := filepath.Join(proc, "sys")
		mounts = append(mounts, mount{sysctls, sysctls, "", unix.MS_BIND}, mount{target: sysctls, flags: readOnly})
	}
	if c.ReadOnlyRootFilesystem {
		mounts = append(mounts, mount{target: c.Root, flags: readOnly})
	}
	return mounts
}

// dropCapabilities leaves the container's capabilities, and makes sure that no program gains others.
func (c container) dropCapabilities() error {
	var kept [2]unix.CapUserData
	for capability := uintptr(0); capability <= unix.CAP_LAST_CAP; capability++ {
		if slices.Contains(c.Capabilities, capability) {
			kept[capability/32].Permitted |= 1 << (capability % 32)
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
			return err
		}
	}
	for i := range kept {
		kept[i].Effective = kept[i].Permitted
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&header, &kept[0]); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
