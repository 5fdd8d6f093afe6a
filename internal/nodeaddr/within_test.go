package nodeaddr

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/vishvananda/netlink"
)

func TestWithin(t *testing.T) {
	netns.EnterForTest(t)
	if err := netlink.LinkSetUp(loopback); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"192.0.2.7/32", "192.0.2.3/32", "198.51.100.1/32", "fd00::1/128", "fe80::1/64"} {
		if err := netlink.AddrAdd(loopback, &netlink.Addr{IPNet: parse(t, text)}); err != nil {
			t.Fatal(err)
		}
	}
	// Subtests would run on other threads, in another namespace.
	for _, tt := range []struct {
		name     string
		prefixes []string
		want     string
	}{
		{"nothing asked for", nil, "map[]"},
		{"sorted, without duplicates", []string{"192.0.2.0/24", "192.0.2.7/32"}, "map[IPv4:[192.0.2.3 192.0.2.7]]"},
		{"an address that the machine does not have", []string{"203.0.113.1/32"}, "map[IPv4:[]]"},
		{"all of one family and some of the other", []string{"192.0.2.0/24", "0.0.0.0/0", "fd00::/16"}, "map[IPv4:[0.0.0.0] IPv6:[fd00::1]]"},
		{"link-local addresses are left out", []string{"fe80::/10"}, "map[IPv6:[]]"},
	} {
		var prefixes []netip.Prefix
		for _, text := range tt.prefixes {
			prefixes = append(prefixes, netip.MustParsePrefix(text))
		}
		got, err := Within(prefixes)
		if diff := cmp.Diff(tt.want, fmt.Sprint(got)); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
}
