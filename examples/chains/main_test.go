package main

import (
	"os/exec"
	"testing"

	"github.com/nftproxy/nftproxy/integration/backendtest"
	"github.com/nftproxy/nftproxy/integration/flows"
)

func TestConformance(t *testing.T) {
	program := backendtest.Build(t)
	count := backendtest.Run(t, "../../testdata", backendtest.Program{
		Command: func(target string) *exec.Cmd {
			return exec.Command(program, "-node-local-source", target, "-hostname-override", "node-1", "-cluster-cidr", "10.244.0.0/16", "-cluster-cidr", "fd00:10:244::/48")
		},
		Ready:   "synced",
		Applies: func(f *flows.Flow) bool { return true },
	})
	if count.Sent < 100 {
		t.Errorf("%d flows were sent", count.Sent)
	}
}
