package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/model"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// newTable returns a connection to the table of a network namespace of the test's own, and one
// by which the test can do what it wants there.
func newTable(t testing.TB) (*Conn, *conntrack.Conn) {
	t.Helper()
	ns := newNamespace(t)
	c, err := Dial(int(ns))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	table, err := conntrack.Dial(&netlink.Config{NetNS: int(ns)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return c, table
}

func newNamespace(t testing.TB) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	original, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer original.Close()
	ns, err := netns.New()
	if err != nil {
		t.Fatalf("make a network namespace (needs root): %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := netns.Set(original); err != nil {
		t.Fatal(err) // The thread stays locked and ends with the test.
	}
	runtime.UnlockOSThread()
	return ns
}

// add makes an entry that expires in an hour.
func add(t testing.TB, table *conntrack.Conn, f Flow, edits ...func(*conntrack.Flow)) {
	t.Helper()
	entry := conntrack.NewFlow(f.Protocol, 0, f.Source.Addr(), f.Dialed.Addr(), f.Source.Port(), f.Dialed.Port(), 3600, 0)
	entry.TupleReply.IP.SourceAddress, entry.TupleReply.Proto.SourcePort = f.Server.Addr(), f.Server.Port()
	for _, edit := range edits {
		edit(&entry)
	}
	if f.Protocol == unix.IPPROTO_TCP {
		entry.ProtoInfo.TCP = &conntrack.ProtoInfoTCP{State: 3}
	}
	if err := table.Create(entry); err != nil {
		t.Fatalf("create an entry for %v: %v", f, err)
	}
}

func flow(protocol uint8, source, dialed, server string) Flow {
	return Flow{Protocol: protocol, Source: netip.MustParseAddrPort(source), Dialed: netip.MustParseAddrPort(dialed), Server: netip.MustParseAddrPort(server)}
}

var (
	dns4  = flow(unix.IPPROTO_UDP, "10.244.1.9:1000", "10.96.0.10:53", "10.244.1.1:5353")
	dns6  = flow(unix.IPPROTO_UDP, "[fd00::9]:1000", "[fd00:96::a]:53", "[fd00:1::1]:5353")
	plain = flow(unix.IPPROTO_UDP, "10.244.1.9:1001", "10.96.0.10:53", "10.96.0.10:53")
	web4  = flow(unix.IPPROTO_TCP, "10.244.1.9:1000", "10.96.0.10:53", "10.244.1.1:5353")
	web6  = flow(unix.IPPROTO_TCP, "[fd00::9]:1000", "[fd00:96::a]:53", "[fd00:1::1]:5353")
	sctp4 = flow(unix.IPPROTO_SCTP, "10.244.1.9:1000", "10.96.0.10:53", "10.244.1.1:5353")
)

// held returns what the table holds by another library's reading, sorted and printed.
func held(t *testing.T, table *conntrack.Conn) (flows []string) {
	t.Helper()
	entries, err := table.Dump(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		flows = append(flows, fmt.Sprint(Flow{
			Protocol: e.TupleOrig.Proto.Protocol,
			Source:   netip.AddrPortFrom(e.TupleOrig.IP.SourceAddress, e.TupleOrig.Proto.SourcePort),
			Dialed:   netip.AddrPortFrom(e.TupleOrig.IP.DestinationAddress, e.TupleOrig.Proto.DestinationPort),
			Server:   netip.AddrPortFrom(e.TupleReply.IP.SourceAddress, e.TupleReply.Proto.SourcePort),
		}))
	}
	slices.Sort(flows)
	return flows
}

func printed(flows ...Flow) (out []string) {
	for _, f := range flows {
		out = append(out, fmt.Sprint(f))
	}
	slices.Sort(out)
	return out
}

func TestDeleteFlows(t *testing.T) {
	all := []Flow{dns4, dns6, plain, web4, web6, sctp4}
	every := func(Flow) bool { return true }
	for _, tt := range []struct {
		name     string
		family   model.Family
		protocol uint8
		stale    func(Flow) bool
		listed   []Flow
		deleted  []Flow
	}{
		{"all UDP flows over IPv4", model.IPv4, unix.IPPROTO_UDP, every, []Flow{dns4, plain}, []Flow{dns4, plain}},
		{"all UDP flows over IPv6", model.IPv6, unix.IPPROTO_UDP, every, []Flow{dns6}, []Flow{dns6}},
		{"all TCP flows over IPv4", model.IPv4, unix.IPPROTO_TCP, every, []Flow{web4}, []Flow{web4}},
		{"those that were translated", model.IPv4, unix.IPPROTO_UDP, Flow.Translated, []Flow{dns4, plain}, []Flow{dns4}},
		{"none", model.IPv4, unix.IPPROTO_UDP, func(Flow) bool { return false }, []Flow{dns4, plain}, nil},
		{"of a protocol that nobody speaks", model.IPv4, unix.IPPROTO_UDPLITE, every, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, table := newTable(t)
			for _, f := range all {
				add(t, table, f)
			}
			var listed []Flow
			stats, err := c.DeleteFlows(tt.family, tt.protocol, func(f Flow) bool {
				listed = append(listed, f)
				return tt.stale(f)
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(printed(tt.listed...), printed(listed...)); diff != "" {
				t.Errorf("looked at (-want +got):\n%s", diff)
			}
			// More would mean that the kernel did not pick the protocol.
			if stats.Listed != len(tt.listed) || stats.Deleted != len(tt.deleted) || stats.Duration <= 0 {
				t.Errorf("%+v, want %d listed and %d deleted", stats, len(tt.listed), len(tt.deleted))
			}
			left := slices.DeleteFunc(slices.Clone(all), func(f Flow) bool { return slices.Contains(tt.deleted, f) })
			if diff := cmp.Diff(printed(left...), held(t, table)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFlowsInAZoneOfTheirOwnAreDeletedToo(t *testing.T) {
	c, table := newTable(t)
	add(t, table, dns4)
	add(t, table, dns4, func(e *conntrack.Flow) { e.Zone = 7 })
	if stats, err := c.DeleteFlows(model.IPv4, unix.IPPROTO_UDP, Flow.Translated); err != nil || stats.Deleted != 2 {
		t.Errorf("%+v, %v; want 2 deleted", stats, err)
	}
	if left := held(t, table); left != nil {
		t.Errorf("left: %v", left)
	}
}

func TestAFlowThatIsGoneMeanwhileIsNoError(t *testing.T) {
	c, table := newTable(t)
	add(t, table, dns4)
	add(t, table, plain)
	stats, err := c.DeleteFlows(model.IPv4, unix.IPPROTO_UDP, func(f Flow) bool {
		if err := table.Flush(); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if err != nil || stats.Deleted != 0 {
		t.Errorf("%+v, %v; want nothing deleted and no error", stats, err)
	}
}

// An entry with the addresses of one that is gone was made by the rules as they are now.
func TestALaterFlowWithTheSameAddressesStays(t *testing.T) {
	c, table := newTable(t)
	add(t, table, dns4)
	var earlier entry
	if err := c.list(listRequest(model.IPv4, unix.IPPROTO_UDP), func(e entry) { earlier = e }); err != nil {
		t.Fatal(err)
	}
	earlier.id[0] ^= 1
	if deleted, err := c.delete(model.IPv4, [][]byte{earlier.name()}); deleted != 0 || err != nil {
		t.Errorf("%d deleted, %v; want none and no error", deleted, err)
	}
	if diff := cmp.Diff(printed(dns4), held(t, table)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestManyFlowsAreDeleted(t *testing.T) {
	c, table := newTable(t)
	for i := range 2*deleteAtOnce + 1 {
		f := dns4
		f.Source = client(i)
		add(t, table, f)
	}
	add(t, table, plain)
	if stats, err := c.DeleteFlows(model.IPv4, unix.IPPROTO_UDP, Flow.Translated); err != nil || stats.Deleted != 2*deleteAtOnce+1 {
		t.Errorf("%+v, %v; want %d deleted", stats, err, 2*deleteAtOnce+1)
	}
	if diff := cmp.Diff(printed(plain), held(t, table)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestAnEntryThatCannotBeDeletedDoesNotKeepTheOthers(t *testing.T) {
	for name, arrange := range map[string]func(bad, good []byte) [][]byte{
		"before": func(bad, good []byte) [][]byte { return [][]byte{bad, good} },
		"after":  func(bad, good []byte) [][]byte { return [][]byte{good, bad} },
	} {
		t.Run(name, func(t *testing.T) {
			c, table := newTable(t)
			add(t, table, dns4)
			var good []byte
			if err := c.list(listRequest(model.IPv4, unix.IPPROTO_UDP), func(e entry) { good = e.name() }); err != nil {
				t.Fatal(err)
			}
			bad := appendAttribute(nil, ctaTupleOrig|nested, nil)
			if deleted, err := c.delete(model.IPv4, arrange(bad, good)); deleted != 1 || !errors.Is(err, unix.EINVAL) {
				t.Errorf("%d deleted, %v; want 1 and %v", deleted, err, unix.EINVAL)
			}
			if left := held(t, table); left != nil {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestAfterAnErrorTheNextSearchStartsAnew(t *testing.T) {
	c, table := newTable(t)
	add(t, table, dns4)
	if err := c.nl.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteFlows(model.IPv4, unix.IPPROTO_UDP, Flow.Translated); err == nil {
		t.Fatal("a search over a closed socket had no error")
	}
	if stats, err := c.DeleteFlows(model.IPv4, unix.IPPROTO_UDP, Flow.Translated); err != nil || stats.Deleted != 1 {
		t.Errorf("%+v, %v; want 1 deleted", stats, err)
	}
}
