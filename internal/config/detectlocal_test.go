package config

import (
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
)

func TestDetectLocalProblem(t *testing.T) {
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	routed := netip.MustParsePrefix("10.244.0.0/16")
	n := NodeNetwork{
		Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fe80::1")}, Interfaces: []string{"eth0", "veth1"},
		LeadsInto: func(p netip.Prefix) (bool, error) { return p == routed, nil },
	}
	for name, tt := range map[string]struct {
		local compiler.DetectLocal
		want  string
	}{
		"a network with a route":           {compiler.DetectLocal{CIDRs: prefixes("10.244.0.0/16")}, ""},
		"one of two networks has a route":  {compiler.DetectLocal{CIDRs: prefixes("10.9.0.0/16", "10.244.0.0/16")}, ""},
		"no network has a route":           {compiler.DetectLocal{CIDRs: prefixes("10.9.0.0/16", "10.8.0.0/16")}, "no route or address of this node is in 10.9.0.0/16"},
		"a family that the node lacks":     {compiler.DetectLocal{CIDRs: prefixes("10.244.0.0/16", "fd00::/8")}, ""},
		"an interface":                     {compiler.DetectLocal{Interface: "veth1"}, ""},
		"no such interface":                {compiler.DetectLocal{Interface: "veth"}, "there is no interface veth"},
		"the beginning of an interface":    {compiler.DetectLocal{Interface: "veth*"}, ""},
		"no interface with this beginning": {compiler.DetectLocal{Interface: "cali*"}, "no interface begins with cali"},
		"nothing":                          {compiler.DetectLocal{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := DetectLocalProblem(tt.local, n); got != tt.want || err != nil {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}
