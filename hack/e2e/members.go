package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// killMembers kills the processes in the nodes' cgroups. Those of a machine whose init process has ended have been
// killed by the kernel; these belong to one that state was lost of.
func killMembers() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		err := filepath.WalkDir(filepath.Join(h.mount, cgroupName), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return ignoreMissing(err)
			}
			members, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			for _, member := range bytes.Fields(members) {
				if pid, err := strconv.Atoi(string(member)); err == nil && pid > 0 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			return ignoreMissing(err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil
	}
	return err
}
