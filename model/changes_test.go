package model

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var sameAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestChangesMerge(t *testing.T) {
	a, b := PortID{Service: "a"}, PortID{Service: "b"}
	one, two := &ServicePort{ID: a, Port: 1}, &ServicePort{ID: a, Port: 2}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	type ports = map[PortID]*ServicePort
	for _, tc := range []struct {
		name              string
		first, next, want Changes
	}{
		{
			name:  "the later of two changes to a port counts",
			first: Changes{Ports: ports{a: one, b: nil}},
			next:  Changes{Ports: ports{a: two}},
			want:  Changes{Ports: ports{a: two, b: nil}},
		},
		{
			name: "the first may be empty",
			next: Changes{Ports: ports{a: one}},
			want: Changes{Ports: ports{a: one}},
		},
		{
			name:  "a deletion stays, since a backend may have the port",
			first: Changes{Ports: ports{a: one}},
			next:  Changes{Ports: ports{a: nil}},
			want:  Changes{Ports: ports{a: nil}},
		},
		{
			name:  "a deletion from everything leaves no trace",
			first: Changes{Full: true, Ports: ports{a: one}},
			next:  Changes{Ports: ports{a: nil, b: nil}},
			want:  Changes{Full: true, Ports: ports{}},
		},
		{
			name:  "an addition to everything is still everything",
			first: Changes{Full: true},
			next:  Changes{Ports: ports{a: one}},
			want:  Changes{Full: true, Ports: ports{a: one}},
		},
		{
			name:  "everything replaces what was before",
			first: Changes{Ports: ports{b: nil}, Node: &Node{Name: "old"}, ServiceCIDRsChanged: true},
			next:  Changes{Full: true, Ports: ports{a: one}, Node: &Node{Name: "new"}, ServiceCIDRs: ranges, ServiceCIDRsChanged: true},
			want:  Changes{Full: true, Ports: ports{a: one}, Node: &Node{Name: "new"}, ServiceCIDRs: ranges, ServiceCIDRsChanged: true},
		},
		{
			name:  "node and ranges stay if the later says nothing of them",
			first: Changes{Node: &Node{Name: "n"}, ServiceCIDRs: ranges, ServiceCIDRsChanged: true},
			want:  Changes{Node: &Node{Name: "n"}, ServiceCIDRs: ranges, ServiceCIDRsChanged: true},
		},
		{
			name:  "ranges that are all gone replace ranges",
			first: Changes{ServiceCIDRs: ranges, ServiceCIDRsChanged: true},
			next:  Changes{Node: &Node{Name: "n"}, ServiceCIDRsChanged: true},
			want:  Changes{Node: &Node{Name: "n"}, ServiceCIDRsChanged: true},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.first
			got.Merge(&tc.next)
			if diff := cmp.Diff(tc.want, got, sameAddrs); diff != "" {
				t.Errorf("merged (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChangesEmpty(t *testing.T) {
	for name, c := range map[string]Changes{
		"full":   {Full: true},
		"ports":  {Ports: map[PortID]*ServicePort{{}: nil}},
		"node":   {Node: &Node{}},
		"ranges": {ServiceCIDRsChanged: true},
	} {
		if c.Empty() {
			t.Errorf("%s: changes are said to be empty", name)
		}
	}
	if c := (Changes{ServiceCIDRs: []netip.Prefix{{}}}); !c.Empty() {
		t.Error("ranges that did not change are said to be changes")
	}
}

// apply does to state what a backend does with c.
func apply(state map[PortID]uint16, c *Changes) {
	if c.Full {
		clear(state)
	}
	for id, port := range c.Ports {
		if port == nil {
			delete(state, id)
		} else {
			state[id] = port.Port
		}
	}
}

func TestChangesMergeSequences(t *testing.T) {
	ids := []PortID{{Service: "a"}, {Service: "b"}, {Service: "c"}}
	rapid.Check(t, func(t *rapid.T) {
		gen := func() *Changes {
			c := &Changes{Full: rapid.IntRange(0, 4).Draw(t, "full") == 0}
			for _, id := range ids {
				switch rapid.IntRange(0, 2).Draw(t, "port") {
				case 0:
					if c.Ports == nil {
						c.Ports = map[PortID]*ServicePort{}
					}
					c.Ports[id] = &ServicePort{ID: id, Port: rapid.Uint16().Draw(t, "number")}
				case 1:
					if c.Ports == nil {
						c.Ports = map[PortID]*ServicePort{}
					}
					if !c.Full {
						c.Ports[id] = nil
					}
				}
			}
			return c
		}
		start := gen()
		oneByOne, atOnce := map[PortID]uint16{}, map[PortID]uint16{}
		apply(oneByOne, start)
		apply(atOnce, start)
		merged := &Changes{}
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			next := gen()
			apply(oneByOne, next)
			merged.Merge(next)
		}
		apply(atOnce, merged)
		if diff := cmp.Diff(oneByOne, atOnce); diff != "" {
			t.Fatalf("state (-one by one +merged):\n%s", diff)
		}
	})
}
