package proxy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	trackedby "github.com/ti-mo/conntrack"
)

// flows is a Backend with a Cleaner of connection tracking, in a network namespace of the test's own.
type flows struct {
	*testing.T
	backend *Backend
	cleaner *conntrack.Cleaner
	table   *trackedby.Conn
}

func newFlows(t *testing.T) *flows {
	t.Helper()
	namespace := netns.ForTest(t).FD()
	rules, err := nft.Dial(nft.Config{NetNS: namespace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rules.Close() })
	f := &flows{T: t}
	if f.table, err = trackedby.Dial(&netlink.Config{NetNS: namespace}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.table.Close() })
	if f.backend, err = NewBackend(rules, compiler.Default(), Hooks{}); err != nil {
		t.Fatal(err)
	}
	if f.cleaner, err = conntrack.NewCleaner(conntrack.CleanerOptions{NetNS: namespace}); err != nil {
		t.Fatal(err)
	}
	f.backend.RemoveStaleFlows(f.cleaner)
	return f
}

// dns is a UDP Service port of that ClusterIP, with one endpoint.
func dns(clusterIP string) *model.ServicePort {
	return &model.ServicePort{
		ID:        model.PortID{Namespace: "ns", Service: "dns-" + clusterIP, Protocol: model.UDP, Family: model.IPv4},
		ClusterIP: netip.MustParseAddr(clusterIP), Port: 53,
		Serving: []netip.AddrPort{netip.MustParseAddrPort("10.244.1.1:5353")},
	}
}

func (f *flows) sync(changes *model.Changes) {
	f.Helper()
	if err := f.backend.Sync(f.Context(), changes); err != nil {
		f.Fatal(err)
	}
}

// add adds a UDP flow to that address, which the server answers.
func (f *flows) add(dialed, server string) {
	f.Helper()
	to, from := netip.MustParseAddrPort(dialed), netip.MustParseAddrPort(server)
	entry := trackedby.NewFlow(uint8(model.UDP), 0, netip.MustParseAddr("10.244.1.9"), to.Addr(), 999, to.Port(), 3600, 0)
	entry.TupleReply.IP.SourceAddress, entry.TupleReply.Proto.SourcePort = from.Addr(), from.Port()
	if err := f.table.Create(entry); err != nil {
		f.Fatal(err)
	}
}

func (f *flows) held() int {
	f.Helper()
	entries, err := f.table.Dump(nil)
	if err != nil {
		f.Fatal(err)
	}
	return len(entries)
}

// While somebody else's doing leaves the tables without rules, packets of UDP clients go untranslated, and conntrack
// keeps them so for as long as their client sends.
func TestBackendFlowsAfterARepair(t *testing.T) {
	for _, tt := range []struct {
		name   string
		repair func(*flows)
	}{
		{"by a check", func(c *flows) {
			if repaired, err := c.backend.Check(c.Context()); err != nil || !repaired {
				c.Fatalf("Check = %v, %v", repaired, err)
			}
		}},
		{"by a Sync of something else, after the kernel refused the repair", func(c *flows) {
			owner := commitOwned(c)
			if _, err := c.backend.Check(c.Context()); err == nil {
				c.Fatal("the kernel lets the backend change a table that another program owns")
			}
			if err := owner.Close(); err != nil {
				c.Fatal(err)
			}
			c.sync(changesOf())
		}},
		{"by a Sync of something else", func(c *flows) {
			c.sync(changesOf(dns("10.96.0.2")))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFlows(t)
			port := dns("10.96.0.1")
			port.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
			fullSync(t, c.backend, port)
			if err := c.cleaner.Clean(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, f := range nft.Families {
				commit(t, c.backend.conn, nft.Remove(f, compiler.TableName))
			}
			c.add("10.96.0.1:53", "10.96.0.1:53")
			c.add("203.0.113.1:53", "10.244.1.1:5353")
			tt.repair(c)
			if err := c.cleaner.Clean(t.Context()); err != nil || c.held() != 1 {
				t.Errorf("%d flows are left (%v), want the translated one only", c.held(), err)
			}
		})
	}
}

// A client that conntrack knows must be in its map at once when lost tables come back: otherwise its next connection
// may choose another endpoint, and that choice stays. Nothing restores clients later here, because Watch does not run.
func TestBackendAffinityFromConntrack(t *testing.T) {
	port := dns("10.96.0.1")
	port.AffinityTimeout = time.Hour
	for _, n := range []byte{1, 2} {
		port.Cluster = append(port.Cluster, model.Endpoint{AddrPort: stickyEndpoint(n)})
	}
	expect := func(c *flows) {
		c.Helper()
		m := mapOf(c.T, c.backend, port)
		want := m.Element(netip.MustParseAddr("10.244.1.9"), stickyEndpoint(2))
		got := clientsIn(c.T, c.backend.reader, m)
		if len(got) != 1 || got[0].Key != want.Key || got[0].Value != want.Value {
			c.Errorf("the map has %v, want %v", got, want)
		}
	}
	t.Run("in the first Sync", func(t *testing.T) {
		c := newFlows(t)
		c.add("10.96.0.1:53", stickyEndpoint(2).String())
		fullSync(t, c.backend, port)
		expect(c)
	})
	t.Run("in a repair", func(t *testing.T) {
		c := newFlows(t)
		fullSync(t, c.backend, port)
		c.add("10.96.0.1:53", stickyEndpoint(2).String())
		for _, f := range nft.Families {
			commit(t, c.backend.conn, nft.Remove(f, compiler.TableName))
		}
		if repaired, err := c.backend.Check(t.Context()); err != nil || !repaired {
			t.Fatalf("Check = %v, %v", repaired, err)
		}
		expect(c)
	})
}

// commitOwned makes another program the owner of the proxy's IPv4 table, until it closes the connection.
func commitOwned(c *flows) *nft.Conn {
	c.Helper()
	netns.NeedLinux(c.T, 6, 9) // table flag persist
	owner, err := c.backend.conn.Another()
	if err != nil {
		c.Fatal(err)
	}
	commit(c.T, owner, nft.Replace(&nft.Table{Family: nft.FamilyIP, Name: compiler.TableName, Owner: true, Persist: true}))
	return owner
}
