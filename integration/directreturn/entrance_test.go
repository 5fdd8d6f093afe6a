package directreturn

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
)

func (n *node) script(t *testing.T, text string) {
	t.Helper()
	must(t, n.Do(func() error {
		if out, err := exec.Command("sh", "-ec", text).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
}

// keeps dials by some node, and fails unless pods see the clients' addresses, or none of them.
func (f *fabric) keeps(t *testing.T, by int, want bool) {
	t.Helper()
	f.spread(t, by)
	var open connections
	for _, family := range families {
		for client := range 8 {
			for _, network := range []string{"tcp", "udp"} {
				open = append(open, f.dialFrom(t, network, family, client))
			}
		}
	}
	if len(open.byPod()) < 3 {
		t.Errorf("by node %d all reach %v", by, open.byPod())
	}
	if kept := open.kept(); want && kept != len(open) || !want && kept != 0 {
		t.Errorf("by node %d pods see the client's address of %d of %d connections", by, kept, len(open))
	}
}

// A node with IPsec policies for pods forwards nothing, since copies would leave unencrypted. Other nodes do.
func TestIPsec(t *testing.T) {
	t.Parallel()
	f := newFabric(t, false)
	f.startPods(t)
	const policies = `for family in 10.244.0.0/16 fd00:244::/32; do ip xfrm policy %s dir out dst $family %s; done`
	f.nodes[1].script(t, fmt.Sprintf(policies, "add", "tmpl proto esp mode transport level use"))
	f.start(t, serving(2, 3, 4), 1, 2, 3, 4)
	f.nodes[1].proxy.Says(t, `this node forwards nothing; clients that enter by it are masqueraded" reason="an xfrm policy for 10.244.0.0/16 would not match`)
	f.keeps(t, 1, false)
	f.keeps(t, 4, true)
	f.nodes[1].script(t, fmt.Sprintf(policies, "delete", ""))
	f.nodes[1].proxy.Says(t, "nothing keeps this node from forwarding any more")
	f.spread(t, 1)
	await.Until(t, "what the log said is in the kernel", func() error {
		if first := (connections{f.dialFrom(t, "tcp", families[0], 0)}); first.kept() == 0 {
			return errors.New("a pod does not see its client's address")
		}
		return nil
	})
	f.keeps(t, 1, true)
}

// Routes by a vxlan device in metadata mode choose the tunnel if they have it themselves (encap), and not otherwise.
func TestMetadataOverlay(t *testing.T) {
	t.Parallel()
	f := newFabric(t, false)
	f.startPods(t)
	for _, n := range f.nodes[1:] {
		script := fmt.Sprintf("ip link add vx type vxlan external dstport 8472; ip link set vx mtu 1450 address 02:00:00:00:00:0%d up\n", n.number) +
			fmt.Sprintf("ip addr add 10.245.0.%d/24 dev vx; ip addr add fd00:245::%d/64 dev vx nodad\n", n.number, n.number)
		for _, other := range f.nodes[2:] {
			if other == n {
				continue
			}
			for _, family := range families {
				pods := netip.PrefixFrom(podAddr(family, other.number), prefixBits(family)).Masked()
				hop := addr(family, fmt.Sprintf("10.245.0.%d", other.number), fmt.Sprintf("fd00:245::%d", other.number))
				script += fmt.Sprintf("ip route replace %s encap ip id 1 dst %s via %s dev vx\n", pods, f.nodeAddr(model.IPv4, other.number), hop)
				script += fmt.Sprintf("ip neigh replace %s lladdr 02:00:00:00:00:0%d dev vx\n", hop, other.number)
			}
		}
		n.script(t, script)
	}
	f.start(t, serving(2, 3, 4), 1, 2, 3, 4)
	f.keeps(t, 1, true)
	f.nodes[1].script(t, "ip route replace 10.244.2.0/24 dev vx")
	f.nodes[1].proxy.Says(t, `reason="device vx (vxlan in metadata mode) may choose the tunnel by the packet's destination"`)
}

// Containers behind a node's own NAT have no address that other nodes know, so the node translates their connections.
func TestContainersOfTheNode(t *testing.T) {
	t.Parallel()
	f := newFabric(t, false)
	f.startPods(t)
	n, container := f.nodes[1], newHost(t, "container")
	connect(t, n.Host, "docker0", container)
	for _, family := range families {
		gateway, own := addr(family, "172.17.0.1", "fd00:17::1"), addr(family, "172.17.0.2", "fd00:17::2")
		address(t, n.Host, "docker0", gateway)
		address(t, container, "eth0", own)
		route(t, container, everywhere(family), gateway)
	}
	lab.Nft(t, n.Host, `table inet docker {
	chain out {
		type nat hook postrouting priority srcnat
		ip saddr 172.17.0.0/24 oifname != "docker0" masquerade
		ip6 saddr fd00:17::/64 oifname != "docker0" masquerade
	}
}
`, "-f", "-")
	f.start(t, serving(2, 3, 4), 1, 2, 3, 4)
	n.proxy.Says(t, `devices=["docker0"] count=1`)
	must(t, container.Do(func() error {
		for _, family := range families {
			for _, network := range []string{"tcp", "udp"} {
				pods := map[string]bool{}
				for range 20 {
					conn, err := net.DialTimeout(network, netip.AddrPortFrom(direct.addr(family), 80).String(), patience)
					if err != nil {
						return err
					}
					defer conn.Close()
					c := &connection{Conn: conn, in: bufio.NewReader(conn), network: network, patience: patience}
					pod, source, err := c.ask()
					if err != nil {
						return fmt.Errorf("%s: %w", network, err)
					}
					if !strings.HasPrefix(source.Addr().String(), addr(family, "10.0.0.1", "fd00:10::").String()) {
						t.Errorf("%s sees %s", pod, source)
					}
					pods[pod] = true
				}
				if len(pods) != 3 {
					t.Errorf("%s over %s: connections reach %v", network, family, pods)
				}
			}
		}
		return nil
	}))
	f.keeps(t, 1, true)
}
