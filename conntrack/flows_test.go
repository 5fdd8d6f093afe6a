package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// newTable returns a connection to the table of a network namespace of the test's own, and one
// by which the test can do what it wants there.
func newTable(t testing.TB) (*Conn, *conntrack.Conn) {
	t.Helper()
	return newTableIn(t, netns.ForTest(t))
}

func newTableIn(t testing.TB, ns *netns.Namespace) (*Conn, *conntrack.Conn) {
	t.Helper()
	c, err := Dial(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	table, err := conntrack.Dial(&netlink.Config{NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return c, table
}

// add makes an entry that expires in an hour.
func add(t testing.TB, table *conntrack.Conn, f Flow, edits ...func(*conntrack.Flow)) {
	t.Helper()
	entry := conntrack.NewFlow(f.Protocol, 0, f.Source.Addr(), f.Dialed.Addr(), f.Source.Port(), f.Dialed.Port(), 3600, 0)
	entry.TupleReply.IP.SourceAddress, entry.TupleReply.Proto.SourcePort = f.Server.Addr(), f.Server.Port()
	if f.Protocol == unix.IPPROTO_TCP {
		entry.ProtoInfo.TCP = &conntrack.ProtoInfoTCP{State: 3}
	}
	for _, edit := range edits {
		edit(&entry)
	}
	if err := table.Create(entry); err != nil {
		t.Fatalf("create an entry for %v: %v", f, err)
	}
}

// flow returns what the kernel lists of an entry that add made.
func flow(protocol uint8, source, dialed, server string) Flow {
	f := Flow{Protocol: protocol, Source: netip.MustParseAddrPort(source), Dialed: netip.MustParseAddrPort(dialed), Server: netip.MustParseAddrPort(server)}
	if protocol == unix.IPPROTO_TCP {
		f.State = "ESTABLISHED"
	}
	return f
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
		flows = append(flows, fmt.Sprint(flow(
			e.TupleOrig.Proto.Protocol,
			netip.AddrPortFrom(e.TupleOrig.IP.SourceAddress, e.TupleOrig.Proto.SourcePort).String(),
			netip.AddrPortFrom(e.TupleOrig.IP.DestinationAddress, e.TupleOrig.Proto.DestinationPort).String(),
			netip.AddrPortFrom(e.TupleReply.IP.SourceAddress, e.TupleReply.Proto.SourcePort).String(),
		)))
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
			stats, err := c.DeleteFlows(t.Context(), tt.family, tt.protocol, func(f Flow) bool {
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
	t.Run("in a zone of their own", testDeleteFlowsInAZoneOfTheirOwn)
	t.Run("that are gone meanwhile", testDeleteFlowsThatAreGoneMeanwhile)
	t.Run("keeps a later one with the same addresses", testDeleteFlowsKeepsALaterOneWithTheSameAddresses)
	t.Run("of which there are many", testDeleteFlowsOfWhichThereAreMany)
	t.Run("with a refused entry", testDeleteFlowsWithARefusedEntry)
	t.Run("deletes while it lists", testDeleteFlowsDeletesWhileItLists)
	t.Run("ends with its context", testDeleteFlowsEndsWithItsContext)
}

func testDeleteFlowsInAZoneOfTheirOwn(t *testing.T) {
	c, table := newTable(t)
	add(t, table, dns4)
	add(t, table, dns4, func(e *conntrack.Flow) { e.Zone = 7 })
	if stats, err := c.DeleteFlows(t.Context(), model.IPv4, unix.IPPROTO_UDP, Flow.Translated); err != nil || stats.Deleted != 2 {
		t.Errorf("%+v, %v; want 2 deleted", stats, err)
	}
	if left := held(t, table); left != nil {
		t.Errorf("left: %v", left)
	}
}

func testDeleteFlowsThatAreGoneMeanwhile(t *testing.T) {
	c, table := newTable(t)
	add(t, table, dns4)
	add(t, table, plain)
	stats, err := c.DeleteFlows(t.Context(), model.IPv4, unix.IPPROTO_UDP, func(f Flow) bool {
		if err := table.Flush(); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if err != nil || stats.Deleted != 0 {
		t.Errorf("%+v, %v; want nothing deleted and no error", stats, err)
	}
}

// entryOf returns the only IPv4 UDP entry.
func entryOf(t *testing.T, c *Conn, protocol uint8) (only entry) {
	t.Helper()
	if n, err := c.each(t.Context(), Query{Family: model.IPv4, Protocol: protocol}, 0, func(e entry) bool { only = e; return true }); n != 1 || err != nil {
		t.Fatalf("%d entries, %v; want 1", n, err)
	}
	return only
}

// An entry with the addresses of one that is gone was made by the rules as they are now.
func testDeleteFlowsKeepsALaterOneWithTheSameAddresses(t *testing.T) {
	c, table := newTable(t)
	add(t, table, dns4)
	earlier := entryOf(t, c, unix.IPPROTO_UDP)
	earlier.id[0] ^= 1
	d := deletion{conn: c, ctx: t.Context(), family: model.IPv4}
	d.add(earlier.name())
	if err := d.finish(); d.deleted != 0 || err != nil {
		t.Errorf("%d deleted, %v; want none and no error", d.deleted, err)
	}
	if diff := cmp.Diff(printed(dns4), held(t, table)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func testDeleteFlowsOfWhichThereAreMany(t *testing.T) {
	c, table := newTable(t)
	for i := range 2*deleteAtOnce + 1 {
		f := dns4
		f.Source = client(i)
		add(t, table, f)
	}
	add(t, table, plain)
	if stats, err := c.DeleteFlows(t.Context(), model.IPv4, unix.IPPROTO_UDP, Flow.Translated); err != nil || stats.Deleted != 2*deleteAtOnce+1 {
		t.Errorf("%+v, %v; want %d deleted", stats, err, 2*deleteAtOnce+1)
	}
	if diff := cmp.Diff(printed(plain), held(t, table)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func testDeleteFlowsWithARefusedEntry(t *testing.T) {
	for name, arrange := range map[string]func(bad, good []byte) [][]byte{
		"a refused entry does not keep the next one":     func(bad, good []byte) [][]byte { return [][]byte{bad, good} },
		"a refused entry does not keep the one before":   func(bad, good []byte) [][]byte { return [][]byte{good, bad} },
		"a refused entry does not keep the next request": func(bad, good []byte) [][]byte { return append(slices.Repeat([][]byte{bad}, deleteAtOnce), good) },
	} {
		t.Run(name, func(t *testing.T) {
			c, table := newTable(t)
			add(t, table, dns4)
			good := entryOf(t, c, unix.IPPROTO_UDP)
			var bad netlinkattr.List
			bad.End(bad.Begin(ctaTupleOrig))
			d := deletion{conn: c, ctx: t.Context(), family: model.IPv4}
			names := arrange(bad, good.name())
			for _, name := range names {
				d.add(name)
			}
			if err := d.finish(); d.deleted != 1 || d.refused != len(names)-1 || !errors.Is(err, unix.EINVAL) {
				t.Errorf("%d deleted, %d refused, %v; want 1, %d and %v", d.deleted, d.refused, err, len(names)-1, unix.EINVAL)
			}
			if left := held(t, table); left != nil {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func testDeleteFlowsDeletesWhileItLists(t *testing.T) {
	c, table := newTable(t)
	// More than fit into two datagrams, so that the kernel cannot have handed over all of them.
	const many = 2 * datagramSize / 100
	for i := range many {
		f := dns4
		f.Source = client(i)
		add(t, table, f)
	}
	seen, left := 0, 0
	_, err := c.DeleteFlows(t.Context(), model.IPv4, unix.IPPROTO_UDP, func(Flow) bool {
		if seen++; seen == many {
			left = len(held(t, table))
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if left == 0 || left > deleteAtOnce {
		t.Errorf("%d of %d entries are left when the last is listed, want at most %d", left, many, deleteAtOnce)
	}
}

func TestConn(t *testing.T) {
	t.Run("times out", testConnTimeout)
	t.Run("is safe for concurrent use", testConnIsSafeForConcurrentUse)
}

func testConnTimeout(t *testing.T) {
	c, table := newTable(t)
	t.Run("a kernel that does not answer ends the search", func(t *testing.T) {
		s, err := c.open(0)
		if err != nil {
			t.Fatal(err)
		}
		defer s.nl.Close()
		s.timeout = 200 * time.Millisecond
		// To a deletion that succeeds the kernel has no answer, unless it is asked for one.
		add(t, table, dns4)
		e := entryOf(t, c, unix.IPPROTO_UDP)
		err = s.list(request(msgDelete, 0, model.IPv4, e.name()), func(entry) bool { return true })
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v, want %v", err, os.ErrDeadlineExceeded)
		}
	})
	t.Run("a search may take longer than one answer", func(t *testing.T) {
		const many = 2000
		for i := range many {
			f := dns4
			f.Source = client(i)
			add(t, table, f)
		}
		c.timeout = time.Second
		begin, seen := time.Now(), 0
		err := c.Each(t.Context(), model.IPv4, unix.IPPROTO_UDP, func(Flow) {
			if seen++; seen%(many/10) == 0 {
				time.Sleep(c.timeout / 4)
			}
		})
		if err != nil || seen != many || time.Since(begin) < 2*c.timeout {
			t.Errorf("%d of %d entries in %v, %v; want all, and more than %v", seen, many, time.Since(begin), err, 2*c.timeout)
		}
	})
}

func testDeleteFlowsEndsWithItsContext(t *testing.T) {
	c, table := newTable(t)
	for i := range 1000 {
		f := dns4
		f.Source = client(i)
		add(t, table, f)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	_, err := c.DeleteFlows(ctx, model.IPv4, unix.IPPROTO_UDP, func(Flow) bool {
		seen++
		cancel()
		return false
	})
	if !errors.Is(err, context.Canceled) || seen == 1000 {
		t.Errorf("saw %d of 1000 entries, %v; want fewer and %v", seen, err, context.Canceled)
	}
	t.Run("the next search is not concerned", func(t *testing.T) {
		if stats, err := c.DeleteFlows(t.Context(), model.IPv4, unix.IPPROTO_UDP, Flow.Translated); err != nil || stats.Deleted != 1000 {
			t.Errorf("%+v, %v; want 1000 deleted", stats, err)
		}
	})
}

func testConnIsSafeForConcurrentUse(t *testing.T) {
	c, table := newTable(t)
	for i := range 500 {
		f := dns4
		f.Source = client(i)
		add(t, table, f)
	}
	var searches errgroup.Group
	for range 8 {
		searches.Go(func() error {
			seen := 0
			if err := c.Each(t.Context(), model.IPv4, unix.IPPROTO_UDP, func(Flow) { seen++ }); err != nil {
				return err
			}
			if seen != 500 {
				return fmt.Errorf("saw %d entries, want 500", seen)
			}
			return nil
		})
	}
	if err := searches.Wait(); err != nil {
		t.Error(err)
	}
}

func TestDeleteUntranslated(t *testing.T) {
	answered := func(f *conntrack.Flow) { f.Status |= conntrack.StatusConfirmed | conntrack.StatusSeenReply }
	for name, tt := range map[string]struct {
		flow    Flow
		edit    func(*conntrack.Flow)
		deleted bool
	}{
		"a connection that nobody has answered is deleted": {flow(unix.IPPROTO_TCP, "10.244.1.9:1000", "10.96.0.10:80", "10.96.0.10:80"), func(*conntrack.Flow) {}, true},
		"one that somebody has answered stays":             {flow(unix.IPPROTO_TCP, "10.244.1.9:1000", "10.96.0.10:80", "10.96.0.10:80"), answered, false},
		"one of another protocol stays":                    {plain, func(*conntrack.Flow) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, table := newTable(t)
			add(t, table, tt.flow, tt.edit)
			stats, err := c.DeleteUntranslated(t.Context(), model.IPv4, unix.IPPROTO_TCP, func(f Flow) bool { return !f.Translated() })
			if err != nil {
				t.Fatal(err)
			}
			want := printed(tt.flow)
			if tt.deleted {
				want = nil
			} else if stats.Listed != 0 {
				t.Errorf("the kernel handed over %d entries, want none", stats.Listed)
			}
			if diff := cmp.Diff(want, held(t, table)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFlowState(t *testing.T) {
	tcp := func(state uint8) func(*conntrack.Flow) {
		return func(f *conntrack.Flow) { f.ProtoInfo.TCP = &conntrack.ProtoInfoTCP{State: state} }
	}
	for _, tt := range []struct {
		want     string
		protocol uint8
		finished bool
		edit     func(*conntrack.Flow)
	}{
		{"SYN_SENT", unix.IPPROTO_TCP, false, tcp(1)},
		{"ESTABLISHED", unix.IPPROTO_TCP, false, tcp(3)},
		{"CLOSE_WAIT", unix.IPPROTO_TCP, false, tcp(5)},
		{"TIME_WAIT", unix.IPPROTO_TCP, true, tcp(7)},
		{"CLOSE", unix.IPPROTO_TCP, true, tcp(8)},
		{"ESTABLISHED", unix.IPPROTO_SCTP, false, func(f *conntrack.Flow) {
			f.ProtoInfo.SCTP = &conntrack.ProtoInfoSCTP{State: 4, VTagOriginal: 1, VTagReply: 2}
		}},
		{"", unix.IPPROTO_UDP, false, func(*conntrack.Flow) {}},
	} {
		t.Run(fmt.Sprintf("%d/%s", tt.protocol, tt.want), func(t *testing.T) {
			c, table := newTable(t)
			add(t, table, flow(tt.protocol, "10.244.1.9:1000", "10.96.0.10:53", "10.244.1.1:5353"), tt.edit)
			f := entryOf(t, c, tt.protocol).flow
			if f.State != tt.want || f.Finished() != tt.finished {
				t.Errorf("state %q, finished %v; want %q, %v", f.State, f.Finished(), tt.want, tt.finished)
			}
		})
	}
}
