package directreturn

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// wired is a fabric without programs: each node has a backend in this process, and the router has fixed routes.
type wired struct {
	*fabric
	backends [nodes + 1]*proxy.Backend
	// edit changes each Service port before nodes are told of it, if it is set.
	edit func(*model.ServicePort)
	// more adds Service ports to those that nodes are told of, if it is set.
	more func(*model.Changes)
	// off starts backends without direct return.
	off bool
}

func newWired(t *testing.T) *wired {
	t.Helper()
	w := &wired{fabric: newFabric(t, false)}
	w.startPods(t)
	for _, number := range everyNode {
		must(t, w.nodes[number].Do(rememberFlows))
		w.startBackend(t, number)
	}
	t.Cleanup(func() {
		for _, number := range everyNode {
			w.backends[number].Close()
		}
	})
	return w
}

// rememberFlows makes conntrack keep UDP flows and SCTP associations for longer than a busy machine takes to use them again:
// by default it forgets an association after 10 s if nobody answers, and a new UDP flow after 30 s.
func rememberFlows() error {
	for _, timeout := range []string{
		"udp_timeout", "udp_timeout_stream",
		"sctp_timeout_closed", "sctp_timeout_cookie_wait", "sctp_timeout_cookie_echoed", "sctp_timeout_established", "sctp_timeout_heartbeat_sent",
	} {
		if err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_"+timeout, []byte("600"), 0); err != nil {
			return err
		}
	}
	return nil
}

func (w *wired) startBackend(t *testing.T, number int) {
	t.Helper()
	config := compiler.Default()
	config.DirectReturn, config.CountRefused = !w.off, true
	config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/32")}
	b, err := proxy.NewBackend(w.nodes[number].rules, config, proxy.Hooks{})
	must(t, err)
	w.backends[number] = b
}

// spread makes the router send packets to Services to these nodes, without bird.
func (f *fabric) spread(t *testing.T, to ...int) {
	t.Helper()
	for _, family := range families {
		for _, s := range services {
			a := s.addr(family)
			route := &netlink.Route{Dst: ipNet(netip.PrefixFrom(a, a.BitLen()))}
			for _, n := range to {
				route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{Gw: f.nodeAddr(family, n).AsSlice()})
			}
			must(t, f.router.Routes().RouteReplace(route))
		}
	}
}

// serve tells nodes of the Service with pods on these nodes.
func (w *wired) serve(t *testing.T, on []int, pods ...int) {
	t.Helper()
	for _, n := range on {
		node := &model.Node{Name: w.nodes[n].Name}
		changes := &model.Changes{Full: true, Node: node, Ports: map[model.PortID]*model.ServicePort{}, ServiceCIDRsChanged: true}
		for _, family := range families {
			node.IPs = append(node.IPs, w.nodeAddr(family, n))
			for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
				p := &model.ServicePort{
					ID:   model.PortID{Namespace: "shop", Service: direct.name, Protocol: protocol, Family: family},
					Port: 80, ClusterIP: addr(family, "10.96.0.1", "fd00:96::1"),
					LoadBalancerIPs: []netip.Addr{direct.addr(family)}, DirectReturn: true,
				}
				for _, pod := range pods {
					p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(podAddr(family, pod), 8080), Local: pod == n, Remote: pod != n})
					p.Serving = append(p.Serving, netip.AddrPortFrom(podAddr(family, pod), 8080))
				}
				if w.edit != nil {
					w.edit(p)
				}
				changes.Ports[p.ID] = p
			}
		}
		if w.more != nil {
			w.more(changes)
		}
		must(t, w.backends[n].Sync(t.Context(), changes))
	}
}

var everyNode = []int{1, 2, 3, 4, 5}

// dialFrom opens a connection from one of the client's addresses, and asks the endpoint who it is and whom it sees.
func (f *fabric) dialFrom(t *testing.T, network string, family model.Family, client int) *connection {
	t.Helper()
	c := &connection{network: network, from: clientAddr(family, client), patience: directPatience, lost: true}
	f.reopen(t, direct, connections{c})
	t.Cleanup(func() { c.Close() })
	return c
}

// A packet that is too long for the way to the client is answered with an ICMP error, which enters by a node that does not
// know the connection.
func TestICMPErrors(t *testing.T) {
	t.Parallel()
	for _, affinity := range []time.Duration{0, time.Hour} {
		t.Run(fmt.Sprintf("find the node of the connection, affinity %v", affinity), func(t *testing.T) {
			t.Parallel()
			w := newWired(t)
			w.edit = func(p *model.ServicePort) { p.AffinityTimeout = affinity }
			w.serve(t, everyNode, 2, 3, 4)
			w.spread(t, 1)
			must(t, w.router.Routes().LinkSetMTU(link(t, w.router, "client"), 1300))
			for _, family := range families {
				pods := map[string]bool{} // a pod remembers the MTU for each client
				for client := range clients {
					c := w.dialFrom(t, "tcp", family, client)
					pods[c.pod] = true
					must(t, c.SetDeadline(time.Now().Add(patience)))
					_, err := io.WriteString(c, "much\n")
					must(t, err)
					if much, err := bufio.NewReader(c).ReadString('\n'); err != nil || len(much) != 1<<16+1 {
						t.Errorf("%s sent %d bytes to %s: %v", c.pod, len(much), c.from, err)
						break
					}
				}
				if len(pods) < 3 && !t.Failed() {
					t.Errorf("%s: connections lead to %v only", family, pods)
				}
			}
		})
	}
}

// With session affinity the hash is that of the client's address alone.
func TestAffinity(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.edit = func(p *model.ServicePort) { p.AffinityTimeout = time.Hour }
	w.serve(t, everyNode, 2, 3, 4)
	w.spread(t, everyNode...)
	var open connections
	for _, family := range families {
		load := map[string]int{}
		for client := range 10 {
			first := w.dialFrom(t, "tcp", family, client)
			load[first.pod]++
			for range 2 {
				for _, network := range []string{"tcp", "udp"} {
					c := w.dialFrom(t, network, family, client)
					if c.pod != first.pod {
						t.Errorf("%s is sent to %s and, by %s, to %s", c.from, first.pod, network, c.pod)
					}
					open = append(open, c)
				}
			}
		}
		if len(load) != 3 {
			t.Errorf("%s: clients are sent to %v", family, load)
		}
	}
	if kept := open.kept(); kept != len(open) {
		t.Errorf("pods see the client's address of %d of %d connections", kept, len(open))
	}
	if lost := open.during(func() { w.spread(t, 2, 3, 4, 5) }); lost.lost() > 0 {
		t.Errorf("after node 1 went: %v", lost)
	}
}

// Of two nodes that each take a slot for the other's, the first sends its packets on, and the other drops them.
func TestDisagreement(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.serve(t, []int{1}, 2)
	w.serve(t, []int{2}, 1)
	w.spread(t, 1)
	const neighbours = 50 // at most as many messages of ARP and neighbour discovery
	for _, family := range families {
		for _, ttl := range []int{4, 9, 64, 255} {
			before := w.received(t)
			must(t, w.client.Do(func() error {
				c, err := net.Dial("udp", netip.AddrPortFrom(direct.addr(family), 80).String())
				if err != nil {
					return err
				}
				defer c.Close()
				if family == model.IPv4 {
					err = ipv4.NewConn(c).SetTTL(ttl)
				} else {
					err = ipv6.NewConn(c).SetHopLimit(ttl)
				}
				if err == nil {
					_, err = c.Write([]byte("x"))
				}
				return err
			}))
			await.True(t, "the packet arrives", func() bool { return w.received(t) > before })
			time.Sleep(200 * time.Millisecond)
			if passed := w.received(t) - before; passed > neighbours {
				t.Errorf("%s: a packet with a TTL of %d passed %d times", family, ttl, passed)
			}
		}
	}
}

// An ICMP error is sent on once, although a tenant says that the endpoint of its slot is a node, or nodes disagree.
func TestErrorsDoNotGoRound(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	const sent, others = 20, 60 // others are messages of ARP and neighbour discovery at most
	check := func(t *testing.T) {
		w.spread(t, 1)
		for _, family := range families {
			before := w.received(t)
			for range sent {
				w.sendError(t, family)
			}
			await.Until(t, "the errors arrive", func() error {
				if passed := w.received(t) - before; passed < sent {
					return fmt.Errorf("%d of %d have", passed, sent)
				}
				return nil
			})
			time.Sleep(200 * time.Millisecond) // for those that go round
			// Each is received from the router and from another node at most.
			if passed := w.received(t) - before; passed > 3*sent+others {
				t.Errorf("%s: %d errors passed %d times", family, sent, passed)
			}
		}
	}
	t.Run("nodes disagree", func(t *testing.T) {
		w.serve(t, []int{1}, 2)
		w.serve(t, []int{2}, 1)
		check(t)
	})
	for _, number := range []int{1, 2} {
		t.Run(fmt.Sprintf("the endpoint is node %d", number), func(t *testing.T) {
			w.edit = func(p *model.ServicePort) {
				p.Cluster = []model.Endpoint{{AddrPort: netip.AddrPortFrom(w.nodeAddr(p.ID.Family, number), 8080), Remote: true}}
			}
			w.serve(t, everyNode, 2)
			check(t)
		})
	}
}

// sendError sends what a router sends that finds an answer to the client too long.
func (f *fabric) sendError(t *testing.T, family model.Family) {
	t.Helper()
	service, client := direct.addr(family), clientAddr(family, 0)
	quoted := make([]byte, 20) // an IP header
	quoted[0], quoted[8], quoted[9] = 0x45, 60, unix.IPPROTO_TCP
	domain, protocol, kind := unix.AF_INET, unix.IPPROTO_ICMP, icmp.Type(ipv4.ICMPTypeDestinationUnreachable)
	to := unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(service.AsSlice())})
	if family == model.IPv6 {
		quoted = make([]byte, 40)
		quoted[0], quoted[5], quoted[6], quoted[7] = 0x60, 20, unix.IPPROTO_TCP, 60
		domain, protocol, kind = unix.AF_INET6, unix.IPPROTO_ICMPV6, ipv6.ICMPTypePacketTooBig
		to = &unix.SockaddrInet6{Addr: service.As16()}
	}
	addresses := quoted[len(quoted)-2*service.BitLen()/8:]
	copy(addresses, service.AsSlice())
	copy(addresses[service.BitLen()/8:], client.AsSlice())
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, 80)
	binary.BigEndian.PutUint16(tcp[2:], 20000)
	body := &icmp.RawBody{Data: append(append([]byte{0, 0, 5, 0}, quoted...), tcp...)} // an MTU of 1280
	code := 0
	if family == model.IPv4 {
		code = 4 // fragmentation needed
	}
	message, err := (&icmp.Message{Type: kind, Code: code, Body: body}).Marshal(nil)
	must(t, err)
	must(t, f.client.Do(func() error {
		fd, err := unix.Socket(domain, unix.SOCK_RAW, protocol)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, message, 0, to)
	}))
}

// loadBalancerSourceRanges apply on the node that packets enter: none of a refused client goes to another node.
func TestSourceRanges(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.edit = func(p *model.ServicePort) {
		allowed := clientAddr(p.ID.Family, 0)
		p.LoadBalancerSourceRanges = []netip.Prefix{netip.PrefixFrom(allowed, allowed.BitLen())}
	}
	w.serve(t, everyNode, 2, 3, 4)
	for _, enter := range []int{1, 2} {
		w.spread(t, enter)
		for _, family := range families {
			pods := map[string]bool{}
			for range 20 {
				c := w.dialFrom(t, "tcp", family, 0)
				pods[c.pod] = true
			}
			if len(pods) < 2 {
				t.Errorf("by node %d, %s: an allowed client is sent to %v only", enter, family, pods)
			}
			expectNoAnswer(t, w.client, clientAddr(family, 1), direct.addr(family))
		}
	}
	w.spread(t, 1)
	const sent = 100
	others := func() (n uint64) {
		for _, node := range w.nodes[2:] {
			n += link(t, node.Host, "eth0").Attrs().Statistics.RxPackets
		}
		return n
	}
	for _, family := range families {
		for client, refused := range map[int]bool{0: false, 1: true} {
			before := others()
			w.sendDatagrams(t, family, client, sent)
			time.Sleep(200 * time.Millisecond)
			if got := others() - before; refused != (got < sent/2) {
				t.Errorf("%s: of %d datagrams of a client, refused %v, node 1 sends %d on", family, sent, refused, got)
			}
		}
	}
}

// expectNoAnswer fails if one of several connections comes about.
func expectNoAnswer(t *testing.T, h *lab.Host, from, to netip.Addr) {
	t.Helper()
	must(t, h.Do(func() error {
		for range 4 {
			dialer := net.Dialer{Timeout: 300 * time.Millisecond, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
			if c, err := dialer.Dial("tcp", netip.AddrPortFrom(to, 80).String()); err == nil {
				c.Close()
				t.Errorf("%s is not refused", from)
			}
		}
		return nil
	}))
}

// Pods and nodes are masqueraded, also when they are sent to themselves, and reach all endpoints alike: a node's own
// connections are not led by slots. With 200 connections, half of them miss fewer than 70 once in 100,000 times.
func TestClientsOfTheCluster(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.serve(t, everyNode, 2, 3)
	const dials = 200
	for _, family := range families {
		for _, h := range []*lab.Host{w.nodes[1].Host, w.nodes[2].Host, w.nodes[2].pod, w.nodes[4].pod} {
			pods := map[string]int{}
			must(t, h.Do(func() error {
				for range dials {
					c, err := net.DialTimeout("tcp", netip.AddrPortFrom(direct.addr(family), 80).String(), patience)
					if err != nil {
						return fmt.Errorf("%s: %w", h.Name, err)
					}
					defer c.Close()
					answering := &connection{Conn: c, in: bufio.NewReader(c), network: "tcp"}
					pod, source, err := answering.ask()
					if err != nil {
						return fmt.Errorf("%s: %w", h.Name, err)
					}
					if source == unmapped(c.LocalAddr()) && strings.HasPrefix(h.Name, "pod-") {
						return fmt.Errorf("%s is seen as %s by %s, and not masqueraded", h.Name, source, pod)
					}
					pods[pod]++
				}
				return nil
			}))
			if min(pods["pod-2"], pods["pod-3"]) < 70 {
				t.Errorf("%s of %s is sent to %v", family, h.Name, pods)
			}
		}
	}
}

// What the proxy needs and does not set is named at its start.
func TestObstaclesAreNamed(t *testing.T) {
	t.Parallel()
	f := newFabric(t, true)
	n := f.nodes[2]
	must(t, n.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/vxlan/rp_filter", []byte("1"), 0) }))
	lab.Nft(t, n.Host, "table inet fw {\n chain out {\n type filter hook output priority 0; policy drop;\n meta l4proto 6 accept\n }\n}\n", "-f", "-")
	f.start(t, serving(2, 3), 2)
	const lost = `"Direct return: packets may be lost" reason=`
	n.proxy.Says(t, lost+`"packets of this node that no rule accepts are dropped by" names=["inet fw out"] count=1`)
	n.proxy.Says(t, lost+`"rp_filter is 1 on" names=["vxlan"] count=1`)
	n.proxy.Says(t, lost+`"interfaces to other nodes have a smaller MTU than the default route (1500):" names=["vxlan (1450)"] count=1`)
}

// What a node sends on passes the chains of its own output, in no connection.
func TestFirewallOfTheNode(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.serve(t, everyNode, 3)
	w.spread(t, 1)
	reach := func(network string) (reached int) {
		for _, family := range families {
			must(t, w.client.Do(func() error {
				c := &connection{network: network, from: clientAddr(family, 1)}
				if c.dial(direct) == nil {
					reached++
					c.Close()
				}
				return nil
			}))
		}
		return reached
	}
	const rules = "flush ruleset inet\ntable inet fw {\n chain out {\n type filter hook output priority 0; policy drop;\n ct state established,related,new %s accept\n }\n}\n"
	lab.Nft(t, w.nodes[1].Host, strings.Replace(rules, " %s", "", 1), "-f", "-")
	explained := func() (out string) {
		from, to := netip.AddrPortFrom(clientAddr(model.IPv4, 1), 20000), netip.AddrPortFrom(direct.addr(model.IPv4), 80)
		out, err := w.nodes[1].run(t, "ruledump", "explain", "--from", from.String(), "--to", to.String())
		must(t, err)
		return out
	}
	if out := explained(); !strings.Contains(out, "why: dropped: direct return of shop/direct sends it to the node of the endpoint, and a rule for packets that this node sends drops it") {
		t.Errorf("explain does not say that the node's own firewall drops the packet:\n%s", out)
	}
	if n := reach("tcp"); n != 0 {
		t.Errorf("%d connections came about past a firewall that drops untracked packets", n)
	}
	lab.Nft(t, w.nodes[1].Host, strings.Replace(rules, " %s", ",untracked", 1), "-f", "-")
	if n := reach("tcp"); n != len(families) {
		t.Errorf("%d connections came about past a firewall that accepts untracked packets, want %d", n, len(families))
	}
	if out, want := explained(), "sent on, as it is, to where the routes lead to 10.244.3.5"; !strings.Contains(out, want) {
		t.Errorf("explain does not say %q:\n%s", want, out)
	}
}

// Packets about which a node asks others are counted where they are asked about, where they are known, and where they are
// dropped. What is dropped has a reason in all tools.
func TestCounters(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.serve(t, everyNode, 2)
	w.spread(t, 1)
	var open connections
	for client := range 40 {
		open = append(open, w.dialFrom(t, "tcp", families[client%2], client))
	}
	counted := func(set string, nodes ...int) (packets uint64) {
		for _, number := range nodes {
			packets += w.nodes[number].packets(t, "ip", set, direct.addr(model.IPv4).String()) +
				w.nodes[number].packets(t, "ip6", set, direct.addr(model.IPv6).String())
		}
		return packets
	}
	if n := counted("direct-asked", everyNode...) + counted("direct-answered", everyNode...) + counted("direct-unknown", everyNode...); n != 0 {
		t.Errorf("%d packets are counted before a slot moves", n)
	}
	watch := w.nodes[3].startTool(t, "watch", "--refused", "shop/direct")
	top := w.nodes[3].startTool(t, "top", "shop/direct")
	if lost := open.during(func() { w.serve(t, everyNode, 2, 3, 4) }); lost.lost() > 0 {
		t.Errorf("two endpoints come: %v", lost)
	}
	trace := w.nodes[3].startTool(t, "trace", "--to=shop/direct", "-n=100")
	open.during(func() { time.Sleep(pause) })
	for _, tool := range []*lab.Process{watch, top, trace} {
		tool.Says(t, `"reason":"unknown-connection"`)
	}
	for set, number := range map[string][]int{"direct-asked": {3, 4}, "direct-answered": {2}, "direct-unknown": {3, 4}} {
		if counted(set, number...) == 0 {
			t.Errorf("%s counts nothing", set)
		}
	}
	if n := counted("direct-unknown", 1, 2) + counted("direct-asked", 1, 2); n != 0 {
		t.Errorf("%d packets are counted on nodes that know all connections, or have no slots", n)
	}
}

func TestRepair(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.serve(t, everyNode, 2, 3, 4)
	w.spread(t, 1)
	for _, number := range []int{1, 2} {
		h := w.nodes[number].Host
		want := rules(t, h)
		for _, command := range []string{"flush ruleset", "delete table ip kube-proxy", "flush chain ip kube-proxy direct-errors", "flush map ip6 kube-proxy direct-error-hops"} {
			lab.Nft(t, h, command, "-f", "-")
			if _, err := w.backends[number].Check(klog.NewContext(t.Context(), logr.Discard())); err != nil {
				t.Fatal(err)
			}
			if got := rules(t, h); got != want {
				t.Errorf("node %d lists other rules after %q:\n%.2000s", number, command, got)
			}
		}
	}
	w.dialFrom(t, "tcp", model.IPv4, 0)
	w.dialFrom(t, "udp", model.IPv6, 0)
}

// A datagram does not say whether it opens a flow, so flows move with their slot: at most the share of the endpoints that
// came, and two percent. Afterwards they stay where they are, whichever node they enter by.
func TestFlowsMoveWithTheirSlot(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.serve(t, everyNode, 2, 3)
	w.spread(t, 1)
	var open connections
	for range 3 {
		for client := range 50 {
			open = append(open, w.dialFrom(t, "udp", families[client%2], client))
		}
	}
	lost := open.during(func() { w.serve(t, everyNode, 2, 3, 4) })
	if share := most(len(open), 1.0/3+0.02); lost.lost() == 0 || float64(lost.lost()) > share {
		t.Errorf("an endpoint comes: %v, want at most %.0f, and some", lost, share)
	}
	for _, c := range lost.gone {
		if !strings.HasSuffix(c.why, " answers") {
			t.Errorf("a flow is lost, and does not move: %s", c.why)
		}
	}
	w.reopen(t, direct, open)
	if lost := open.during(func() { w.spread(t, everyNode...) }); lost.lost() > 0 {
		t.Errorf("the router chooses other nodes: %v, the first one: %s", lost, lost.gone[0].why)
	}
}

// This kernel has no SCTP sockets, so raw ones send and count the packets that open associations.
func TestSCTP(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.edit = func(p *model.ServicePort) {
		if p.ID.Protocol == model.UDP {
			p.ID.Protocol = model.SCTP
		}
	}
	w.serve(t, everyNode, 2)
	w.spread(t, 1)
	for _, family := range families {
		t.Run(family.String(), func(t *testing.T) {
			a := newAssociations(t, w, family)
			const all = 40
			for _, serving := range [][]int{{2}, {2, 3, 4}} {
				w.serve(t, everyNode, serving...)
				pods := map[int]int{}
				for port := range all {
					pods[a.open(t, port)]++
				}
				if len(pods) != len(serving) {
					t.Errorf("with endpoints %v associations are sent to %v", serving, pods)
				}
			}
			w.serve(t, everyNode, 2)
		})
	}
}

// associations opens SCTP associations from a client's address, and sees which pods get the packets.
type associations struct {
	client *net.IPConn
	to     netip.Addr
	// got has a client's port and a pod for each packet.
	got chan [2]int
}

func newAssociations(t *testing.T, w *wired, family model.Family) *associations {
	t.Helper()
	const manyPackets = 1000
	a := &associations{to: direct.addr(family), got: make(chan [2]int, manyPackets)}
	listen := func(h *lab.Host, at netip.Addr) (c *net.IPConn) {
		must(t, h.Do(func() (err error) {
			c, err = net.ListenIP(map[model.Family]string{model.IPv4: "ip4:132", model.IPv6: "ip6:132"}[family], &net.IPAddr{IP: at.AsSlice()})
			return err
		}))
		return c
	}
	a.client = listen(w.client, clientAddr(family, 0))
	t.Cleanup(func() { a.client.Close() })
	for _, n := range w.nodes[2:] {
		c := listen(n.pod, podAddr(family, n.number))
		ended := make(chan struct{})
		t.Cleanup(func() { c.Close(); <-ended })
		go func() {
			defer close(ended)
			for packet := make([]byte, 100); ; {
				length, _, err := c.ReadFromIP(packet)
				if err != nil {
					return
				}
				if length >= 2 {
					select {
					case a.got <- [2]int{int(binary.BigEndian.Uint16(packet)) - firstAssociation, n.number}:
					default: // nobody asks any more
					}
				}
			}
		}()
	}
	return a
}

const firstAssociation = 20000

// open sends the packet that opens an association, and returns the pod that gets it. It sends it again if it is lost.
func (a *associations) open(t *testing.T, port int) (pod int) {
	t.Helper()
	const length = 32 // a common header and an INIT chunk
	packet := make([]byte, length)
	binary.BigEndian.PutUint16(packet, uint16(firstAssociation+port))
	binary.BigEndian.PutUint16(packet[2:], 80)
	packet[12], packet[15], packet[19], packet[25], packet[27] = 1, length-12, 1, 1, 1 // its type, length, tag, and streams
	binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
	await.Until(t, fmt.Sprintf("a pod gets association %d", port), func() error {
		if _, err := a.client.WriteToIP(packet, &net.IPAddr{IP: a.to.AsSlice()}); err != nil {
			return err
		}
		for deadline := time.After(time.Second); ; {
			select {
			case got := <-a.got:
				if got[0] == port {
					pod = got[1]
					return nil
				} // else it is a late copy
			case <-deadline:
				return errors.New("it is lost")
			}
		}
	})
	return pod
}
