package localnodeport

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nftproxy/nftproxy/model"
)

func endpoint(host byte) model.Endpoint {
	return model.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), 80)}
}

func three() []model.Endpoint { return []model.Endpoint{endpoint(1), endpoint(2), endpoint(3)} }

// drawn counts what n connections at the same moment get.
func drawn(t *testing.T, c *choice, n int, now time.Time) map[netip.AddrPort]int {
	t.Helper()
	counts := map[netip.AddrPort]int{}
	for range n {
		e, ok := c.draw(now, nil)
		if !ok {
			t.Fatal("nothing drawn")
		}
		counts[e]++
	}
	return counts
}

func TestChoice(t *testing.T) {
	t.Run("draws any endpoint without affinity", testEndpointsAreDrawnWithoutAffinity)
	t.Run("keeps a client's endpoint for the timeout", testChoiceAffinity)
	t.Run("affinity ends with its endpoint", testAffinityEndsWithItsEndpoint)
	t.Run("does not draw again an endpoint tried in vain", testEndpointTriedInVainIsNotDrawnAgain)
}

func testEndpointsAreDrawnWithoutAffinity(t *testing.T) {
	var c choice
	c.update(three(), 0)
	// One of three is left out of 200 draws once in 10^35 runs.
	if counts := drawn(t, &c, 200, time.Now()); len(counts) != 3 {
		t.Errorf("drawn: %v", counts)
	}
}

func testChoiceAffinity(t *testing.T) {
	var c choice
	c.update(three(), time.Minute)
	now := time.Now()
	first, _ := c.draw(now, nil)
	for i := range 100 {
		now = now.Add(time.Minute - 1)
		if e, _ := c.draw(now, nil); e != first {
			t.Fatalf("draw %d within the timeout moved from %s to %s", i, first, e)
		}
		c.update(three(), time.Minute)
	}
	moved := 0
	for range 200 {
		now = now.Add(time.Minute)
		if e, _ := c.draw(now, nil); e != first {
			moved++
		}
	}
	if moved == 0 {
		t.Errorf("200 draws after the timeout all kept %s", first)
	}
}

func testAffinityEndsWithItsEndpoint(t *testing.T) {
	var c choice
	c.update([]model.Endpoint{endpoint(1)}, time.Hour)
	now := time.Now()
	drawn(t, &c, 1, now)
	c.update([]model.Endpoint{endpoint(2), endpoint(3)}, time.Hour)
	second := drawn(t, &c, 50, now)
	if len(second) != 1 || second[endpoint(1).AddrPort] > 0 {
		t.Errorf("after the endpoint went: %v, want one of the others only", second)
	}
}

func testEndpointTriedInVainIsNotDrawnAgain(t *testing.T) {
	for _, affinity := range []time.Duration{0, time.Hour} {
		var c choice
		c.update(three(), affinity)
		now := time.Now()
		var tried []netip.AddrPort
		for e, ok := c.draw(now, tried); ok && len(tried) < 10; e, ok = c.draw(now, tried) {
			tried = append(tried, e)
		}
		want := []netip.AddrPort{endpoint(1).AddrPort, endpoint(2).AddrPort, endpoint(3).AddrPort}
		if diff := cmp.Diff(want, tried, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.SortSlices(netip.AddrPort.Compare)); diff != "" {
			t.Errorf("affinity %v: tried (-want +got):\n%s", affinity, diff)
		}
		if affinity > 0 {
			if counts := drawn(t, &c, 50, now); counts[tried[2]] != 50 {
				t.Errorf("kept %v, want the last one tried, %s", counts, tried[2])
			}
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, test := range []struct {
		name        string
		cidrs, want []string
	}{
		{"none", nil, nil},
		{"the keyword localhost", []string{"127.0.0.0/8", "::1/128"}, []string{"127.0.0.1", "::1"}},
		{"one address", []string{"127.0.0.1/32"}, []string{"127.0.0.1"}},
		{"beside others", []string{"0.0.0.0/0", "192.168.0.0/16", "127.0.0.0/24"}, []string{"127.0.0.1"}},
		{"several", []string{"127.0.0.0/8", "127.0.0.1/32", "127.0.0.5/32", "127.1.2.3/16"}, []string{"127.0.0.1", "127.0.0.5", "127.1.0.0"}},
		{"everything does not ask for loopback", []string{"0.0.0.0/0", "::/0"}, nil},
		{"nor does what merely contains it", []string{"126.0.0.0/7", "127.0.0.0/7", "::/64"}, nil},
		{"nor what does not", []string{"192.0.2.0/24", "fd00::/8", "::2/128"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var cidrs []netip.Prefix
			for _, text := range test.cidrs {
				cidrs = append(cidrs, netip.MustParsePrefix(text))
			}
			var got []string
			for _, addr := range Addresses(cidrs) {
				got = append(got, addr.String())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}
