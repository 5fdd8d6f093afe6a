package nodeaddr

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

func TestLeadsInto(t *testing.T) {
	netns.EnterForTest(t)
	const script = `ip link add eth0 type veth peer name peer0; ip link set eth0 up; ip link set peer0 up
ip addr add 192.0.2.5/24 dev eth0
ip route add default via 192.0.2.1
ip route add 10.244.2.0/24 dev eth0 table 77
ip addr add fd00:10:244:1::1/64 dev eth0 nodad`
	if out, err := exec.Command("bash", "-e", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for network, want := range map[string]bool{
		"192.0.2.0/28": true, "10.244.0.0/16": true, "10.244.2.7/32": true, "fd00:10:244::/56": true,
		"10.1.0.0/16": false, "fd00:10:1::/56": false,
	} {
		if got, err := LeadsInto(netip.MustParsePrefix(network)); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", network, got, err, want)
		}
	}
}
