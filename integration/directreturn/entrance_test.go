package directreturn

import (
	"bufio"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/vishvananda/netlink"
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

// A vxlan device in metadata mode may choose the tunnel by the packet's destination, so nodes forward nothing by it.
func TestMetadataOverlay(t *testing.T) {
	t.Parallel()
	f := newFabric(t, false)
	f.startPods(t)
	for _, n := range f.nodes[1:] {
		script := fmt.Sprintf("ip link add vx type vxlan external dstport 8472; ip link set vx mtu 1450 address 02:00:00:00:00:0%d up\n", n.number) +
			fmt.Sprintf("ip addr add 10.245.0.%d/24 dev vx; ip addr add fd00:245::%d/64 dev vx nodad\n", n.number, n.number)
		for _, other := range f.nodes[1:] {
			if other == n {
				continue
			}
			for _, family := range families {
				hop := addr(family, fmt.Sprintf("10.245.0.%d", other.number), fmt.Sprintf("fd00:245::%d", other.number))
				script += fmt.Sprintf("ip neigh replace %s lladdr 02:00:00:00:00:0%d dev vx\n", hop, other.number)
				tunnel := fmt.Sprintf("encap ip id 1 dst %s", f.nodeAddr(model.IPv4, other.number))
				script += fmt.Sprintf("ip route replace %s %s dev vx\n", hop, tunnel) // for answers to a node
				if other.pod != nil {
					pods := netip.PrefixFrom(podAddr(family, other.number), prefixBits(family)).Masked()
					script += fmt.Sprintf("ip route replace %s %s via %s dev vx onlink\n", pods, tunnel, hop)
				}
			}
		}
		n.script(t, script)
	}
	f.start(t, serving(2, 3, 4), 1, 2, 3, 4)
	f.nodes[1].proxy.Says(t, `this node forwards nothing; clients that enter by it are masqueraded" reason="device vx (vxlan) may choose the tunnel by the packet's destination"`)
	f.keeps(t, 1, false)
}

// TestWireGuard needs a kernel with WireGuard: `make test-kernels` runs it.
func TestWireGuard(t *testing.T) {
	w := newWired(t)
	w.addWireGuard(t)
	w.serve(t, everyNode, 2, 3, 4)
	w.spread(t, 1)
	t.Run("loses what is forwarded as it is", func(t *testing.T) {
		for _, family := range families {
			if n := w.dials(family); n != 0 {
				t.Errorf("%s: %d connections come about", family, n)
			}
		}
		if link(t, w.nodes[1].Host, "wg0").Attrs().Statistics.TxErrors < dialed {
			t.Error("WireGuard has a peer for the copies")
		}
	})
	t.Run("brings what a node masquerades because of it", func(t *testing.T) {
		for _, b := range w.backends[1:] {
			must(t, b.Close())
		}
		w.start(t, serving(2, 3, 4), 1, 2, 3, 4)
		w.nodes[1].proxy.Says(t, `this node forwards nothing; clients that enter by it are masqueraded" reason="device wg0 (wireguard) may choose`)
		w.keeps(t, 1, false)
		for _, family := range families {
			if n := w.dials(family); n != dialed {
				t.Errorf("%s: %d of %d connections come about", family, n, dialed)
			}
		}
	})
}

// dials dials from several of the client's addresses, and returns how many connections come about.
func (f *fabric) dials(family model.Family) int {
	var came atomic.Int32
	var group sync.WaitGroup
	for client := range dialed {
		group.Go(func() {
			_ = f.client.Do(func() error {
				c := &connection{network: "tcp", from: clientAddr(family, client)}
				err := c.dial(direct)
				if err == nil {
					came.Add(1)
					c.Close()
				}
				return err
			})
		})
	}
	group.Wait()
	return int(came.Load())
}

const dialed = 20

// addWireGuard has nodes reach the pods of the others by WireGuard, as flannel and Calico do.
func (f *fabric) addWireGuard(t *testing.T) {
	t.Helper()
	probe := lab.RouterForTest(t, "probe")
	if err := probe.Routes().LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "wg0"}}); err != nil {
		t.Skip("this kernel has no WireGuard:", err)
	}
	number := func(family model.Family, n *node) netip.Addr {
		return addr(family, fmt.Sprintf("10.246.0.%d", n.number), fmt.Sprintf("fd00:246::%d", n.number))
	}
	public := map[*node]string{}
	for _, n := range f.nodes[1:] {
		must(t, n.Routes().LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "wg0"}}))
		must(t, n.Routes().LinkSetUp(link(t, n.Host, "wg0")))
		private, err := ecdh.X25519().GenerateKey(rand.Reader)
		must(t, err)
		public[n] = base64.StdEncoding.EncodeToString(private.PublicKey().Bytes())
		n.script(t, fmt.Sprintf("echo %s | wg set wg0 listen-port 51820 private-key /dev/fd/0", base64.StdEncoding.EncodeToString(private.Bytes())))
		for _, family := range families {
			address(t, n.Host, "wg0", number(family, n))
		}
	}
	for _, n := range f.nodes[1:] {
		for _, other := range f.nodes[1:] {
			if other == n {
				continue
			}
			var allowed []string
			for _, family := range families {
				allowed = append(allowed, netip.PrefixFrom(number(family, other), number(family, other).BitLen()).String())
				if other.pod != nil {
					pods := netip.PrefixFrom(podAddr(family, other.number), prefixBits(family)).Masked()
					allowed = append(allowed, pods.String())
					must(t, n.Routes().RouteReplace(&netlink.Route{Dst: ipNet(pods), LinkIndex: link(t, n.Host, "wg0").Attrs().Index, Scope: netlink.SCOPE_LINK}))
				}
			}
			n.script(t, fmt.Sprintf("wg set wg0 peer %s endpoint %s:51820 allowed-ips %s", public[other], f.nodeAddr(model.IPv4, other.number), strings.Join(allowed, ",")))
		}
	}
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
				for range 40 { // so many miss a pod once in a million times
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
