package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/model"
)

// What the next Sink is told of a Node that comes to be, and what is reported as missing. A start
// never waits: everything goes on at once with what is known.
func testStartWithoutTheWholeNode(t *testing.T) {
	with := func(modify func(*Options)) Options {
		options := Options{Wait: DefaultWait}
		modify(&options)
		return options
	}
	nodeCIDR := func(o *Options) { o.NodeCIDR = true }
	requireDual := func(o *Options) { o.FamilyPolicy = corev1.IPFamilyPolicyRequireDualStack }
	knows := func(ips []string, podCIDRs ...string) *model.Node {
		return &model.Node{Name: thisNode, IPs: addrs(ips...), PodCIDRs: prefixes(podCIDRs...)}
	}
	previous := func(node *model.Node, err error) func(*Options) {
		return func(o *Options) { o.PreviousNode = func() (model.Node, error) { return *node, err } }
	}
	type event struct {
		at   time.Duration
		node *corev1.Node
	}
	v4, dual := []string{"192.0.2.1"}, []string{"192.0.2.1", "fd00::1"}
	for _, test := range []struct {
		name    string
		options Options
		events  []event
		// first is the Node that is published with Synced, then the one in the next hour; nil is none.
		first, then *model.Node
		reported    []Missing
		ends        string
	}{
		{
			name:     "a Node that is there",
			options:  Options{Wait: DefaultWait},
			events:   []event{{0, makeNode(thisNode, v4, nil)}},
			first:    knows(v4),
			reported: []Missing{{}},
		},
		{
			name:     "a Node that registers while it is waited for, first without addresses",
			options:  Options{Wait: DefaultWait},
			events:   []event{{5 * time.Second, makeNode(thisNode, nil, nil)}, {10 * time.Second, makeNode(thisNode, v4, nil)}},
			first:    knows(nil),
			then:     knows(v4),
			reported: []Missing{{Node: true, Addresses: true, Waiting: true}, {Addresses: true, Waiting: true}, {}},
		},
		{
			name:     "a Node that registers after the wait",
			options:  Options{Wait: DefaultWait},
			events:   []event{{time.Minute, makeNode(thisNode, v4, nil)}},
			first:    knows(nil),
			then:     knows(v4),
			reported: []Missing{{Node: true, Addresses: true, Waiting: true}, {Node: true, Addresses: true}, {}},
		},
		{
			name:     "a Node that never registers",
			options:  Options{Wait: DefaultWait},
			first:    knows(nil),
			reported: []Missing{{Node: true, Addresses: true, Waiting: true}, {Node: true, Addresses: true}},
		},
		{
			name:     "a Node that never registers, with an override",
			options:  with(func(o *Options) { o.Override = addrs("198.51.100.1") }),
			first:    knows([]string{"198.51.100.1"}),
			reported: []Missing{{Node: true, Waiting: true}, {Node: true}},
		},
		{
			name:     "an override is as good as an address of the Node",
			options:  with(func(o *Options) { o.Override = addrs("0.0.0.0", "fd00::9") }),
			events:   []event{{0, makeNode(thisNode, nil, nil)}},
			first:    knows([]string{"fd00::9"}),
			reported: []Missing{{}},
		},
		{
			name:     "without a wait, a Node that is not there is none",
			first:    knows(nil),
			reported: []Missing{{Node: true, Addresses: true}},
		},
		{
			name:     "what the run before knew holds until the Node says the same",
			options:  with(previous(knows(dual), nil)),
			events:   []event{{time.Minute, makeNode(thisNode, dual, nil)}},
			first:    knows(dual),
			reported: []Missing{{Node: true, Waiting: true}, {Node: true}, {}},
		},
		{
			name:     "what the run before knew holds until the Node says something else",
			options:  with(previous(knows(v4), nil)),
			events:   []event{{0, makeNode(thisNode, nil, nil)}, {time.Minute, makeNode(thisNode, []string{"192.0.2.2", "fd00::2"}, nil)}},
			first:    knows(v4),
			then:     knows([]string{"192.0.2.2", "fd00::2"}),
			reported: []Missing{{}},
		},
		{
			name:     "a Node that says what counts needs nothing of the run before",
			options:  with(previous(knows(dual), nil)),
			events:   []event{{0, makeNode(thisNode, []string{"192.0.2.2"}, nil)}},
			first:    knows([]string{"192.0.2.2"}),
			reported: []Missing{{}},
		},
		{
			name:     "the run before cannot be asked",
			options:  with(previous(knows(dual), errors.New("no table"))),
			first:    knows(nil),
			reported: []Missing{{Node: true, Addresses: true, Waiting: true}, {Node: true, Addresses: true}},
		},
		{
			name:     "the run before knew the pod CIDR",
			options:  with(func(o *Options) { nodeCIDR(o); previous(knows(dual, "10.0.1.0/24"), nil)(o) }),
			events:   []event{{0, makeNode(thisNode, v4, nil)}},
			first:    knows(v4, "10.0.1.0/24"),
			reported: []Missing{{}},
		},
		{
			name:     "a pod CIDR that is allocated late",
			options:  with(nodeCIDR),
			events:   []event{{0, makeNode(thisNode, v4, nil)}, {4 * time.Minute, makeNode(thisNode, v4, []string{"10.0.1.0/24"})}},
			first:    knows(v4),
			then:     knows(v4, "10.0.1.0/24"),
			reported: []Missing{{PodCIDRs: true, Waiting: true}, {PodCIDRs: true}, {}},
		},
		{
			name:     "an address that changes while a pod CIDR is waited for",
			options:  with(nodeCIDR),
			events:   []event{{0, makeNode(thisNode, v4, nil)}, {time.Second, makeNode(thisNode, []string{"192.0.2.2"}, []string{"10.0.1.0/24"})}},
			first:    knows(v4),
			then:     knows([]string{"192.0.2.2"}, "10.0.1.0/24"),
			reported: []Missing{{PodCIDRs: true, Waiting: true}, {}},
		},
		{
			name:     "a pod CIDR but never an address",
			options:  with(nodeCIDR),
			events:   []event{{time.Second, makeNode(thisNode, nil, []string{"10.0.1.0/24"})}},
			first:    knows(nil),
			then:     knows(nil, "10.0.1.0/24"),
			reported: []Missing{{Node: true, Addresses: true, PodCIDRs: true, Waiting: true}, {Addresses: true, Waiting: true}, {Addresses: true}},
		},
		{
			name:     "dual stack is waited for where it is required",
			options:  with(requireDual),
			events:   []event{{0, makeNode(thisNode, v4, nil)}, {time.Second, makeNode(thisNode, dual, nil)}},
			first:    knows(v4),
			then:     knows(dual),
			reported: []Missing{{Addresses: true, Waiting: true}, {}},
		},
		{
			name:     "dual stack that is required and never comes",
			options:  with(requireDual),
			events:   []event{{0, makeNode(thisNode, v4, nil)}},
			first:    knows(v4),
			reported: []Missing{{Addresses: true, Waiting: true}},
			ends:     "node node-1: ipFamilyPolicy is RequireDualStack, but the Node has 192.0.2.1; give it an address of each family in status.addresses (the kubelet's --node-ip), or set nodeIPOverride",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.Kernel = kernel(t, true)
			synctest.Test(t, func(t *testing.T) {
				g := start(t, test.options)
				begin := time.Now()
				events := test.events
				for ; len(events) > 0 && events[0].at == 0; events = events[1:] {
					g.in.SetNode(events[0].node)
				}
				g.in.Synced()
				if diff := cmp.Diff(test.first, g.node(), sameAddrs); diff != "" {
					t.Errorf("published at first (-want +got):\n%s", diff)
				}
				for _, e := range events {
					time.Sleep(time.Until(begin.Add(e.at)))
					g.in.SetNode(e.node)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				if diff := cmp.Diff(test.then, g.node(), sameAddrs); diff != "" {
					t.Errorf("published later (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(test.reported, g.missing()); diff != "" {
					t.Errorf("reported (-want +got):\n%s", diff)
				}
				select {
				case err := <-g.ended:
					if err == nil || err.Error() != test.ends {
						t.Errorf("got error %v, want %q", err, test.ends)
					}
				default:
					if test.ends != "" {
						t.Errorf("it goes on, want %q", test.ends)
					}
				}
			})
		})
	}
}

func testAddressThatComesAfterTheWaitIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, Options{Wait: DefaultWait})
		g.in.Synced()
		time.Sleep(time.Hour)
		synctest.Wait()
		g.node()
		g.in.SetNode(makeNode(thisNode, []string{"192.0.2.1"}, nil))
		if diff := cmp.Diff(&model.Node{Name: thisNode, IPs: addrs("192.0.2.1")}, g.node(), sameAddrs); diff != "" {
			t.Errorf("published (-want +got):\n%s", diff)
		}
		g.in.SetNode(makeNode(thisNode, []string{"192.0.2.2"}, nil))
		if err := <-g.ended; err == nil {
			t.Error("no error although the address changed afterwards")
		}
	})
}
