// Package python tests the proxy in Python.
package python

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

func TestConformance(t *testing.T) {
	count := flows.Program{
		Command: func(target string) *exec.Cmd {
			// As proxy.py says how to run it. A process group of its own, so that all three processes end together.
			cmd := exec.Command("sh", "-c", `"$0" node-local-watch --node-local-source "$1" --hostname-override "$2" -o jsonl | python3 proxy.py`,
				lab.Binary(t, "kube-proxy"), target, lab.NodeName)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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
	}.Run(t)
	if count.Sent < 50 {
		t.Errorf("%d flows were sent", count.Sent)
	}
}
