// Package python tests the proxy in Python.
package python

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/nftproxy/nftproxy/integration/backendtest"
	"github.com/nftproxy/nftproxy/integration/flows"
)

func TestConformance(t *testing.T) {
	count := backendtest.Run(t, "../../testdata", backendtest.Program{
		Command: func(target string) *exec.Cmd {
			cmd := exec.Command("python3", "proxy.py")
			cmd.Stdin = bytes.NewReader(backendtest.Lines(t, target))
			return cmd
		},
		Ready: "synced",
		Only: []string{
			"affinity-over-cluster-ip", "cluster-ip-beats-external-ip", "cluster-ip-sctp", "cluster-ip-spreads-over-all-endpoints", "cluster-ip-udp",
			"external-ip-policy-cluster-is-masqueraded", "hairpin-over-cluster-ip", "hints-by-zone", "internal-policy-local-uses-local-endpoints",
			"internal-policy-local-without-local-endpoints-drops", "load-balancer-policy-cluster-is-masqueraded", "no-endpoints-refuses-every-frontend",
			"node-port-policy-cluster-is-masqueraded", "only-ready-endpoints-get-traffic", "same-name-in-two-namespaces", "twelve-endpoints",
		},
		Applies: func(f *flows.Flow) bool {
			if f.Expect.Result == "" {
				f.Expect.Source = flows.Masqueraded
				if f.From == flows.FromNode {
					f.Expect.Source = ""
				}
			}
			return true
		},
	})
	if count.Sent < 50 {
		t.Errorf("%d flows were sent", count.Sent)
	}
}
