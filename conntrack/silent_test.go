package conntrack

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ti-mo/conntrack"
)

func TestConnSilentServers(t *testing.T) {
	c, table := newTable(t)
	port := uint16(2000)
	connections := func(n int, server string, seconds uint32, state uint8, status conntrack.Status) {
		for range n {
			f := flow(6, "10.244.3.1:1000", "10.96.0.10:80", server)
			port++
			f.Source = netip.AddrPortFrom(f.Source.Addr(), port)
			add(t, table, f, func(e *conntrack.Flow) { e.Timeout, e.ProtoInfo.TCP.State, e.Status = seconds, state, status })
		}
	}
	const (
		synSent, established = 1, 3
		answered             = conntrack.StatusConfirmed | conntrack.StatusSeenReply
		waits                = conntrack.StatusConfirmed
	)
	connections(3, "10.244.1.1:8080", 100, synSent, waits)        // silent
	connections(2, "10.244.1.2:8080", 100, synSent, waits)        // too few
	connections(5, "10.244.1.3:8080", 200, synSent, waits)        // sent just now
	connections(5, "10.244.1.4:8080", 100, established, answered) // answered
	connections(4, "10.244.1.5:8080", 100, synSent, waits)        // silent, and answered others
	connections(4, "10.244.1.5:8080", 100, established, answered)
	got, err := c.SilentServers(t.Context(), 118*time.Second, 3, 100)
	var servers []string
	for _, f := range got {
		servers = append(servers, f.Server.String())
		if f.Dialed != netip.MustParseAddrPort("10.96.0.10:80") {
			t.Errorf("%+v", f)
		}
	}
	if diff := cmp.Diff([]string{"10.244.1.1:8080", "10.244.1.5:8080"}, slices.Sorted(slices.Values(servers))); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := c.SilentServers(t.Context(), 118*time.Second, 3, 22); len(got) > 0 || !errors.Is(err, ErrLargeTable) {
		t.Errorf("a table of 23 entries, of which 22 may be listed: %v, %v", got, err)
	}
}
