package main

import (
	"strings"
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
		Applies: func(f *flows.Flow) bool {
			if f.Protocol != flows.TCP && f.Protocol != flows.UDP {
				return false
			}
			switch f.Expect.Result {
			case "":
				f.Expect.Source = flows.Masqueraded // endpoints see the proxy
				if f.From == flows.FromNode {
					f.Expect.Source = "" // which has the same address
				}
			case flows.Dropped:
				return false // a socket that listens accepts
			}
			return true
		},
		Without: map[string]string{
			"an-endpoint-may-have-the-address-of-a-refused-node-port": "the kernel refuses only where nobody else listens",
		},
		// The kernel refuses a TCP connection to a port of its own with a reset.
		Excused: func(f *flows.Failure) bool {
			return f.Flow.Protocol == flows.TCP && f.Flow.Expect.Result == flows.Refused && strings.HasPrefix(f.Reason, "was reset")
		},
	}.Run(t)
	if count.Sent < 100 {
		t.Errorf("%d flows were sent", count.Sent)
	}
}
