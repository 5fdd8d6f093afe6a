package entrance

import (
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

func TestSmallHops(t *testing.T) {
	const uplink = `ip link add eth0 type veth peer name peer0; ip link set eth0 up; ip link set peer0 up
ip addr add 192.0.2.5/24 dev eth0; ip addr add 2001:db8::5/64 dev eth0 nodad
`
	const defaults = uplink + "ip route add default via 192.0.2.1; ip -6 route add default via 2001:db8::1\n"
	// other has an MTU of 1400, and no route but to its network.
	const other = "ip link add other type veth peer name peer1; ip link set other mtu 1400 up; ip link set peer1 up; ip addr add 10.1.0.1/24 dev other\n"
	// vxlan is an overlay. route leads to another node's pods by it.
	const vxlan = `ip link add vx type vxlan id 1 dstport 8472 dev eth0; ip link set vx mtu 1450 up
ip addr add 10.244.1.0/32 dev vx; ip addr add fd00::1/128 dev vx nodad
`
	const route = "ip route add 10.244.2.0/24 via 10.244.2.0 dev vx onlink"
	for _, tt := range []struct {
		name, script string
		want         []Hop
		wantDefault  int
	}{
		{name: "no interface"},
		{name: "no default route", script: uplink + vxlan + route},
		{name: "pods of this node", script: defaults + other, wantDefault: 1500},
		{name: "an overlay", want: []Hop{{"vx", 1450}}, wantDefault: 1500,
			script: defaults + vxlan + route + "; ip route add 10.244.3.0/24 via 10.244.3.0 dev vx onlink"},
		{name: "an overlay over IPv6 alone", script: defaults + vxlan + "ip -6 route add fd00:2::/64 via fd00::2 dev vx onlink", want: []Hop{{"vx", 1450}}, wantDefault: 1500},
		{name: "an overlay without routes", script: defaults + vxlan, wantDefault: 1500},
		{name: "an overlay as long as the default route", wantDefault: 1450,
			script: defaults + vxlan + "ip link set eth0 mtu 1450; " + route},
		{name: "the MTU of a default route", wantDefault: 1400,
			script: uplink + vxlan + "ip route add default via 192.0.2.1 mtu 1400; " + route},
		{name: "a route with an MTU", script: defaults + "ip route add 10.244.2.0/24 dev eth0 mtu 1420", want: []Hop{{"eth0", 1420}}, wantDefault: 1500},
		{name: "a route with several next hops", wantDefault: 1500, want: []Hop{{"other", 1400}},
			script: defaults + other + "ip route add 10.244.2.0/24 nexthop via 10.1.0.2 nexthop via 10.1.0.3"},
		{name: "a device without neighbours", script: defaults + "ip tuntap add dev tun0 mode tun; ip link set tun0 mtu 1420 up; ip route add 10.244.2.0/24 dev tun0",
			want: []Hop{{"tun0", 1420}}, wantDefault: 1500},
		{name: "more routes before it than are read", wantDefault: 1500, script: defaults + vxlan + route +
			"; ip link set lo up; for i in $(seq 0 9999); do echo route add 10.1.$((i/250)).$((i%250)) dev lo; done | ip -batch -"},
		{name: "another table", script: defaults + vxlan + route + " table 7", wantDefault: 1500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns.EnterForTest(t)
			if out, err := exec.Command("bash", "-e", "-c", tt.script).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			got, defaultMTU, err := SmallHops()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || defaultMTU != tt.wantDefault {
				t.Errorf("the default route has %d, want %d; -want +got:\n%s", defaultMTU, tt.wantDefault, diff)
			}
		})
	}
}
