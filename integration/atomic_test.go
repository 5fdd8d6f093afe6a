package integration

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"golang.org/x/sys/unix"
)

// dualStack returns the ports of a Service with an address and the endpoints in each family.
func dualStack(name string, host byte, endpoints ...byte) *model.Changes {
	changes := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
	for _, f := range model.Families {
		at := func(network, host byte) netip.Addr {
			if f == model.IPv6 {
				return netip.AddrFrom16([16]byte{0xfd, 1: network, 15: host})
			}
			return netip.AddrFrom4([4]byte{10, network, 0, host})
		}
		p := &model.ServicePort{
			ID:        model.PortID{Namespace: "default", Service: name, Protocol: model.TCP, Family: f},
			ClusterIP: at(96, host), Port: 80,
		}
		for _, e := range endpoints {
			p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(at(244, e), 8080)})
		}
		changes.Ports[p.ID] = p
	}
	return changes
}

// started returns a backend that has committed one Service already.
func started(t *testing.T, c *nft.Conn) *proxy.Backend {
	t.Helper()
	b, err := proxy.NewBackend(c, compiler.Default(), proxy.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	first := dualStack("first", 1, 1, 2)
	first.Full, first.Node, first.ServiceCIDRsChanged = true, &model.Node{Name: "node-1"}, true
	mustSync(t, b, first)
	return b
}

func mustSync(t *testing.T, b *proxy.Backend, changes *model.Changes) {
	t.Helper()
	if err := b.Sync(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
}

func checkHeld(t *testing.T, c *nft.Conn, b *proxy.Backend) {
	t.Helper()
	if diff := cmp.Diff(flows.PrintTables(b.Tables()), flows.PrintTables(readBack(t, c))); diff != "" {
		t.Errorf("the kernel holds (-wanted +held):\n%s", diff)
	}
}

func generation(t *testing.T, c *nft.Conn) uint32 {
	t.Helper()
	n, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// rawSocket opens a netlink socket in the host's namespace, next to the proxy's.
func rawSocket(t *testing.T, h *lab.Host) *netlink.Conn {
	t.Helper()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(h.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestBatch(t *testing.T) {
	t.Run("a dual-stack change is exactly one", testDualStackChangeIsExactlyOneBatch)
	t.Run("ones that fail change and lose nothing", testFailingCommitsChangeAndLoseNothing)
	t.Run("one refused in the middle is replaced in the same Sync", testBatchRefusedInTheMiddleIsReplacedInTheSameSync)
}

func testDualStackChangeIsExactlyOneBatch(t *testing.T) {
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	b := started(t, c)
	announced := lab.WatchBatches(t, l.Node, "")
	for _, tc := range []struct {
		name    string
		changes *model.Changes
		batches int
	}{
		{"a new Service", dualStack("second", 2, 3, 4, 5), 1},
		{"the same again", dualStack("second", 2, 3, 4, 5), 0},
		{"another number of endpoints", dualStack("second", 2, 3), 1},
		{"a change of the node only", &model.Changes{Node: &model.Node{Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}}, 1},
		{"no endpoint left", dualStack("second", 2), 1},
		{"nothing", &model.Changes{}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := generation(t, c)
			mustSync(t, b, tc.changes)
			if got := int(generation(t, c) - before); got != tc.batches {
				t.Errorf("the generation went up by %d, want %d", got, tc.batches)
			}
			if got := announced(); got != tc.batches {
				t.Errorf("the kernel announced %d batches, want %d", got, tc.batches)
			}
			checkHeld(t, c, b)
		})
	}
}

// takeTable makes another process's table of a name: as long as its socket is open nobody
// else can change or delete it. The function returned closes the socket, and the kernel
// then deletes the table.
func takeTable(t *testing.T, h *lab.Host, family nft.Family, name string) (release func()) {
	t.Helper()
	const tableOwner = 2 // NFT_TABLE_F_OWNER, kernel 5.12
	c := rawSocket(t, h)
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.NFTA_TABLE_NAME, name)
	ae.Bytes(unix.NFTA_TABLE_FLAGS, []byte{0, 0, 0, tableOwner})
	attrs, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	marker := func(typ uint16) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	if _, err := c.SendMessages([]netlink.Message{
		marker(unix.NFNL_MSG_BATCH_BEGIN),
		{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE, Flags: netlink.Request | netlink.Create | netlink.Acknowledge},
			Data:   append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, attrs...),
		},
		marker(unix.NFNL_MSG_BATCH_END),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(); err != nil {
		t.Fatalf("take table %s %s: %v", family, name, err)
	}
	return func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func testFailingCommitsChangeAndLoseNothing(t *testing.T) {
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	b := started(t, c)
	// The IPv6 table becomes somebody else's, so the batch fails after its IPv4 half.
	if _, err := c.Commit(t.Context(), nft.Remove(nft.FamilyIP6, compiler.TableName)); err != nil {
		t.Fatal(err)
	}
	release := takeTable(t, l.Node, nft.FamilyIP6, compiler.TableName)
	before, generationBefore := flows.PrintTables(readBack(t, c)), generation(t, c)
	for _, changes := range []*model.Changes{dualStack("second", 2, 3, 4), dualStack("first", 1, 2)} {
		err := b.Sync(t.Context(), changes)
		var refused *nft.CommitError
		if !errors.As(err, &refused) || !errors.Is(err, unix.EPERM) {
			t.Fatalf("Sync = %v, want a CommitError with EPERM", err)
		}
		if !strings.Contains(refused.Step, "ip6 "+compiler.TableName) {
			t.Errorf("the refused step is %q, want one on the IPv6 table", refused.Step)
		}
		if !strings.Contains(err.Error(), "belongs to another process") {
			t.Errorf("the error does not say whose the table is: %v", err)
		}
		if diff := cmp.Diff(before, flows.PrintTables(readBack(t, c))); diff != "" {
			t.Errorf("a refused batch changed the kernel:\n%s", diff)
		}
	}
	if got := generation(t, c); got != generationBefore {
		t.Errorf("refused batches took the generation from %d to %d", generationBefore, got)
	}
	release()
	mustSync(t, b, &model.Changes{})
	checkHeld(t, c, b)
	held := flows.PrintTables(readBack(t, c))
	for _, frontend := range []string{
		`10.96.0.2 . tcp . 80 comment "default/second" : goto cluster-2`, `fd60::2 . tcp . 80 comment "default/second" : goto cluster-2`,
		`10.96.0.1 . tcp . 80 comment "default/first" : goto cluster-1`, `fd60::1 . tcp . 80 comment "default/first" : goto cluster-1`,
	} {
		if !strings.Contains(held, frontend) {
			t.Errorf("what came while commits failed is not there: %s\n%s", frontend, held)
		}
	}
}

func testBatchRefusedInTheMiddleIsReplacedInTheSameSync(t *testing.T) {
	l := lab.ForTest(t)
	for _, tc := range []struct{ name, by string }{
		{"everything was flushed", "flush ruleset"},
		{"both tables are gone", "delete table ip kube-proxy\ndelete table ip6 kube-proxy"},
		{"the IPv6 table is gone", "delete table ip6 kube-proxy"},
		{"an element that goes was taken", "delete element ip6 kube-proxy endpoints { fd60::1 . tcp . 80 . 1 }"},
		{"a chain that goes was taken into use", "add chain ip6 kube-proxy mine\nadd rule ip6 kube-proxy mine jump cluster-2"},
		{"a chain that comes is there", "add chain ip6 kube-proxy cluster-1 { type filter hook input priority 0; }"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := lab.Conn(t, l.Node)
			b := started(t, c)
			lab.Nft(t, l.Node, tc.by+"\n", "-f", "-")
			before := generation(t, c)
			mustSync(t, b, dualStack("first", 1, 1))
			if got := generation(t, c) - before; got != 1 {
				t.Errorf("it took %d batches, want the replacement alone", got)
			}
			checkHeld(t, c, b)
			if err := proxy.Cleanup(context.Background(), c, ""); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestCleanup(t *testing.T) {
	t.Run("removes both tables and nothing else", testCleanupRemovesBothTablesAndNothingElse)
}

func testCleanupRemovesBothTablesAndNothingElse(t *testing.T) {
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	started(t, c)
	lab.Nft(t, l.Node, "add table ip somebody-elses\n", "-f", "-")
	for range 2 {
		if err := proxy.Cleanup(context.Background(), c, ""); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff("table ip somebody-elses\n", lab.Nft(t, l.Node, "", "list", "tables")); diff != "" {
			t.Errorf("tables after cleaning up (-want +got):\n%s", diff)
		}
	}
}
