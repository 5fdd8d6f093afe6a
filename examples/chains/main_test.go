package main

import (
	"testing"

	"github.com/nftproxy/nftproxy/integration/backendtest"
	"github.com/nftproxy/nftproxy/integration/flows"
)

func TestChanges(t *testing.T) {
	backendtest.Change(t, backendtest.Program{Command: backendtest.Command(t)})
}

func TestConformance(t *testing.T) {
	count := backendtest.Run(t, backendtest.Program{
		Command: backendtest.Command(t),
		Ready:   "synced",
		Applies: func(f *flows.Flow) bool { return true },
	})
	if count.Sent < 100 {
		t.Errorf("%d flows were sent", count.Sent)
	}
}
