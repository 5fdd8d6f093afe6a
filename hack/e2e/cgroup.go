package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cgroupName is the cgroup with a cgroup for each node.
const cgroupName = "nftproxy-e2e"

// hierarchy is a mounted hierarchy of cgroups.
type hierarchy struct {
	// mount is the path of its mount point.
	mount string
	// controllers are those of version 1, or the name of systemd's hierarchy, which kubelet asks for: name=systemd. A
	// hierarchy of version 2 has none here.
	controllers []string
}

func (h hierarchy) v2() bool { return len(h.controllers) == 0 }

// dir is the cgroup of a node.
func (h hierarchy) dir(node string) string { return filepath.Join(h.mount, cgroupName, node) }

// hierarchies returns those with controllers: several of version 1, or the one of version 2.
func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	found := parseHierarchies(string(mounts))
	if len(found) == 0 {
		return nil, errors.New("no hierarchy of cgroups is mounted")
	}
	return found, nil
}

const systemdHierarchy = "name=systemd"

// v1Controllers are what a mount's options can name. Other options are no controllers.
var v1Controllers = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "perf_event", "net_cls", "net_prio", "rdma", "misc"}

func parseHierarchies(mountinfo string) (v1 []hierarchy) {
	var v2 []hierarchy
	for line := range strings.Lines(mountinfo) {
		before, after, found := strings.Cut(line, " - ")
		mount, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(mount) < 5 || len(kind) < 3 {
			continue
		}
		switch kind[0] {
		case "cgroup2":
			v2 = append(v2, hierarchy{mount: mount[4]})
		case "cgroup":
			h := hierarchy{mount: mount[4]}
			for _, option := range strings.Split(kind[2], ",") {
				if slices.Contains(v1Controllers, option) || option == systemdHierarchy {
					h.controllers = append(h.controllers, option)
				}
			}
			// One may be mounted twice.
			if len(h.controllers) > 0 && !slices.ContainsFunc(v1, func(o hierarchy) bool { return slices.Equal(o.controllers, h.controllers) }) {
				v1 = append(v1, h)
			}
		}
	}
	if slices.ContainsFunc(v1, func(h hierarchy) bool { return slices.Contains(h.controllers, "memory") }) {
		return v1
	}
	return v2[:min(len(v2), 1)]
}

// make makes a node's cgroup.
func (h hierarchy) make(node string) error {
	dir := h.dir(node)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if h.v2() {
		return errors.Join(enableControllers(h.mount), enableControllers(filepath.Dir(dir)))
	}
	if slices.Contains(h.controllers, "cpuset") {
		return errors.Join(inheritCpuset(filepath.Dir(dir)), inheritCpuset(dir))
	}
	return nil
}

// inheritCpuset gives a cgroup of version 1 the processors and memory of its parent. It has none at first.
func inheritCpuset(dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// enableControllers gives the children of a cgroup of version 2 all its controllers.
func enableControllers(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("controller %s: %w", c, err)
		}
	}
	return nil
}

// join moves a process to a cgroup.
func join(dir string, pid int) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.AppendInt(nil, int64(pid), 10), 0o644)
}

// removeCgroups removes the cgroups of all nodes. Their processes have been killed, and may still be ending.
func removeCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		root := filepath.Join(h.mount, cgroupName)
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			err := removeTree(root)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return err
			}
		}
	}
	return nil
}

// removeTree removes a cgroup and those in it.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	slices.Reverse(dirs)
	for _, dir := range dirs {
		if removed := os.Remove(dir); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}
	return err
}
