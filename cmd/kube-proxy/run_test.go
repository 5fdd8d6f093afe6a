package main

import (
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
)

func TestMissingPrimaryFamily(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10::/48")
	ip4, ip6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		name  string
		local compiler.DetectLocal
		node  model.Node
		want  string
	}{
		{"only the other family", compiler.DetectLocal{CIDRs: []netip.Prefix{v6}}, model.Node{Name: "n", IPs: []netip.Addr{ip4, ip6}}, "clusterCIDR: no range of IPv4"},
		{"IPv6 first", compiler.DetectLocal{CIDRs: []netip.Prefix{v4}}, model.Node{Name: "n", IPs: []netip.Addr{ip6, ip4}}, "clusterCIDR: no range of IPv6"},
		{"both", compiler.DetectLocal{CIDRs: []netip.Prefix{v4, v6}}, model.Node{Name: "n", IPs: []netip.Addr{ip6, ip4}}, ""},
		{"none", compiler.DetectLocal{}, model.Node{Name: "n", IPs: []netip.Addr{ip6}}, ""},
		{"no address yet", compiler.DetectLocal{CIDRs: []netip.Prefix{v4}}, model.Node{Name: "n"}, ""},
		{"pod CIDRs of the other family", compiler.DetectLocal{NodePodCIDRs: true}, model.Node{Name: "n", IPs: []netip.Addr{ip4}, PodCIDRs: []netip.Prefix{v6}}, "the Node's podCIDRs: no range of IPv4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := missingPrimaryFamily(tt.local, &tt.node)
			if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("warning %q, want %q", got, tt.want)
			}
		})
	}
}

func TestReturnMemory(t *testing.T) {
	const size = 64 << 20
	garbage := make([]byte, size)
	for i := 0; i < len(garbage); i += 4096 {
		garbage[i] = 1
	}
	inUse := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapSys - stats.HeapReleased
	}
	before := inUse()
	runtime.KeepAlive(garbage)
	returnMemory(time.Millisecond)
	for deadline := time.Now().Add(10 * time.Second); inUse()+size/2 > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("of %d MB in use, with %d MB of garbage among them, %d MB are still there", before>>20, size>>20, inUse()>>20)
		}
	}
}

func TestClusterCIDR(t *testing.T) {
	for _, tt := range []struct{ name, args, want string }{
		{"missing, the flag is named", "", "--cluster-cidr: not set"},
		{"missing, another mode is named", "", "or choose another --detect-local-mode"},
		{"given", "--cluster-cidr=10.0.0.0/8", ""},
		{"not needed", "--detect-local-mode=NodeCIDR", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Join(mustParse(t, strings.Fields(tt.args)...).warnings, "\n")
			if !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("warnings %q, want %q", got, tt.want)
			}
		})
	}
}
