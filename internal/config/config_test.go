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

const (
	header1 = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	header2 = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func parse(t testing.TB, document string) *File {
	t.Helper()
	f, err := Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCompiler(t *testing.T) {
	t.Run("the configuration shapes the ruleset", testConfigurationShapesTheRuleset)
	t.Run("other modes can be read but not compiled", testOtherModesCanBeReadButNotCompiled)
}

func testConfigurationShapesTheRuleset(t *testing.T) {
	withDefaults := func(change func(*compiler.Config)) compiler.Config {
		c := compiler.Default()
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name, document string
		want           compiler.Config
	}{
		{"nothing set", header1, compiler.Default()},
		{"nothing set in v1alpha2", header2, compiler.Default()},
		{"the mode said aloud", header1 + "mode: nftables", compiler.Default()},
		{"one cluster CIDR", header1 + "clusterCIDR: 10.0.0.0/8", withDefaults(func(c *compiler.Config) { c.DetectLocal.CIDRs = prefixes("10.0.0.0/8") })},
		{"two cluster CIDRs", header1 + "clusterCIDR: 10.0.0.0/8,fd00::/8", withDefaults(func(c *compiler.Config) { c.DetectLocal.CIDRs = prefixes("10.0.0.0/8", "fd00::/8") })},
		{"two cluster CIDRs in v1alpha2", header2 + "detectLocal: {clusterCIDRs: [10.0.0.0/8, \"fd00::/8\"]}", withDefaults(func(c *compiler.Config) { c.DetectLocal.CIDRs = prefixes("10.0.0.0/8", "fd00::/8") })},
		{"numbers with leading zeros", header1 + "clusterCIDR: 010.000.0.0/8", withDefaults(func(c *compiler.Config) { c.DetectLocal.CIDRs = prefixes("10.0.0.0/8") })},
		{"a cluster CIDR that another mode ignores", header1 + "clusterCIDR: 10.0.0.0/8\ndetectLocalMode: NodeCIDR", withDefaults(func(c *compiler.Config) { c.DetectLocal.NodePodCIDRs = true })},
		{"a bridge", header1 + "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}", withDefaults(func(c *compiler.Config) { c.DetectLocal.Interface = "cni0" })},
		{"a name prefix", header1 + "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}", withDefaults(func(c *compiler.Config) { c.DetectLocal.Interface = "cali*" })},
		{"primary addresses", header1 + "nodePortAddresses: [primary]", compiler.Default()},
		{"address ranges", header1 + "nodePortAddresses: [10.0.0.0/8, \"::/0\"]", withDefaults(func(c *compiler.Config) {
			c.NodePortAddresses = compiler.NodePortAddresses{CIDRs: prefixes("10.0.0.0/8", "::/0")}
		})},
		{"every keyword", header1 + "nodePortAddresses: [all, primary, localhost]", withDefaults(func(c *compiler.Config) {
			c.NodePortAddresses = compiler.NodePortAddresses{Primary: true, CIDRs: prefixes("0.0.0.0/0", "::/0", "127.0.0.0/8", "::1/128")}
		})},
		{"addresses of IPv4 alone: IPv6 everywhere", header1 + "nodePortAddresses: [10.0.0.0/8]", withDefaults(func(c *compiler.Config) {
			c.NodePortAddresses = compiler.NodePortAddresses{CIDRs: prefixes("10.0.0.0/8", "::/0")}
		})},
		{"loopback of IPv6 alone: IPv4 everywhere", header1 + "nodePortAddresses: [\"::1/128\"]", withDefaults(func(c *compiler.Config) {
			c.NodePortAddresses = compiler.NodePortAddresses{CIDRs: prefixes("::1/128", "0.0.0.0/0")}
		})},
		{"the keyword primary names both families", header1 + "nodePortAddresses: [primary, 10.0.0.0/8]", withDefaults(func(c *compiler.Config) {
			c.NodePortAddresses = compiler.NodePortAddresses{Primary: true, CIDRs: prefixes("10.0.0.0/8")}
		})},
		{"the keyword localhost names both families", header1 + "nodePortAddresses: [localhost]", withDefaults(func(c *compiler.Config) {
			c.NodePortAddresses = compiler.NodePortAddresses{CIDRs: prefixes("127.0.0.0/8", "::1/128")}
		})},
		{"masquerading", header1 + "mode: nftables\nnftables: {masqueradeAll: true, masqueradeBit: 0}", withDefaults(func(c *compiler.Config) { c.MasqueradeAll, c.MasqueradeBit = true, 0 })},
		{"masquerading in v1alpha2", header2 + "linux: {masqueradeAll: true}\nnftables: {masqueradeBit: 0}", withDefaults(func(c *compiler.Config) { c.MasqueradeAll, c.MasqueradeBit = true, 0 })},
		{"without a mode, what kube-proxy would have taken from iptables", header1 + "iptables: {masqueradeAll: true, masqueradeBit: 3}", withDefaults(func(c *compiler.Config) { c.MasqueradeAll, c.MasqueradeBit = true, 3 })},
		{"in mode nftables, nothing from iptables", header1 + "mode: nftables\niptables: {masqueradeAll: true, masqueradeBit: 3}", compiler.Default()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Compiler(parse(t, tt.document).Config)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func testOtherModesCanBeReadButNotCompiled(t *testing.T) {
	for _, mode := range []string{"iptables", "ipvs", "kernelspace"} {
		f := parse(t, header1+"mode: "+mode)
		if _, err := Compiler(f.Config); err == nil || !strings.Contains(err.Error(), `does not have the mode "`+mode+`"; set it to "nftables"`) {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
}

func TestLoopbackNodePorts(t *testing.T) {
	t.Run("are those that are named", testLoopbackNodePortsAreThoseThatAreNamed)
}

func testLoopbackNodePortsAreThoseThatAreNamed(t *testing.T) {
	for _, tt := range []struct {
		name, yaml string
		want       []netip.Prefix
	}{
		{"by default none", "", nil},
		{"not by all", "nodePortAddresses: [all]", nil},
		{"the keyword", "nodePortAddresses: [primary, localhost]", prefixes("127.0.0.0/8", "::1/128")},
		{"a prefix", "nodePortAddresses: [127.0.0.1/32, 10.0.0.0/8]", prefixes("127.0.0.1/32")},
		{"not by an unnamed family", "nodePortAddresses: [10.0.0.0/8]", nil},
		{"not with all alpha gates off", "nodePortAddresses: [localhost]\nfeatureGates: {AllAlpha: false}", nil},
		{"with all beta gates off", "nodePortAddresses: [localhost]\nfeatureGates: {AllBeta: false}", prefixes("127.0.0.0/8", "::1/128")},
		{"not with the gate off", "nodePortAddresses: [localhost]\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: false}", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, LoopbackNodePorts(parse(t, header1+tt.yaml).Config), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOpenNodePorts(t *testing.T) {
	t.Run("families that are not named are warned about", testUnnamedNodePortFamiliesAreWarnedAbout)
}

func testUnnamedNodePortFamiliesAreWarnedAbout(t *testing.T) {
	for _, tt := range []struct{ name, yaml, want string }{
		{"by default none", "", ""},
		{"both named", `nodePortAddresses: [10.0.0.0/8, "fd00::/8"]`, ""},
		{"primary names both", "nodePortAddresses: [primary]", ""},
		{"IPv6 is not named", "nodePortAddresses: [10.0.0.0/8]", "nodePortAddresses: has no IPv6 address"},
		{"IPv4 is not named", `nodePortAddresses: ["fd00::/8"]`, "nodePortAddresses: has no IPv4 address"},
		{"IPv6 is meant to be open", `nodePortAddresses: [10.0.0.0/8, "::/0"]`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// With a clusterCIDR, so that nothing else is worth a warning.
			warnings := parse(t, header1+"clusterCIDR: 10.244.0.0/16\n"+tt.yaml).Warnings
			if got := strings.Join(warnings, "; "); !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" || len(warnings) > 1 {
				t.Errorf("warnings %q, want %q", warnings, tt.want)
			}
		})
	}
}

func TestNodeIPOverride(t *testing.T) {
	t.Run("takes addresses only", testNodeIPsAreOverriddenByWhatIsAnAddress)
}

func testNodeIPsAreOverriddenByWhatIsAnAddress(t *testing.T) {
	for _, tt := range []struct {
		document string
		want     []netip.Addr
	}{
		{header1, nil},
		{header1 + "bindAddress: 0.0.0.0", nil},
		{header1 + "bindAddress: '::'", nil},
		{header1 + "bindAddress: 192.0.2.01", []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		{header2 + "nodeIPOverride: ['2001:db8::1', 192.0.2.1]", []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1")}},
	} {
		if diff := cmp.Diff(tt.want, NodeIPOverride(parse(t, tt.document).Config), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.document, diff)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Run("those of a file name it", testErrorsOfAFileNameIt)
	t.Run("name file field and remedy", testErrorsNameFileFieldAndRemedy)
}

func testErrorsOfAFileNameIt(t *testing.T) {
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
