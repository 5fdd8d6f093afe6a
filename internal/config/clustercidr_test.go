package config

import (
	"strings"
	"testing"
)

func TestMissing(t *testing.T) {
	for _, tt := range []struct {
		name, document string
		// want is how the warning starts; empty for none.
		want string
	}{
		{"nothing set", header1, "clusterCIDR: not set"},
		{"nothing set in v1alpha2", header2, "detectLocal.clusterCIDRs: not set"},
		{"the mode said aloud", header1 + "detectLocalMode: ClusterCIDR", "clusterCIDR: not set"},
		{"an empty string", header1 + `clusterCIDR: ""`, "clusterCIDR: not set"},
		{"a range", header1 + "clusterCIDR: 10.244.0.0/16", ""},
		{"a range in v1alpha2", header2 + "detectLocal: {clusterCIDRs: [10.244.0.0/16]}", ""},
		{"another mode", header1 + "detectLocalMode: NodeCIDR", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Join(parse(t, tt.document).Warnings, "\n")
			if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("warnings %q, want one that starts with %q", got, tt.want)
			}
		})
	}
}
