// Package directreturn tests direct return with several nodes behind a router.
package directreturn

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// `make demo-direct-return` sets it.
var demo = flag.Bool("demo", false, "print what TestDirectReturn sees")

func TestMain(m *testing.M) { lab.Main(m) }

// say tells of a test that people watch.
func say(t *testing.T, format string, args ...any) {
	t.Helper()
	if *demo {
		fmt.Printf(format+"\n", args...)
	} else {
		t.Logf(format, args...)
	}
}

func TestDirectReturn(t *testing.T) {
	t.Parallel()
	t.Run("over one segment", func(t *testing.T) { testDirectReturn(t, false) })
	t.Run("over a VXLAN between networks", func(t *testing.T) { testDirectReturn(t, true) })
}

func testDirectReturn(t *testing.T, overlay bool) {
	t.Parallel()
	say(t, "A client, a router and four nodes with kube-proxy and bird; pods on nodes 2, 3 and 4.")
	f := newFabric(t, overlay)
	counted := f.startPods(t)
	f.startRouter(t)
	f.announce(t, 1, 2, 3, 4)
	f.start(t, serving(2, 3, 4), 1, 2, 3, 4)
	f.awaitHops(t, 1, 2, 3, 4)
	ours, theirs := f.open(t, direct, "tcp", "udp"), f.open(t, masqueraded, "tcp", "udp")
	say(t, "%d connections and UDP flows to each of two Services with the same pods are open, half of them IPv6.", len(ours))
	say(t, "Pods see the client's own address: with direct return for %d, without for %d.", ours.kept(), theirs.kept())
	if kept := ours.kept(); kept != len(ours) {
		t.Errorf("pods see the client's address of %d of %d connections", kept, len(ours))
	}
	if kept := theirs.kept(); kept != 0 {
		t.Errorf("without direct return pods see the client's address of %d of %d connections", kept, len(theirs))
	}
	f.expectEntriesWithPods(t)
	f.expectSpread(t, counted)
	moved := float64(lateDatagrams) // UDP flows that may be lost because their slots moved, in this step or before
	for _, step := range f.steps(t) {
		f.reopen(t, direct, ours)
		moved += most(len(families)*flows, step.moves)
		f.reopen(t, masqueraded, theirs)
		own := ours.byPod()[step.of]
		var lost, lostTheirs outcome
		begin := time.Now()
		took := time.Duration(0)
		lostTheirs = theirs.during(func() {
			lost = ours.during(func() {
				step.do()
				took = time.Since(begin)
			})
		})
		say(t, "\n%s (%v)\n    with direct return: %v\n    without:            %v", step.name, took.Round(time.Millisecond), lost, lostTheirs)
		foreign := slices.DeleteFunc(slices.Clone(lost.gone), func(c *connection) bool { return c.pod == step.of })
		for _, c := range foreign {
			t.Logf("lost: %s", c.why)
		}
		tcp, udp := foreign.count("tcp"), foreign.count("udp")
		if moved -= float64(udp); tcp > 0 || moved < 0 {
			t.Errorf("%s: %d connections and %d UDP flows are lost, %.0f more of these than moved", step.name, tcp, udp, -moved)
		}
		if gone := lost.lost() - len(foreign); step.of != "" && gone != own {
			t.Errorf("%s: %d of its %d connections are lost", step.name, gone, own)
		}
		if step.shows && lostTheirs.lost() < lostTheirs.of/10 {
			t.Errorf("%s: without direct return %d of %d connections are lost: the test does not show the difference", step.name, lostTheirs.lost(), lostTheirs.of)
		}
	}
}

// lateDatagrams are UDP flows that a busy machine may lose, of 500.
const lateDatagrams = 2

// most returns how many of n flows a share of the slots has at most, but for one case in 30,000.
func most(n int, share float64) float64 {
	return float64(n)*share + 4*math.Sqrt(float64(n)*share*(1-share))
}

// step is something that happens while connections are open, of which those to the Service with direct return must live.
type step struct {
	name string
	do   func()
	// shows says that connections without direct return do not.
	shows bool
	// moves is the share of the slots that moves at most, without that of an endpoint that dies. Their UDP flows move too:
	// those at once that do not enter by the node of their endpoint, and the others when they enter by another node.
	moves float64
	// of is the endpoint that dies with its node, and with all of its connections.
	of string
}

func (f *fabric) steps(t *testing.T) []step {
	later := serving(2, 3, 4, 5)
	later.ports = []int{80, 81}
	without := later
	without.ready = []int{2, 3, 5}
	return []step{
		{name: "Node 1, which has no pod, dies.", shows: true, do: func() {
			f.nodes[1].die(t)
			f.awaitHops(t, 2, 3, 4)
		}},
		{name: "Node 5 comes.", shows: true, do: func() {
			f.start(t, serving(2, 3, 4), 5)
			f.announce(t, 5)
			f.awaitHops(t, 2, 3, 4, 5)
		}},
		{name: "A pod on node 5 becomes an endpoint.", moves: 1.0/4 + 0.02, do: func() { f.tell(t, serving(2, 3, 4, 5), 2, 3, 4, 5) }},
		{name: "Node 3 withdraws its routes.", shows: true, do: func() {
			f.withdraw(t, 3, "disable")
			f.awaitHops(t, 2, 4, 5)
		}},
		{name: "Node 3 announces them again.", do: func() {
			f.withdraw(t, 3, "enable")
			f.awaitHops(t, 2, 3, 4, 5)
		}},
		{name: "kube-proxy restarts on one node after the other.", do: func() {
			for _, n := range f.nodes[2:] {
				must(t, n.proxy.Stop(t))
				n.startProxy(t)
			}
		}},
		{name: "The Services get a port and an annotation.", do: func() { f.tell(t, later, 2, 3, 4, 5) }},
		{name: "The nodes' next hops to pods change.", do: func() { f.route(t, true) }},
		{name: "Node 4 dies with its pod.", of: "pod-4", moves: 0.02, do: func() {
			f.nodes[4].die(t)
			f.awaitHops(t, 2, 3, 5)
			f.tell(t, without, 2, 3, 5) // it may have slots of connections that another endpoint has
		}},
	}
}

// sendDatagrams sends a datagram from each of many ports of a client, always the same ones.
func (f *fabric) sendDatagrams(t *testing.T, family model.Family, client, ports int) {
	t.Helper()
	must(t, f.client.Do(func() error {
		for port := range ports {
			c, err := dial("udp", netip.AddrPortFrom(clientAddr(family, client), uint16(20000+port)), netip.AddrPortFrom(direct.addr(family), 80).String())
			if err != nil {
				return err
			}
			if _, err := c.Write([]byte("count\n")); err != nil {
				return err
			}
			c.Close()
		}
		return nil
	}))
}

// expectSpread sends a datagram of each of many flows, and fails if an endpoint gets 5 % more or less than its share.
// Addresses and ports are the same in each run, and so is the spread.
func (f *fabric) expectSpread(t *testing.T, counted *datagrams) {
	t.Helper()
	const ports = 120
	for _, family := range families {
		for client := range clients {
			f.sendDatagrams(t, family, client, ports)
		}
	}
	const all = int64(len(families) * clients * ports)
	var got []int64
	await.Until(t, "all datagrams arrive", func() error {
		got = nil
		sum := int64(0)
		for n := range counted {
			got = append(got, counted[n].Load())
			sum += got[n]
		}
		if sum != all {
			return fmt.Errorf("%d of %d have", sum, all)
		}
		return nil
	})
	say(t, "Of %d more flows with direct return the pods got %v.", all, got[2:5])
	for _, n := range got[2:5] {
		if n < all/3*95/100 || n > all/3*105/100 {
			t.Errorf("a pod got %d of %d flows", n, all)
		}
	}
}

// A connection's slot may move to another endpoint, or back. The endpoint that has the connection keeps it.
func TestMovedSlots(t *testing.T) {
	t.Parallel()
	f := newFabric(t, false)
	f.startPods(t)
	f.startRouter(t)
	f.announce(t, 1, 2, 3, 4)
	f.start(t, serving(2), 1, 2, 3, 4)
	f.awaitHops(t, 1, 2, 3, 4)
	open := f.open(t, direct, "tcp")
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"two endpoints came", func() { f.tell(t, serving(2, 3, 4), 1, 2, 3, 4) }},
		{"no packet enters by the node of the connections", func() { f.withdraw(t, 2, "disable"); f.awaitHops(t, 1, 3, 4) }},
		{"nodes disagree", func() { f.tell(t, serving(2), 1); f.tell(t, serving(2, 3), 3) }},
		{"an endpoint went that has none of them", func() { f.tell(t, serving(2, 3), 1, 2, 4) }},
		{"their endpoint terminates", func() {
			s := serving(3, 4)
			s.terminating = []int{2}
			f.tell(t, s, 1, 2, 3, 4)
		}},
	} {
		if lost := open.during(step.do); lost.lost() > 0 {
			t.Errorf("%s: %v", step.name, lost)
		}
	}
	f.expectEntriesWithPods(t)
	f.tell(t, serving(2, 3, 4), 1, 2, 3, 4)
	f.withdraw(t, 2, "enable")
	f.awaitHops(t, 1, 2, 3, 4)
	t.Run("a packet of no connection ends", func(t *testing.T) { expectStrayPacketEnds(t, f) })
	t.Run("nodes that disagree for a second send no packet round", func(t *testing.T) { expectNoLoop(t, f) })
}

// expectNoLoop has node 3 know a second before the others that its endpoint went. Packets of its slots are sent on to it,
// and it must not send them back. Who opens a connection meanwhile gets it when the nodes agree.
func expectNoLoop(t *testing.T, f *fabric) {
	t.Helper()
	const sent = 200
	open := f.open(t, direct, "tcp")
	open = slices.DeleteFunc(slices.Clone(open), func(c *connection) bool { return c.pod == "pod-3" })
	f.tell(t, serving(2, 4), 3)
	agree, before := time.Now().Add(time.Second), f.received(t)
	failed := make(chan error, sent)
	for i := range sent {
		from := clientAddr(families[i%2], i%clients)
		go func() {
			failed <- f.client.Do(func() error {
				c := &connection{network: "tcp", from: from}
				if err := c.dial(direct); err != nil {
					return err
				}
				defer c.Close()
				_, _, err := c.ask()
				return err
			})
		}()
	}
	time.Sleep(time.Until(agree))
	copies := f.received(t) - before
	lost := open.during(func() { f.tell(t, serving(2, 4), 1, 2, 4) })
	t.Logf("%d new connections were %d packets on the wire; of the open ones %v", sent, copies, lost)
	// Of 6 packets from the client, each is received twice: 12, if it need not be sent again.
	if copies > 15*sent {
		t.Errorf("%d new connections were %d packets on the wire", sent, copies)
	}
	if lost.lost() > 0 {
		t.Errorf("open connections: %v", lost)
	}
	for range sent {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// expectStrayPacketEnds sends packets of connections that nobody knows, and counts their copies on the wire: at most one
// to the slot's owner, and three from there.
func expectStrayPacketEnds(t *testing.T, f *fabric) {
	t.Helper()
	const sent = 100
	lab.Nft(t, f.router, "table ip stray { chain c { type filter hook forward priority 0; iifname client tcp sport 20000-20099 counter; }; }", "-f", "-")
	before := f.received(t)
	must(t, f.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet4{Addr: direct.addr(model.IPv4).As4()}
		for i := range sent {
			header := make([]byte, 20) // an ACK without a valid checksum, which conntrack calls invalid
			binary.BigEndian.PutUint16(header, uint16(20000+i))
			binary.BigEndian.PutUint16(header[2:], 80)
			header[12], header[13] = 5<<4, 16
			if err := unix.Sendto(fd, header, 0, to); err != nil {
				return err
			}
		}
		return nil
	}))
	await.Until(t, "the router has sent them on", func() error {
		if table := lab.Nft(t, f.router, "", "list", "table", "ip", "stray"); !strings.Contains(table, fmt.Sprintf("packets %d ", sent)) {
			return errors.New(table)
		}
		return nil
	})
	time.Sleep(200 * time.Millisecond)
	if copies := f.received(t) - before; copies > 6*sent {
		t.Errorf("%d stray packets became %d", sent, copies)
	} else {
		t.Logf("%d stray packets became %d", sent, copies)
	}
}

// received counts the packets that all nodes have received from the router or from each other.
func (f *fabric) received(t *testing.T) (n uint64) {
	t.Helper()
	for _, node := range f.nodes[1:] {
		n += link(t, node.Host, "eth0").Attrs().Statistics.RxPackets
	}
	return n
}

// rules lists a host's rules.
func rules(t *testing.T, h *lab.Host) string {
	t.Helper()
	return lab.Nft(t, h, "", "-s", "list", "ruleset")
}

func TestRules(t *testing.T) {
	t.Parallel()
	f := newFabric(t, false)
	f.start(t, serving(2, 3, 4), 1, 2)
	n := f.nodes[2]
	listed := rules(t, n.Host)
	t.Run("are repaired", func(t *testing.T) {
		lab.Nft(t, n.Host, "", "flush", "map", "ip", "kube-proxy", "direct-hops")
		lab.Nft(t, n.Host, "", "flush", "chain", "ip6", "kube-proxy", "direct-forward")
		await.Until(t, "the rules are as before", func() error {
			if after := rules(t, n.Host); after != listed {
				return errors.New("they are not")
			}
			return nil
		})
	})
	t.Run("send open connections on while a Service leaves", func(t *testing.T) {
		s := serving(2, 3, 4)
		s.asks = false
		f.tell(t, s, 1)
		await.Until(t, "the address leaves direct return", func() error {
			if listed := lab.Nft(t, f.nodes[1].Host, "", "list", "set", "ip", "kube-proxy", "direct-leaving"); !strings.Contains(listed, "shop/direct:p80-tcp") {
				return errors.New(listed)
			}
			return nil
		})
		f.tell(t, serving(2, 3, 4), 1)
		if listed := lab.Nft(t, f.nodes[1].Host, "", "list", "chains"); !strings.Contains(listed, "filter-prerouting-direct") {
			t.Errorf("a Service asks for direct return, and there are no rules for it:\n%.2000s", listed)
		}
	})
	t.Run("list and load in the nft program", func(t *testing.T) {
		if !strings.Contains(listed, "dup to ip6 daddr . meta l4proto . th dport . jhash ip6 saddr . th sport mod 4093") {
			t.Error("nft lists no dup by the hash of a client")
		}
		must(t, n.proxy.Stop(t)) // it would repair
		lab.Nft(t, n.Host, "flush ruleset\n"+listed, "-f", "-")
		if again := rules(t, n.Host); again != listed {
			t.Errorf("nft lists other rules after it loaded them:\n%.2000s", again)
		}
	})
}
