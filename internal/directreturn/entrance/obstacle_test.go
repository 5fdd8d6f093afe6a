package entrance

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/vishvananda/netlink"
)

const uplinkOfNode = `ip link add eth0 type veth peer name peer0; ip link set eth0 up; ip link set peer0 up
ip addr add 192.0.2.5/24 dev eth0; ip addr add 2001:db8::5/64 dev eth0 nodad
ip route add default via 192.0.2.1; ip -6 route add default via 2001:db8::1
`

func script(t *testing.T, text string) {
	t.Helper()
	if out, err := exec.Command("bash", "-e", "-c", text).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestObstacle(t *testing.T) {
	const flannel = "ip link add vx type vxlan id 1 dstport 8472 dev eth0; ip link set vx up; ip addr add 10.244.1.0/32 dev vx\n"
	const metadata = "ip link add vx type vxlan external dstport 8472; ip link set vx up; ip addr add 10.244.1.0/32 dev vx\n"
	const policy = "ip xfrm policy add dir out dst 10.244.0.0/16 tmpl proto esp mode tunnel\n"
	for _, tt := range []struct{ name, script, to, want string }{
		{name: "a route with a gateway", to: "10.244.2.5"},
		{name: "a route with a gateway over IPv6", to: "fd00:244::5"},
		{name: "no route", script: "ip route del default", to: "10.244.2.5"},
		{name: "a blackhole", script: "ip route add blackhole 10.244.2.0/24", to: "10.244.2.5"},
		{name: "a vxlan device as flannel has it", script: flannel + "ip route add 10.244.2.0/24 via 10.244.2.0 dev vx onlink", to: "10.244.2.5"},
		{name: "a vxlan device in metadata mode", script: metadata + "ip route add 10.244.2.0/24 via 10.244.2.0 dev vx onlink", to: "10.244.2.5",
			want: "device vx (vxlan)"},
		{name: "a vxlan device in metadata mode by a rule and another table", to: "10.244.2.5", want: "device vx (vxlan)",
			script: metadata + "ip route add 10.244.2.0/24 dev vx table 7; ip rule add to 10.244.0.0/16 lookup 7"},
		{name: "a vxlan device in metadata mode to others", script: metadata + "ip route add 10.99.0.0/24 dev vx", to: "10.244.2.5"},
		{name: "a vxlan device in metadata mode, and a route that chooses the tunnel", to: "10.244.2.5", want: "device vx (vxlan)",
			script: metadata + "ip route add 10.244.2.0/24 encap ip id 1 dst 192.0.2.9 dev vx"},
		{name: "a program's tunnel", to: "10.244.2.5", want: "device tun0 (tuntap)",
			script: "ip tuntap add dev tun0 mode tun; ip link set tun0 up; ip route add 10.244.2.0/24 dev tun0"},
		{name: "a program's Ethernet", to: "10.244.2.5",
			script: "ip tuntap add dev tap0 mode tap; ip link set tap0 up; ip route add 10.244.2.0/24 dev tap0"},
		{name: "an xfrm policy", script: policy, to: "10.244.2.5", want: "an xfrm policy for 10.244.0.0/16 "},
		{name: "an xfrm policy for others", script: policy, to: "10.99.2.5"},
		{name: "an xfrm policy for packets that enter", script: strings.Replace(policy, "out", "in", 1), to: "10.244.2.5"},
		{name: "an xfrm policy that lets pass", script: "ip xfrm policy add dir out dst 10.244.0.0/16", to: "10.244.2.5"},
		{name: "an xfrm policy that drops", script: "ip xfrm policy add dir out dst fd00:244::/32 action block", to: "fd00:244::5", want: "an xfrm policy for fd00:244::/32 "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns.EnterForTest(t)
			script(t, uplinkOfNode+tt.script)
			got, err := Obstacle([]netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr(tt.to)})
			if err != nil {
				t.Fatal(err)
			}
			if (tt.want == "") != (got == "") || !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// This kernel lacks most of these devices.
func TestByDestination(t *testing.T) {
	for _, tt := range []struct {
		link netlink.Link
		want bool
	}{
		{&netlink.Wireguard{}, true}, {&netlink.GenericLink{LinkType: "openvswitch"}, true}, {&netlink.Xfrmi{}, true}, {&netlink.Vti{}, true},
		{&netlink.Geneve{FlowBased: true}, true}, {&netlink.Iptun{FlowBased: true}, true}, {&netlink.Ip6tnl{FlowBased: true}, true},
		{&netlink.Gretun{FlowBased: true}, true}, {&netlink.Gretap{FlowBased: true}, true},
		{&netlink.Geneve{}, false}, {&netlink.Iptun{}, false}, {&netlink.Ip6tnl{}, false}, {&netlink.Gretun{}, false}, {&netlink.Gretap{}, false},
		{&netlink.Veth{}, false}, {&netlink.Bridge{}, false}, {&netlink.GenericLink{}, false},
	} {
		if got := byDestination(tt.link); got != tt.want {
			t.Errorf("%T %q: %v, want %v", tt.link, tt.link.Type(), got, tt.want)
		}
	}
}

func TestInside(t *testing.T) {
	const docker = "ip link add docker0 type bridge; ip link set docker0 up; ip addr add 172.17.0.1/16 dev docker0\n"
	const lan = "ip link add lan type veth peer name lan1; ip link set lan up; ip addr add 192.168.5.1/24 dev lan\n"
	for _, tt := range []struct {
		name, script, own string
		want              []string
	}{
		{name: "an uplink"},
		{name: "containers", script: docker, want: []string{"docker0"}},
		{name: "containers over IPv6 alone", want: []string{"docker0"},
			script: "ip link add docker0 type bridge; ip link set docker0 up; ip addr add fd00:17::1/64 dev docker0 nodad"},
		{name: "a network behind the node", script: docker + lan, want: []string{"docker0", "lan"}},
		{name: "a network with another gateway", script: lan + "ip route add 10.0.0.0/8 via 192.168.5.9"},
		{name: "a network with another gateway in another table", script: lan + "ip route add default via 192.168.5.9 table 7"},
		{name: "networks with several gateways", script: docker + lan + "ip route add 10.0.0.0/8 nexthop via 192.0.2.9 nexthop via 172.17.0.9 nexthop via 192.168.5.9"},
		{name: "a network with an address of the Node", script: lan, own: "192.168.5.1"},
		{name: "a device without an address", script: "ip link add eth1 type veth peer name peer1; ip link set eth1 up; ip link set peer1 up"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns.EnterForTest(t)
			script(t, uplinkOfNode+"ip link set lo up; ip addr add 10.96.0.1/32 dev lo\n"+tt.script)
			var own []netip.Addr
			if tt.own != "" {
				own = append(own, netip.MustParseAddr(tt.own))
			}
			got, err := Inside(own)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
