package main

import (
	"os/exec"
	"testing"

	"github.com/nftproxy/nftproxy/integration/backendtest"
	"github.com/nftproxy/nftproxy/integration/flows"
)

// command builds the program and returns how to run it.
func command(t *testing.T) func(target string) *exec.Cmd {
	program := backendtest.Build(t)
	return func(target string) *exec.Cmd {
		return exec.Command(program, "-node-local-source", target, "-hostname-override", "node-1", "-cluster-cidr", "10.244.0.0/16", "-cluster-cidr", "fd00:10:244::/48")
	}
}

func TestChanges(t *testing.T) { backendtest.Change(t, backendtest.Program{Command: command(t)}) }

func TestConformance(t *testing.T) {
	count := backendtest.Run(t, "../../testdata", backendtest.Program{
		Command: command(t),
		Ready:   "synced",
		Applies: func(f *flows.Flow) bool { return true },
	})
	if count.Sent < 100 {
		t.Errorf("%d flows were sent", count.Sent)
	}
}
