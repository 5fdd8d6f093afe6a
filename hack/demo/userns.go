package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// secondSelf is set in the environment of a process that runSecondSelf started.
const secondSelf = "NFTPROXY_DEMO_SECOND_SELF"

// errSecondSelf says that the second self failed, and has said why.
var errSecondSelf = errors.New("the demo failed in its user namespace")

func isSecondSelf() bool { return os.Getenv(secondSelf) != "" }

// runSecondSelf runs this program again as root of a new user namespace, which may do
// anything to the network namespaces that it makes and nothing to those of the machine.
func runSecondSelf(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), secondSelf+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	// Killing it would cost it the chance to clean up.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("user namespaces are disabled: run as root (%w)", err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %w", errSecondSelf, err)
	}
	return nil
}
