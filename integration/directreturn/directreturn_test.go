// Package directreturn tests direct return with several nodes behind a router.
package directreturn

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// flows is how many connections of each family and protocol are open at a time.
const flows = 250

func TestDirectReturn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		direct bool
	}{
		{"with direct return connections outlive an ingress node, and pods see the client", true},
		{"without, the dead node's connections are lost, and pods see nodes", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := compiler.Default()
			config.DirectReturn = tt.direct
			f := newFabric(t, config)
			f.startPods(t)
			f.serve(t, true, 2, 3, 4)
			open := f.open(t, "tcp", "udp")
			f.expectSources(t, open, tt.direct)
			if tt.direct {
				expectSpread(t, open)
				if n := f.nodes[1].entries(t); n != 0 {
					t.Errorf("node 1, which has no pod, has %d conntrack entries of the Service", n)
				}
			}
			f.spread(t, 2, 3, 4)
			lost := open.lost(t)
			t.Logf("of %d connections %d are lost after node 1 went", len(open), lost)
			switch {
			case tt.direct && lost > 0:
				t.Errorf("%d of %d connections are lost", lost, len(open))
			case !tt.direct && lost < len(open)/10:
				t.Errorf("%d of %d connections are lost: the test does not show the difference", lost, len(open))
			}
		})
	}
}

// A connection's slot may move to another endpoint, or back. The endpoint that has the connection keeps it.
func TestMovedSlots(t *testing.T) {
	config := compiler.Default()
	config.DirectReturn = true
	f := newFabric(t, config)
	f.startPods(t)
	f.serve(t, true, 2)
	open := f.open(t, "tcp")
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"two endpoints came", func() { f.serve(t, true, 2, 3, 4) }},
		{"no packet enters by the node of the connections", func() { f.spread(t, 1, 3, 4) }},
		{"nodes disagree", func() { f.serveAt(t, 1, true, 2); f.serveAt(t, 3, true, 2, 3) }},
		{"an endpoint went that has none of them", func() { f.serve(t, true, 2, 3) }},
		{"their endpoint terminates", func() { f.drain(t, []int{3, 4}, 2) }},
	} {
		step.do()
		if lost := open.lost(t); lost > 0 {
			t.Errorf("%s: %d of %d connections are lost", step.name, lost, len(open))
		}
	}
	if n := f.nodes[1].entries(t); n != 0 {
		t.Errorf("node 1, which has no pod, has %d conntrack entries of the Service", n)
	}
	t.Run("a packet of no connection ends", func(t *testing.T) {
		f.serve(t, true, 2, 3, 4)
		expectStrayPacketEnds(t, f)
	})
}

// expectStrayPacketEnds sends packets of connections that nobody knows, and counts their copies on the wire: at most one
// to the slot's owner, three from there, and each of them once back.
func expectStrayPacketEnds(t *testing.T, f *fabric) {
	t.Helper()
	const sent = 100
	before := f.received(t)
	must(t, f.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet4{Addr: serviceAddr(model.IPv4).As4()}
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
	time.Sleep(200 * time.Millisecond)
	if copies := f.received(t) - before; copies > 10*sent {
		t.Errorf("%d stray packets became %d", sent, copies)
	} else {
		t.Logf("%d stray packets became %d", sent, copies)
	}
}

// received counts the packets that all nodes have received from the router or from each other.
func (f *fabric) received(t *testing.T) (n uint64) {
	t.Helper()
	for _, node := range f.nodes[1:] {
		n += node.link(t, "eth0").Attrs().Statistics.RxPackets
	}
	return n
}

// connection is an open connection, or a UDP flow, of the client.
type connection struct {
	net.Conn
	family model.Family
	udp    bool
	// pod and source are the endpoint that answered and the address that it saw.
	pod    string
	source netip.AddrPort
}

type connections []*connection

// open opens connections from many ports of the client, and asks each endpoint who it is and whom it sees.
func (f *fabric) open(t *testing.T, networks ...string) (open connections) {
	t.Helper()
	for _, family := range families {
		for _, network := range networks {
			for range flows {
				c := &connection{family: family, udp: network == "udp"}
				must(t, f.client.Do(func() (err error) {
					to := netip.AddrPortFrom(serviceAddr(family), 80)
					c.Conn, err = net.DialTimeout(network, to.String(), 5*time.Second)
					return err
				}))
				t.Cleanup(func() { c.Close() })
				answer, err := c.ask(5 * time.Second)
				if err != nil {
					t.Fatalf("%s to %s: %v", network, c.RemoteAddr(), err)
				}
				pod, source, _ := strings.Cut(answer, " ")
				c.pod, c.source = pod, netip.MustParseAddrPort(source)
				open = append(open, c)
			}
		}
	}
	return open
}

// ask sends a line and returns the answer, a line too.
func (c *connection) ask(wait time.Duration) (string, error) {
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("who\n")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// lost counts the connections that no longer answer, or whose answer is from another endpoint.
func (cs connections) lost(t *testing.T) (lost int) {
	t.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, c := range cs {
		group.Go(func() {
			answer, err := c.ask(5 * time.Second)
			if pod, _, _ := strings.Cut(answer, " "); err != nil || pod != c.pod {
				mu.Lock()
				defer mu.Unlock()
				lost++
			}
		})
	}
	group.Wait()
	return lost
}

func (f *fabric) expectSources(t *testing.T, open connections, kept bool) {
	t.Helper()
	wrong := 0
	for _, c := range open {
		if same := c.source == c.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort(); same != kept {
			wrong++
		}
	}
	if wrong > 0 {
		t.Errorf("of %d connections %d have another source than expected (client's address kept: %v)", len(open), wrong, kept)
	}
}

// expectSpread fails if an endpoint has far more or fewer connections than its share. The slots are even within 5 %; the
// rest is chance.
func expectSpread(t *testing.T, open connections) {
	t.Helper()
	load := map[string]int{}
	for _, c := range open {
		load[c.pod]++
	}
	t.Logf("connections by endpoint: %v", load)
	share := len(open) / 3
	for pod, n := range load {
		if n < share*8/10 || n > share*12/10 {
			t.Errorf("%s has %d of %d connections, want about %d", pod, n, len(open), share)
		}
	}
}

// startPods makes every pod answer each line with its name and the address that it sees.
func (f *fabric) startPods(t *testing.T) {
	t.Helper()
	for n, pod := range f.pods {
		if pod == nil {
			continue
		}
		name := fmt.Sprintf("pod-%d", n)
		must(t, pod.Do(func() error {
			listener, err := net.Listen("tcp", ":8080")
			if err != nil {
				return err
			}
			t.Cleanup(func() { listener.Close() })
			go accept(listener, name)
			packets, err := net.ListenPacket("udp", ":8080")
			if err != nil {
				return err
			}
			t.Cleanup(func() { packets.Close() })
			go answer(packets, name)
			return nil
		}))
	}
}

func accept(listener net.Listener, name string) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for in := bufio.NewScanner(c); in.Scan(); {
				fmt.Fprintf(c, "%s %s\n", name, unmapped(c.RemoteAddr()))
			}
		}()
	}
}

func answer(packets net.PacketConn, name string) {
	buffer := make([]byte, 100)
	for {
		_, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		fmt.Fprintf(writer{packets, from}, "%s %s\n", name, unmapped(from))
	}
}

// writer sends datagrams to one address.
type writer struct {
	net.PacketConn
	to net.Addr
}

func (w writer) Write(b []byte) (int, error) { return w.WriteTo(b, w.to) }

func unmapped(a net.Addr) netip.AddrPort {
	ap := a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func TestRules(t *testing.T) {
	config := compiler.Default()
	config.DirectReturn = true
	f := newFabric(t, config)
	f.serve(t, true, 2, 3, 4)
	t.Run("list and load in the nft program", func(t *testing.T) {
		listed := runNft(t, f.nodes[2], "", "-s", "list", "ruleset")
		if !strings.Contains(listed, "dup to ip6 daddr . meta l4proto . th dport . jhash ip6 saddr . th sport mod 4093") {
			t.Error("nft lists no dup by the hash of a client")
		}
		runNft(t, f.nodes[2], "flush ruleset\n"+listed, "-f", "-")
		if again := runNft(t, f.nodes[2], "", "-s", "list", "ruleset"); again != listed {
			t.Errorf("nft lists other rules after it loaded them:\n%.2000s", again)
		}
	})
	t.Run("are there only while a Service asks for them", func(t *testing.T) {
		f.serve(t, false, 2, 3, 4)
		if listed := runNft(t, f.nodes[1], "", "list", "chains"); strings.Contains(listed, "direct") {
			t.Errorf("no Service has direct return, and there are chains for it:\n%s", listed)
		}
	})
	t.Run("are repaired", func(t *testing.T) {
		f.serve(t, true, 2, 3, 4)
		before := runNft(t, f.nodes[3], "", "-s", "list", "ruleset")
		runNft(t, f.nodes[3], "", "flush", "map", "ip", "kube-proxy", "direct-hops")
		runNft(t, f.nodes[3], "", "flush", "chain", "ip6", "kube-proxy", "direct-forward")
		if _, err := f.backends[3].Check(klog.NewContext(t.Context(), logr.Discard())); err != nil {
			t.Fatal(err)
		}
		if after := runNft(t, f.nodes[3], "", "-s", "list", "ruleset"); after != before {
			t.Errorf("the rules are others after the repair:\n%.2000s", after)
		}
	})
}

func runNft(t *testing.T, h *host, stdin string, args ...string) string {
	t.Helper()
	var out strings.Builder
	err := h.Do(func() error {
		command := exec.Command("nft", args...)
		command.Stdin, command.Stdout, command.Stderr = strings.NewReader(stdin), &out, &out
		return command.Run()
	})
	if err != nil {
		t.Fatalf("nft %s: %v\n%.2000s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}
