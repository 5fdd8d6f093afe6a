package main

import (
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/proxytest"
)

func TestChanges(t *testing.T) {
	flows.Program{Command: flows.Command(t)}.RunChange(t)
}

func TestConformance(t *testing.T) {
	if report := proxytest.ForTest(t, proxytest.ExampleCommand(t), "chains"); report.Count(proxytest.Same) < 80 {
		t.Errorf("%d cases are the same", report.Count(proxytest.Same))
	}
}
