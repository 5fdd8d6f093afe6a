package main

import (
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
)

func TestChanges(t *testing.T) {
	flows.Program{Command: flows.Command(t)}.RunChange(t)
}

func TestConformance(t *testing.T) {
	count := flows.Program{
		Command: flows.Command(t),
		Ready:   "synced",
		Applies: func(f *flows.Flow) bool { return true },
	}.Run(t)
	if count.Sent < 100 {
		t.Errorf("%d flows were sent", count.Sent)
	}
}
