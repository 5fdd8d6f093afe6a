package main

import (
	"strings"
	"testing"
)

func TestCompileWarns(t *testing.T) {
	const (
		corpus  = "../../testdata/"
		ranges  = corpus + "source-ranges-of-one-family-leave-the-other-open/"
		gateOff = corpus + "external-ips-are-left-out-with-the-feature-gate-off/"
	)
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{
			name: "of families that source ranges leave open",
			args: []string{"--manifests", ranges + "manifests.yaml"},
			want: []string{
				"ruledump: Service shop/web: everybody may dial its IPv6 load balancer IPs: loadBalancerSourceRanges has no range of the family, or one of length 0",
				"ruledump: Service shop/everyone: everybody may dial its IPv4 IPv6 load balancer IPs: loadBalancerSourceRanges has no range of the family, or one of length 0",
			},
		},
		{
			name: "of nothing where ranges guard both",
			args: []string{"--manifests", corpus + "source-ranges-drop-all-others/manifests.yaml"},
		},
		{
			name: "of a family that nodePortAddresses does not name",
			args: []string{"--manifests", ranges + "manifests.yaml", "--config", corpus + "node-port-addresses-of-one-family-leave-the-other-open/config.yaml"},
			want: []string{"nodePortAddresses: has no IPv6 address, so IPv6 node ports answer on every address of the node but loopback"},
		},
		{
			name: "of nothing where a gate is honoured",
			args: []string{"--manifests", gateOff + "manifests.yaml", "--config", gateOff + "config.yaml"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := run(append([]string{"compile", "--node", "node-1"}, tc.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("does not say %q:\n%s", want, out)
				}
			}
			if len(tc.want) == 0 && strings.Contains(out, "ruledump: ") {
				t.Errorf("warns:\n%s", out)
			}
		})
	}
}
