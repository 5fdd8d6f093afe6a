package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
)

var byAddress = cmp.Options{cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.SortSlices(func(a, b Flow) bool { return a.Source.Compare(b.Source) < 0 })}

func TestConnEntries(t *testing.T) {
	c, table := newTable(t)
	other := flow(unix.IPPROTO_UDP, "10.244.1.9:1002", "10.96.0.11:53", "10.244.1.1:5353")
	port := flow(unix.IPPROTO_UDP, "10.244.1.9:1003", "10.96.0.10:54", "10.244.1.1:5353")
	for _, f := range []Flow{dns4, dns6, plain, web4, web6, other, port} {
		add(t, table, f)
	}
	for _, test := range []struct {
		name string
		q    Query
		want []Flow
	}{
		{"a protocol", Query{Family: model.IPv4, Protocol: unix.IPPROTO_TCP}, []Flow{web4}},
		{"an address and port", Query{model.IPv4, unix.IPPROTO_UDP, netip.MustParseAddrPort("10.96.0.10:53")}, []Flow{dns4, plain}},
		{"an IPv6 address and port", Query{model.IPv6, unix.IPPROTO_UDP, dns6.Dialed}, []Flow{dns6}},
		{"a port of any address", Query{model.IPv4, unix.IPPROTO_UDP, netip.AddrPortFrom(netip.Addr{}, 53)}, []Flow{dns4, plain, other}},
		{"nothing", Query{model.IPv4, unix.IPPROTO_UDP, netip.MustParseAddrPort("10.96.0.99:53")}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []Flow
			listed, err := c.each(t.Context(), test.q, 0, func(e entry) bool { got = append(got, e.entry().Flow); return true })
			if diff := cmp.Diff(test.want, got, byAddress); diff != "" || err != nil {
				t.Errorf("-want +got, %v:\n%s", err, diff)
			}
			if listed != len(test.want) && test.q.Family == model.IPv4 {
				t.Errorf("the kernel listed %d entries, want %d", listed, len(test.want))
			}
		})
	}
}

func TestConnEntriesHaveDetails(t *testing.T) {
	ns := netns.ForTest(t)
	if err := ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_timestamp", []byte("1"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	c, table := newTableIn(t, ns)
	add(t, table, dns4, func(f *conntrack.Flow) { f.Status |= conntrack.StatusConfirmed | conntrack.StatusSeenReply })
	var got Entry
	if err := c.Entries(t.Context(), Query{Family: model.IPv4, Protocol: unix.IPPROTO_UDP}, func(e Entry) { got = e }); err != nil {
		t.Fatal(err)
	}
	if got.Flow != dns4 || !got.Answered || got.Left < 59*time.Minute || got.Left > time.Hour || time.Since(got.Begun).Abs() > time.Minute {
		t.Errorf("%+v", got)
	}
}

func TestConnFollow(t *testing.T) {
	c, table := newTable(t)
	ctx, cancel := context.WithCancel(t.Context())
	events, ready, done := make(chan Event, 10), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- c.Follow(ctx, func() { close(ready) }, func(e Event) error { events <- e; return nil })
	}()
	await.Receive(t, "Follow", ready)
	add(t, table, dns6)
	if e := await.Receive(t, "an event", events); e.Flow != dns6 || e.Ended || e.Lost {
		t.Errorf("began: %+v", e)
	}
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	if e := await.Receive(t, "an event", events); e.Flow != dns6 || !e.Ended || e.Lost {
		t.Errorf("ended: %+v", e)
	}
	cancel()
	if err := await.Receive(t, "the end of Follow", done); !errors.Is(err, context.Canceled) {
		t.Errorf("ends with %v", err)
	}
}

// Who does not read in time hears that events were lost, and then hears of later ones.
func TestConnFollowSaysWhatItLost(t *testing.T) {
	c, table := newTable(t)
	c.eventBuffer = 1 << 12
	ready, resume := make(chan struct{}), make(chan struct{})
	var lost, seen atomic.Bool
	go c.Follow(t.Context(), func() { close(ready); <-resume }, func(e Event) error {
		lost.Store(lost.Load() || e.Lost)
		seen.Store(seen.Load() || lost.Load() && e.Flow.Dialed == dns6.Dialed)
		return nil
	})
	await.Receive(t, "Follow", ready)
	for i := range 200 {
		f := dns4
		f.Source = netip.AddrPortFrom(f.Source.Addr(), uint16(2000+i))
		add(t, table, f)
	}
	close(resume)
	await.True(t, "lost events are told", lost.Load)
	later := dns6
	await.True(t, "a later event is told", func() bool { // not always the first: there may still be no room for it
		later.Source = netip.AddrPortFrom(later.Source.Addr(), later.Source.Port()+1)
		add(t, table, later)
		return seen.Load()
	})
}
