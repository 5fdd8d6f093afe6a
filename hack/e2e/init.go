package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machineInit and nodeInit are the first processes of a machine and of a node: they mount what is the place's own, say
// that it is ready, and then wait for processes that nobody else waits for.
const (
	machineInit = "e2e-machine-init"
	nodeStart   = "e2e-node-start"
	nodeInit    = "e2e-node-init"
	ready       = "ready\n"
)

func init() {
	// Namespaces are a thread's own. Those of the first thread are the process's.
	runtime.LockOSThread()
}

func runMachineInit([]string) error {
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		mount("proc", "/proc", "proc", ""),
		mount("tmpfs", "/run", "tmpfs", "mode=755"),
		unix.Sethostname([]byte("machine")),
	); err != nil {
		return err
	}
	return serveAsInit()
}

// serveAsInit waits for orphans. Who ends it ends the place: the kernel kills all processes of its namespace.
func serveAsInit() error {
	if _, err := os.Stdout.WriteString(ready); err != nil {
		return err
	}
	os.Stdout.Close()
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err == unix.ECHILD {
			unix.Pause()
		}
	}
}

// ownNamespaces are those that an init process is started with. A node's cgroup namespace comes later: it begins where
// its process is.
const ownNamespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// runNodeStart starts a node's init process. It runs in the machine: a thread that has only entered the machine may not
// make a namespace for processes.
func runNodeStart(args []string) error {
	cmd := ownProgram(nodeInit, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr.Cloneflags = ownNamespaces
	return cmd.Start()
}

// runNodeInit takes the node's name, its directory, and its cgroups.
func runNodeInit(args []string) error {
	name, dir, cgroups := args[0], args[1], args[2:]
	for _, c := range cgroups {
		if err := join(c, os.Getpid()); err != nil {
			return err
		}
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	if err := errors.Join(
		unix.Unshare(unix.CLONE_NEWCGROUP),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		mount("proc", "/proc", "proc", ""),
		mount("sysfs", "/sys", "sysfs", ""),
		mountCgroups(all),
		mount("tmpfs", "/run", "tmpfs", "mode=755"),
		mount("tmpfs", "/dev/shm", "tmpfs", ""),
		mountOwn(dir),
		hideTunables(dir),
		// kubelet passes mounts on to containers.
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""),
		unix.Sethostname([]byte(name)),
	); err != nil {
		return err
	}
	return serveAsInit()
}

func mount(source, target, kind, data string) error {
	if err := unix.Mount(source, target, kind, 0, data); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	return nil
}

func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	return nil
}

// mountCgroups shows the node its own cgroup as the root of each hierarchy.
func mountCgroups(all []hierarchy) error {
	const root = "/sys/fs/cgroup"
	if all[0].v2() {
		leaf := filepath.Join(root, "init") // one with controllers for its children has no processes
		return errors.Join(mount("cgroup2", root, "cgroup2", ""), os.Mkdir(leaf, 0o755), join(leaf, 1), enableControllers(root))
	}
	if err := mount("tmpfs", root, "tmpfs", "mode=755"); err != nil {
		return err
	}
	for _, h := range all {
		options := strings.Join(h.controllers, ",")
		dir := filepath.Join(root, strings.TrimPrefix(options, "name="))
		if err := errors.Join(os.Mkdir(dir, 0o755), mount("cgroup", dir, "cgroup", options)); err != nil {
			return err
		}
		if len(h.controllers) == 1 {
			continue
		}
		for _, c := range h.controllers {
			if err := os.Symlink(options, filepath.Join(root, c)); err != nil {
				return err
			}
		}
	}
	return nil
}

// owned are directories that each node has for itself.
var owned = []string{"/var/lib", "/var/log"}

func mountOwn(dir string) error {
	for _, target := range owned {
		source := filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(target, "/"), "/", "-"))
		if err := errors.Join(os.MkdirAll(source, 0o755), bind(source, target)); err != nil {
			return err
		}
	}
	return nil
}

// tunables are settings of the whole kernel, with the values that kubelet wants. Each node has files in their places:
// kubelet finds its values there, and this machine's own stay.
var tunables = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

func hideTunables(dir string) error {
	for name, value := range tunables {
		file := filepath.Join(dir, "sysctl-"+strings.ReplaceAll(name, "/", "-"))
		if err := errors.Join(os.WriteFile(file, []byte(value+"\n"), 0o644), bind(file, filepath.Join("/proc/sys", name))); err != nil {
			return err
		}
	}
	return nil
}
