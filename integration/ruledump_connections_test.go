package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/ti-mo/conntrack"
	routes "github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// talksEndpoints are the endpoints of shop/web in the pods of talks.
var talksEndpoints = []string{"10.244.1.5", "10.244.1.6"}

// talks is a node with the example's rules and clients of shop/web.
type talks struct {
	*lab.Lab
	conn *nft.Conn
}

func newTalks(t *testing.T) *talks {
	t.Helper()
	l := lab.ForTest(t)
	x := &talks{l, lab.Conn(t, l.Node)}
	replace(t, x.conn, exampleTables(t))
	for _, addr := range talksEndpoints {
		pod, err := l.AddPod(addr, netip.MustParseAddr(addr))
		if err != nil {
			t.Fatal(err)
		}
		lab.ServeTCP(t, pod, addr+":8080", lab.Echo)
	}
	return x
}

func (x *talks) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := x.Outside.DialContext(t.Context(), "tcp", "192.0.2.10:80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// tries opens connections from outside, which stay open until the test ends, and returns how many came about and how many did
// not.
func (x *talks) tries(t *testing.T, n int) (answered, unanswered int) {
	t.Helper()
	for range n {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		c, err := x.Outside.DialContext(ctx, "tcp", "192.0.2.10:80")
		cancel()
		if err != nil {
			unanswered++
			continue
		}
		t.Cleanup(func() { c.Close() })
		answered++
	}
	return answered, unanswered
}

func (x *talks) connections(t *testing.T, args ...string) (list verb.Connections) {
	t.Helper()
	if err := json.Unmarshal([]byte(runRuledump(t, x.Node, append([]string{"connections", "-o=json"}, args...)...)), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// known returns the flows to shop/web that another library reads from conntrack, as "source -> server: packets, bytes".
func (x *talks) known(t *testing.T) map[string]bool {
	t.Helper()
	table, err := conntrack.Dial(&netlink.Config{NetNS: int(x.Node.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	flows, err := table.Dump(nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, f := range flows {
		if f.TupleOrig.IP.DestinationAddress.String() != "192.0.2.10" {
			continue
		}
		source := netip.AddrPortFrom(f.TupleOrig.IP.SourceAddress, f.TupleOrig.Proto.SourcePort)
		server := netip.AddrPortFrom(f.TupleReply.IP.SourceAddress, f.TupleReply.Proto.SourcePort)
		found[flowText(source, server, f.CountersOrig.Packets+f.CountersReply.Packets, f.CountersOrig.Bytes+f.CountersReply.Bytes)] = true
	}
	return found
}

func flowText(source, server netip.AddrPort, packets, bytes uint64) string {
	return fmt.Sprintf("%s -> %s: %d packets, %d bytes", source, server, packets, bytes)
}

func TestRuledumpConnections(t *testing.T) {
	t.Run("are those of the kernel under churn", testRuledumpConnectionsAreTheKernels)
	t.Run("to endpoints that are gone are marked", testRuledumpConnectionsUnserved)
	t.Run("that nobody answers are told from the others", testRuledumpConnectionsUnanswered)
	t.Run("are found by each cell of their row", testRuledumpConnectionsCells)
	t.Run("are followed", testRuledumpConnectionsFollow)
}

// Whatever another library reads both before and after the list is in the list, and nothing else but flows that it
// reads before or after. A flow of which packets come counts once more for each number of packets.
func testRuledumpConnectionsAreTheKernels(t *testing.T) {
	x := newTalks(t)
	if err := x.Node.Do(func() error { return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_acct", []byte("1"), 0) }); err != nil {
		t.Fatal(err)
	}
	const lasting = 20
	for range lasting {
		if _, err := fmt.Fprint(x.dial(t), "x"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var churn errgroup.Group
	churn.Go(func() error {
		for ctx.Err() == nil {
			c, err := x.Outside.DialContext(t.Context(), "tcp", "192.0.2.10:80")
			if err != nil {
				return err
			}
			c.Close()
		}
		return nil
	})
	await.Until(t, "connections lists the flows that another library reads", func() error {
		before := x.known(t)
		list := x.connections(t, "--limit=0", "shop/web")
		after := x.known(t)
		listed := map[string]bool{}
		for _, f := range list.Flows {
			listed[flowText(f.Source, f.Server, f.Packets, f.Bytes)] = true
		}
		settled := 0
		for flow := range before {
			if after[flow] {
				settled++
				if !listed[flow] {
					return fmt.Errorf("not listed: %s", flow)
				}
			}
		}
		if settled < lasting || len(before) == len(after) {
			return fmt.Errorf("%d flows before, %d after, %d in both", len(before), len(after), settled)
		}
		return nil
	})
	stop()
	if err := churn.Wait(); err != nil {
		t.Error(err)
	}
	for by, want := range map[string]string{"client": "198.51.100.7", "node": "dev veth-", "endpoint": "10.244.1."} {
		total := 0
		for _, sum := range x.connections(t, "--by="+by).Sums {
			total += sum.Connections - sum.Finished
			if sum.ServicePort != "shop/web:http" || !strings.HasPrefix(sum.Of, want) || sum.Bytes == 0 {
				t.Errorf("--by %s: %+v", by, sum)
			}
		}
		if total < lasting {
			t.Errorf("--by %s has %d connections, want %d", by, total, lasting)
		}
	}
}

// A connection to an endpoint that the rules no longer have is marked, and so is one that began without rules.
func testRuledumpConnectionsUnserved(t *testing.T) {
	x := newTalks(t)
	c := x.dial(t)
	if list := x.connections(t, "shop/web"); list.Total != 1 || list.Unserved != 0 || list.Flows[0].Source.String() != c.LocalAddr().String() || list.Flows[0].State != "ESTABLISHED" {
		t.Fatalf("%+v", list)
	}
	if list := x.connections(t, "shop/web", "--unserved"); list.Total != 0 {
		t.Errorf("--unserved has %+v", list)
	}
	server := x.connections(t).Flows[0].Server
	key := fmt.Sprintf("192.0.2.10 . tcp . 80 . %d", slices.Index(talksEndpoints, server.Addr().String()))
	lab.Nft(t, x.Node, fmt.Sprintf("delete element ip kube-proxy local-endpoints { %s }\nadd element ip kube-proxy local-endpoints { %[1]s : 10.244.1.9 . 8080 }\n"+
		"delete element ip kube-proxy endpoints { %[1]s }\nadd element ip kube-proxy endpoints { %[1]s : 10.244.1.9 . 8080 }\n", key), "-f", "-")
	text := runRuledump(t, x.Node, "connections", "--unserved")
	if want := fmt.Sprintf("%s  192.0.2.10:80/TCP  %s  no", c.LocalAddr(), server); !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
}

// One of two endpoints drops what it gets, as a firewall in a pod's own namespace does.
func testRuledumpConnectionsUnanswered(t *testing.T) {
	x := newTalks(t)
	const silent = "10.244.1.6"
	lab.Nft(t, x.HostOf(netip.MustParseAddr(silent)), "table ip t { chain c { type filter hook input priority 0; policy drop; }; }", "-f", "-")
	answered, unanswered := x.tries(t, 20)
	if answered == 0 || unanswered == 0 {
		t.Fatalf("%d connections are answered, %d are not", answered, unanswered)
	}
	all := x.connections(t, "--by=endpoint")
	if len(all.Sums) != 2 || all.Unanswered != unanswered || all.Total != 20 {
		t.Errorf("%+v", all)
	}
	for _, sum := range all.Sums {
		want := 0
		if sum.Of == silent+":8080" {
			want = unanswered
		}
		if sum.Unanswered != want {
			t.Errorf("%s has %d unanswered connections, want %d", sum.Of, sum.Unanswered, want)
		}
	}
	if list := x.connections(t, "--unanswered", "--by=endpoint"); len(list.Sums) != 1 || list.Sums[0].Of != silent+":8080" || list.Total != unanswered {
		t.Errorf("--unanswered: %+v", list)
	}
	if text := runRuledump(t, x.Node, "connections", "--unanswered", "-o=wide"); strings.Count(text, "SYN_SENT") != unanswered || strings.Contains(text, "no route") {
		t.Errorf("%d connections are unanswered, and it prints\n%s", unanswered, text)
	}
	if err := x.Node.Routes().RouteReplace(&routes.Route{Dst: &net.IPNet{IP: net.ParseIP(silent).To4(), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_UNREACHABLE}); err != nil {
		t.Fatal(err)
	}
	if list := x.connections(t, "--unanswered", "--by=node"); len(list.Sums) != 1 || list.Sums[0].Of != "no route" {
		t.Errorf("without a route: %+v", list)
	}
}

// Each cell that names something selects the connection, and explain takes the addresses among them.
func testRuledumpConnectionsCells(t *testing.T) {
	x := newTalks(t)
	c := x.dial(t)
	lines := strings.Split(runRuledump(t, x.Node, "connections", "-o=wide"), "\n")
	gap := regexp.MustCompile(` {2,}`)
	head, cells := gap.Split(lines[0], -1), gap.Split(lines[1], -1)
	for i, cell := range cells {
		switch head[i] {
		case "SERVES", "LEFT", "AGE", "BYTES", "PACKETS":
			continue
		case "DIALED", "ENDPOINT", "SERVICE PORT":
			runRuledump(t, x.Node, "explain", "--from=10.244.1.7", "--to", cell)
			runRuledump(t, x.Node, "services", cell)
		}
		if text := runRuledump(t, x.Node, "connections", cell); !strings.Contains(text, "  "+c.LocalAddr().String()+"  ") {
			t.Errorf("connections %q does not print the connection:\n%s", cell, text)
		}
	}
	if len(cells) != len(head) || cells[1] != c.LocalAddr().String() {
		t.Errorf("%q for %q", cells, head)
	}
	for _, other := range []string{"198.51.100.8", "192.0.2.10:81", "TIME_WAIT", "via 192.168.0.77"} {
		if text := runRuledump(t, x.Node, "connections", "--no-headers", other); text != "" {
			t.Errorf("connections %q prints\n%s", other, text)
		}
	}
}

func testRuledumpConnectionsFollow(t *testing.T) {
	x := newTalks(t)
	p := lab.Start(t, x.Node, "ruledump", "connections", "-w", "shop/web")
	var last net.Conn
	await.True(t, "a new connection is told", func() bool { // the first ones may come before it listens
		last = x.dial(t)
		return strings.Contains(p.Output(), "began")
	})
	p.Says(t, fmt.Sprintf("began shop/web:http %s to 192.0.2.10:80/TCP at 10.244.1.", last.LocalAddr()))
	if err := x.Node.FlushConntrack(); err != nil {
		t.Fatal(err)
	}
	p.Says(t, fmt.Sprintf("ended shop/web:http %s to 192.0.2.10:80/TCP at 10.244.1.", last.LocalAddr()))
	if err := p.Stop(t); err != nil {
		t.Errorf("ends with %v", err)
	}
}

// addConnections makes conntrack of a host remember connections to scale/service-9999, of two clients.
func addConnections(t *testing.T, h *lab.Host, n int) {
	t.Helper()
	table, err := conntrack.Dial(&netlink.Config{NetNS: int(h.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	dialed, server := netip.MustParseAddr("10.96.39.250"), netip.MustParseAddr("10.244.1.9")
	for i := range n {
		client := netip.AddrFrom4([4]byte{10, 244, 1, byte(7 + i%2)})
		f := conntrack.NewFlow(unix.IPPROTO_TCP, conntrack.StatusConfirmed, client, dialed, uint16(1024+i/2), 80, 3600, 0)
		f.TupleReply.IP.SourceAddress, f.TupleReply.Proto.SourcePort = server, 8080
		f.ProtoInfo.TCP = &conntrack.ProtoInfoTCP{State: 3}
		if err := table.Create(f); err != nil {
			t.Fatal(err)
		}
	}
}
