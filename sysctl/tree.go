// Package sysctl sets the same kernel parameters as kube-proxy: connection tracking, and the OOM score of the process.
// The nftables mode needs neither route_localnet (CVE-2020-8558) nor the parameters of IPVS. ip_forward and
// bridge-nf-call-iptables belong to the program that sets up the node.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Tree is the directory tree of kernel parameters. The zero value is the machine's.
type Tree struct {
	// Root is the directory that holds proc and sys. Default "/".
	Root string
}

func (t Tree) path(name string) string { return filepath.Join("/", t.Root, name) }

func (t Tree) read(name string) (string, error) {
	text, err := os.ReadFile(t.path(name))
	return strings.TrimSpace(string(text)), err
}

func (t Tree) readInt(name string) (int, error) {
	text, err := t.read(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

func (t Tree) writeInt(name string, value int) error {
	return os.WriteFile(t.path(name), []byte(strconv.Itoa(value)), 0o644)
}

// readOnly reports whether proc/sys is mounted read-only, as for containers without privileges.
func (t Tree) readOnly() bool {
	var mount unix.Statfs_t
	return unix.Statfs(t.path("proc/sys"), &mount) == nil && mount.Flags&unix.ST_RDONLY != 0
}

// setting is a sysctl and its wanted value.
type setting struct {
	// name is the sysctl as sysctl(8) spells it.
	name  string
	value int
	// atLeast accepts a larger value too.
	atLeast bool
	// leave is the setting with which the sysctl stays as it is.
	leave string
}

func (s *setting) file() string { return "proc/sys/" + strings.ReplaceAll(s.name, ".", "/") }

// holds reports whether a value satisfies the setting.
func (s *setting) holds(value int) bool { return value == s.value || s.atLeast && value > s.value }

// set writes the sysctl unless its value satisfies the setting. A missing sysctl is fs.ErrNotExist.
func (t Tree) set(logger klog.Logger, s setting) error {
	current, err := t.readInt(s.file())
	if err != nil {
		return fmt.Errorf("read sysctl %s: %w", s.name, err)
	}
	if s.holds(current) {
		logger.V(2).Info("Sysctl is right already", "sysctl", s.name, "value", current, "wanted", s.value)
		return nil
	}
	if err := t.writeInt(s.file(), s.value); err != nil {
		return fmt.Errorf("sysctl %s is %d and cannot be set to %d: %w; set it on the host, give this process a writable /proc/sys (privileged, host network), or set %s to leave it alone",
			s.name, current, s.value, reason(err), s.leave)
	}
	logger.Info("Set sysctl", "sysctl", s.name, "value", s.value, "before", current)
	return nil
}

// reason removes the file's path from an error that has the sysctl's name.
func reason(err error) error {
	if pathError := (*fs.PathError)(nil); errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// KernelHasIPv6 reports whether the kernel was built with IPv6 and not started with ipv6.disable=1.
func (t Tree) KernelHasIPv6() bool {
	_, err := os.Stat(t.path("proc/net/if_inet6"))
	return err == nil
}

// HasIPv6 reports whether the kernel has IPv6, and this network namespace does not disable it for all interfaces.
func (t Tree) HasIPv6() bool {
	if !t.KernelHasIPv6() {
		return false
	}
	disabled, err := t.readInt("proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err != nil || disabled == 0
}

// StrictReversePaths returns the interfaces, sorted and without lo, on which the kernel drops IPv4 packets whose source it
// would not answer by the same interface: rp_filter is 1. The larger value of the interface and of "all" counts.
func (t Tree) StrictReversePaths() (interfaces []string) {
	files, _ := filepath.Glob(t.path("proc/sys/net/ipv4/conf/*/rp_filter"))
	all, _ := t.readInt("proc/sys/net/ipv4/conf/all/rp_filter")
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		own, err := t.readInt("proc/sys/net/ipv4/conf/" + name + "/rp_filter")
		if name != "all" && name != "default" && name != "lo" && err == nil && max(own, all) == 1 {
			interfaces = append(interfaces, name)
		}
	}
	return interfaces
}

const oomScoreFile = "proc/self/oom_score_adj"

// SetOOMScoreAdj makes the kernel more (up to 1000) or less (down to -1000) willing to kill this process when memory
// runs out. A lower value than before needs CAP_SYS_RESOURCE. A program should continue after a failure.
func (t Tree) SetOOMScoreAdj(value int) error {
	current, err := t.readInt(oomScoreFile)
	if err != nil {
		return fmt.Errorf("read oom_score_adj: %w", err)
	}
	if current == value {
		return nil
	}
	if err := t.writeInt(oomScoreFile, value); err != nil {
		return fmt.Errorf("oom_score_adj is %d and cannot be set to %d: %w; it may be -1000 to 1000, and lowering it needs CAP_SYS_RESOURCE", current, value, reason(err))
	}
	return nil
}
