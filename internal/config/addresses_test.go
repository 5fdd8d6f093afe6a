package config

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// FuzzAddresses shows that text in place of addresses and prefixes, in a flag or a file, is refused in one line that
// names the field, or becomes valid prefixes without host bits.
func FuzzAddresses(f *testing.F) {
	for _, text := range []string{"10.244.0.0/16,fd00:10:244::/48", "primary,localhost", "::", "10.0.0.1/33", "010.0.0.0/8", "::ffff:10.0.0.0/104", ",", "fe80::1%eth0/64", "10.0.0.1/8"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list := strings.Split(text, ",")
		for field, document := range map[string]map[string]any{
			"clusterCIDRs":      {"detectLocal": map[string]any{"clusterCIDRs": list}},
			"nodePortAddresses": {"nodePortAddresses": list},
			"nodeIPOverride":    {"nodeIPOverride": list},
		} {
			document["apiVersion"], document["kind"] = "kubeproxy.config.k8s.io/v1alpha2", "KubeProxyConfiguration"
			data, err := yaml.Marshal(document)
			if err != nil {
				t.Skip("no YAML file has these characters: ", err)
			}
			file, err := Parse(data)
			if err != nil {
				if !strings.Contains(err.Error(), field) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s %q is refused by %q", field, text, err)
				}
				continue
			}
			c, err := Compiler(file.Config)
			if err != nil {
				t.Fatalf("%s %q does not compile: %v", field, text, err)
			}
			for _, prefix := range append(c.DetectLocal.CIDRs, c.NodePortAddresses.CIDRs...) {
				if !prefix.IsValid() || prefix != prefix.Masked() {
					t.Errorf("%s %q becomes the prefix %s", field, text, prefix)
				}
			}
			for _, ip := range NodeIPOverride(file.Config) {
				if !ip.IsValid() || ip.Zone() != "" {
					t.Errorf("%s %q becomes the address %s", field, text, ip)
				}
			}
		}
	})
}

func TestMissing(t *testing.T) {
	for _, tt := range []struct {
		name, document string
		// want is the start of the warning; empty for none.
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
