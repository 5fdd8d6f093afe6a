package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nftproxy/nftproxy/compiler"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestAConfigurationShapesTheRuleset(t *testing.T) {
	withDefaults := func(change func(*compiler.Config)) compiler.Config {
		c := compiler.Default()
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name, yaml string
		want       compiler.Config
	}{
		{"nothing set", "", compiler.Default()},
		{"the mode said aloud", "mode: nftables", compiler.Default()},
		{"one cluster CIDR", "clusterCIDR: 10.0.0.0/8", withDefaults(func(c *compiler.Config) { c.DetectLocal.CIDRs = prefixes("10.0.0.0/8") })},
		{"two cluster CIDRs", "clusterCIDR: 10.0.0.0/8,fd00::/8", withDefaults(func(c *compiler.Config) { c.DetectLocal.CIDRs = prefixes("10.0.0.0/8", "fd00::/8") })},
		{"a cluster CIDR that another mode ignores", "clusterCIDR: 10.0.0.0/8\ndetectLocalMode: NodeCIDR", withDefaults(func(c *compiler.Config) { c.DetectLocal.NodePodCIDRs = true })},
		{"a bridge", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}", withDefaults(func(c *compiler.Config) { c.DetectLocal.Interface = "cni0" })},
		{"a name prefix", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}", withDefaults(func(c *compiler.Config) { c.DetectLocal.Interface = "cali*" })},
		{"primary addresses", "nodePortAddresses: [primary]", compiler.Default()},
		{"address ranges", "nodePortAddresses: [10.0.0.0/8, \"::/0\"]", withDefaults(func(c *compiler.Config) {
			c.NodePortAddresses = compiler.NodePortAddresses{CIDRs: prefixes("10.0.0.0/8", "::/0")}
		})},
		{"masquerading", "nftables: {masqueradeAll: true, masqueradeBit: 0}", withDefaults(func(c *compiler.Config) { c.MasqueradeAll, c.MasqueradeBit = true, 0 })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse([]byte(header + tt.yaml))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Compiler(c)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestABadConfigurationNamesTheField(t *testing.T) {
	for _, tt := range []struct{ yaml, want string }{
		{"mode: ipvs", `mode: mode "ipvs" is not supported: this kube-proxy programs nftables only`},
		{"clusterCIDR: 10.0.0.1", `clusterCIDR: "10.0.0.1" is not a CIDR`},
		{"clusterCIDR: 10.0.0.0/8,11.0.0.0/8", "clusterCIDR: "},
		{"detectLocalMode: Magic", `detectLocalMode: "Magic" is unknown`},
		{"detectLocalMode: BridgeInterface", "detectLocal.bridgeInterface: required"},
		{"detectLocalMode: InterfaceNamePrefix", "detectLocal.interfaceNamePrefix: required"},
		{"nodePortAddresses: [primary, 10.0.0.0/8]", `nodePortAddresses: "primary" is not a CIDR`},
		{"nftables: {masqueradeBit: 32}", "nftables.masqueradeBit: 32"},
		{"nftables: {masqueradBit: 3}", `unknown field "nftables.masqueradBit"`},
		{"mode: nftables\nmode: nftables", `"mode" already set`},
		{"kind: Service", `"kind" already set`},
	} {
		c, err := Parse([]byte(header + tt.yaml))
		if err == nil {
			_, err = Compiler(c)
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want one with %q", tt.yaml, err, tt.want)
		}
	}
}

func TestErrorsOfAFileNameIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("apiVersion: v1\nkind: Pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), `kind "Pod"`) {
		t.Errorf("a file of another kind: %v", err)
	}
}
