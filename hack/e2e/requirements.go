package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// needed are programs of this machine, and Debian's packages that have them.
var needed = map[string]string{
	"containerd": "containerd", "ctr": "containerd", "containerd-shim-runc-v2": "containerd", "runc": "runc",
	filepath.Join(pluginDir, "ptp"): "containernetworking-plugins", "mmdebstrap": "mmdebstrap", "iptables": "iptables",
}

// kubernetesPrograms are those of make kubernetes that a cluster runs.
var kubernetesPrograms = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "kube-proxy", "agnhost", "regression-issue-74839", "ginkgo", "e2e.test"}

const memoryNeeded = 8 << 30

// complete fills in the directory of Kubernetes' programs.
func (o *options) complete(ctx context.Context) error {
	if o.programs != "" {
		return nil
	}
	cmd := exec.CommandContext(ctx, o.goCommand, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	cmd.Dir, cmd.Env = "kubernetes", append(os.Environ(), "GOWORK=off")
	version, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("the version of Kubernetes: %w (run it in the repository's root)", err)
	}
	o.programs, err = filepath.Abs(filepath.Join("bin/kubernetes", strings.TrimSpace(string(version))))
	return err
}

// require says everything that this machine lacks.
func (o options) require() error {
	var lacks []error
	if os.Getuid() != 0 {
		lacks = append(lacks, errors.New("root"))
	}
	for name, pkg := range needed {
		if _, err := exec.LookPath(name); err != nil {
			lacks = append(lacks, fmt.Errorf("%s (apt-get install %s)", filepath.Base(name), pkg))
		}
	}
	for _, name := range kubernetesPrograms {
		if _, err := os.Stat(filepath.Join(o.programs, name)); err != nil {
			lacks = append(lacks, fmt.Errorf("%s (make kubernetes): %w", name, err))
		}
	}
	if _, err := os.Stat(filepath.Join(o.binaries, "kube-proxy")); err != nil {
		lacks = append(lacks, fmt.Errorf("this module's kube-proxy (make build): %w", err))
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return err
	}
	// A machine of 8 GB has a little less for programs.
	if memory := info.Totalram * uint64(info.Unit); memory < memoryNeeded*9/10 {
		lacks = append(lacks, fmt.Errorf("8 GB of memory: it has %d MB", memory>>20))
	}
	if _, err := hierarchies(); err != nil {
		lacks = append(lacks, err)
	}
	if len(lacks) > 0 {
		return fmt.Errorf("make e2e lacks\n%w", errors.Join(lacks...))
	}
	return nil
}
