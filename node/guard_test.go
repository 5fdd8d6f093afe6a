package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

var sameAddrs = cmpopts.EquateComparable(addrs("::")[0], prefixes("::/0")[0])

// What a change of the Node does to a running proxy: it goes on, with the Node as it is
// handed on then, or it ends.
func TestChangesOfTheNode(t *testing.T) {
	dual := []string{"192.0.2.1", "fd00::1"}
	first := func() *corev1.Node { return makeNode(thisNode, dual, []string{"10.0.1.0/24"}) }
	change := func(modify func(*corev1.Node)) *corev1.Node {
		n := first()
		modify(n)
		return n
	}
	for _, test := range []struct {
		name    string
		options Options
		next    *corev1.Node
		want    *model.Node // nil: nothing new is handed on
		ends    string
	}{
		{name: "the same Node again is nothing new", next: first()},
		{
			name: "labels, taints and conditions change all the time",
			next: change(func(n *corev1.Node) {
				n.Labels = map[string]string{corev1.LabelTopologyZone: "b"}
				n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
				n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			}),
		},
		{
			name: "addresses that are not the first of their family do not count",
			next: makeNode(thisNode, append(dual, "192.0.2.9", "fd00::9"), []string{"10.0.1.0/24"}),
		},
		{
			name: "another address",
			next: makeNode(thisNode, []string{"192.0.2.7", "fd00::1"}, []string{"10.0.1.0/24"}),
			ends: "node node-1: its addresses changed from 192.0.2.1, fd00::1 to 192.0.2.7, fd00::1; exiting, so that a restart sets up everything anew",
		},
		{
			name: "a family less",
			next: makeNode(thisNode, []string{"fd00::1"}, []string{"10.0.1.0/24"}),
			ends: "node node-1: its addresses changed from 192.0.2.1, fd00::1 to fd00::1; exiting, so that a restart sets up everything anew",
		},
		{
			name: "another primary family",
			next: makeNode(thisNode, []string{"fd00::1", "192.0.2.1"}, []string{"10.0.1.0/24"}),
			ends: "node node-1: its addresses changed from 192.0.2.1, fd00::1 to fd00::1, 192.0.2.1; exiting, so that a restart sets up everything anew",
		},
		{
			name: "no address any more",
			next: makeNode(thisNode, nil, []string{"10.0.1.0/24"}),
			ends: "node node-1: its addresses changed from 192.0.2.1, fd00::1 to none; exiting, so that a restart sets up everything anew",
		},
		{
			name:    "another address that is overridden",
			options: Options{Override: addrs("198.51.100.1")},
			next:    makeNode(thisNode, []string{"192.0.2.7", "fd00::1"}, []string{"10.0.1.0/24"}),
		},
		{
			name:    "another address beside an overridden one",
			options: Options{Override: addrs("198.51.100.1")},
			next:    makeNode(thisNode, []string{"192.0.2.1", "fd00::7"}, []string{"10.0.1.0/24"}),
			ends:    "node node-1: its addresses changed from 198.51.100.1, fd00::1 to 198.51.100.1, fd00::7; exiting, so that a restart sets up everything anew",
		},
		{
			name:    "another address of a family that does not count",
			options: Options{FamilyPolicy: corev1.IPFamilyPolicySingleStack},
			next:    makeNode(thisNode, []string{"192.0.2.1", "fd00::7"}, []string{"10.0.1.0/24"}),
		},
		{
			name: "another pod CIDR that does not count",
			next: makeNode(thisNode, dual, []string{"10.0.2.0/24"}),
			want: &model.Node{Name: thisNode, IPs: addrs(dual...), PodCIDRs: prefixes("10.0.2.0/24")},
		},
		{
			name:    "another pod CIDR under NodeCIDR",
			options: Options{NodeCIDR: true},
			next:    makeNode(thisNode, dual, []string{"10.0.1.0/24", "fd00:1::/64"}),
			ends:    "node node-1: its pod CIDRs changed from 10.0.1.0/24 to 10.0.1.0/24, fd00:1::/64; exiting, so that a restart sets up everything anew",
		},
		{name: "another Node is nothing to us", next: makeNode("node-2", []string{"192.0.2.2"}, nil)},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := start(t, test.options)
			g.in.SetNode(first())
			g.in.Synced()
			if g.node() == nil {
				t.Fatal("the first Node was not handed on")
			}
			g.in.SetNode(test.next)
			if diff := cmp.Diff(test.want, g.node(), sameAddrs); diff != "" {
				t.Errorf("handed on (-want +got):\n%s", diff)
			}
			if test.ends == "" {
				select {
				case err := <-g.ended:
					t.Errorf("it ended: %v", err)
				default:
				}
				return
			}
			if err := g.wait(t); err == nil || err.Error() != test.ends {
				t.Errorf("got error %v, want %s", err, test.ends)
			}
		})
	}
}

func TestADeletedNodeIsNoChangeUntilItComesBackDifferent(t *testing.T) {
	g := start(t, Options{})
	g.in.SetNode(makeNode(thisNode, []string{"192.0.2.1"}, nil))
	g.in.Synced()
	g.node()
	g.in.DeleteNode(thisNode)
	g.in.SetNode(makeNode(thisNode, []string{"192.0.2.1"}, nil))
	if node := g.node(); node != nil {
		t.Errorf("handed on %v", node)
	}
	g.in.DeleteNode(thisNode)
	g.in.SetNode(makeNode(thisNode, []string{"192.0.2.2"}, nil))
	if err := g.wait(t); err == nil {
		t.Error("no error although the Node came back with another address")
	}
}

// What the next Sink is told, and when, while the Node comes to be.
func TestWaitingForTheNode(t *testing.T) {
	waits := Options{IPWait: DefaultIPWait, PodCIDRWait: DefaultPodCIDRWait}
	with := func(modify func(*Options)) Options {
		options := waits
		modify(&options)
		return options
	}
	type event struct {
		after time.Duration
		node  *corev1.Node
	}
	for _, test := range []struct {
		name    string
		options Options
		events  []event
		// released is when Synced is passed on, with what is known of the Node then.
		released time.Duration
		want     *model.Node
		ends     string
	}{
		{
			name:    "a Node that is there is not waited for",
			options: waits,
			events:  []event{{0, makeNode(thisNode, []string{"192.0.2.1"}, nil)}},
			want:    &model.Node{Name: thisNode, IPs: addrs("192.0.2.1")},
		},
		{
			name:     "a Node that registers late",
			options:  waits,
			events:   []event{{10 * time.Second, makeNode(thisNode, []string{"192.0.2.1"}, nil)}},
			released: 10 * time.Second,
			want:     &model.Node{Name: thisNode, IPs: addrs("192.0.2.1")},
		},
		{
			name:     "a Node that gets its address late, and another one meanwhile",
			options:  with(func(o *Options) { o.NodeCIDR = true }),
			events:   []event{{0, makeNode(thisNode, nil, nil)}, {time.Second, makeNode(thisNode, []string{"192.0.2.1"}, nil)}, {2 * time.Second, makeNode(thisNode, []string{"192.0.2.2"}, []string{"10.0.1.0/24"})}},
			released: 2 * time.Second,
			want:     &model.Node{Name: thisNode, IPs: addrs("192.0.2.2"), PodCIDRs: prefixes("10.0.1.0/24")},
		},
		{
			name:     "a Node that never registers",
			options:  waits,
			released: DefaultIPWait,
			want:     &model.Node{Name: thisNode},
		},
		{
			name:     "a Node that never registers, with an override",
			options:  with(func(o *Options) { o.Override = addrs("198.51.100.1") }),
			released: DefaultIPWait,
			want:     &model.Node{Name: thisNode, IPs: addrs("198.51.100.1")},
		},
		{
			name:    "an override is as good as an address of the Node",
			options: with(func(o *Options) { o.Override = addrs("0.0.0.0", "fd00::9") }),
			events:  []event{{0, makeNode(thisNode, nil, nil)}},
			want:    &model.Node{Name: thisNode, IPs: addrs("fd00::9")},
		},
		{
			name:    "without waiting, a Node that is not there is none",
			options: Options{},
			want:    &model.Node{Name: thisNode},
		},
		{
			name:     "a pod CIDR that is allocated late",
			options:  with(func(o *Options) { o.NodeCIDR = true }),
			events:   []event{{0, makeNode(thisNode, []string{"192.0.2.1"}, nil)}, {4 * time.Minute, makeNode(thisNode, []string{"192.0.2.1"}, []string{"10.0.1.0/24"})}},
			released: 4 * time.Minute,
			want:     &model.Node{Name: thisNode, IPs: addrs("192.0.2.1"), PodCIDRs: prefixes("10.0.1.0/24")},
		},
		{
			name:     "a pod CIDR but never an address",
			options:  with(func(o *Options) { o.NodeCIDR = true }),
			events:   []event{{time.Minute, makeNode(thisNode, nil, []string{"10.0.1.0/24"})}},
			released: time.Minute,
			want:     &model.Node{Name: thisNode, PodCIDRs: prefixes("10.0.1.0/24")},
		},
		{
			name:     "a pod CIDR that is never allocated",
			options:  with(func(o *Options) { o.NodeCIDR = true }),
			events:   []event{{0, makeNode(thisNode, []string{"192.0.2.1"}, nil)}},
			released: DefaultPodCIDRWait,
			ends: "node node-1: it has no pod CIDR after 5m0s, which detectLocalMode NodeCIDR needs; have the controller manager allocate them (--allocate-node-cidrs), " +
				"correct hostnameOverride if the Node has another name, or set another detectLocalMode",
		},
		{
			name:     "dual stack is waited for where it is required",
			options:  with(func(o *Options) { o.FamilyPolicy = corev1.IPFamilyPolicyRequireDualStack }),
			events:   []event{{0, makeNode(thisNode, []string{"192.0.2.1"}, nil)}, {time.Second, makeNode(thisNode, []string{"192.0.2.1", "fd00::1"}, nil)}},
			released: time.Second,
			want:     &model.Node{Name: thisNode, IPs: addrs("192.0.2.1", "fd00::1")},
		},
		{
			name:     "dual stack that is required and never comes",
			options:  with(func(o *Options) { o.FamilyPolicy = corev1.IPFamilyPolicyRequireDualStack }),
			events:   []event{{0, makeNode(thisNode, []string{"192.0.2.1"}, nil)}},
			released: DefaultIPWait,
			ends:     "node node-1: ipFamilyPolicy is RequireDualStack, but the Node has 192.0.2.1; give it an address of each family in status.addresses (the kubelet's --node-ip), or set nodeIPOverride",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.Kernel = kernel(t, true)
			synctest.Test(t, func(t *testing.T) {
				g := start(t, test.options)
				begin := time.Now()
				for len(test.events) > 0 && test.events[0].after == 0 {
					g.in.SetNode(test.events[0].node)
					test.events = test.events[1:]
				}
				g.in.Synced()
				go func() {
					for _, e := range test.events {
						time.Sleep(time.Until(begin.Add(e.after)))
						g.in.SetNode(e.node)
					}
				}()
				if test.released > 0 {
					time.Sleep(test.released - time.Nanosecond)
					synctest.Wait()
					if node := g.node(); node != nil {
						t.Errorf("handed on too early: %v", node)
					}
					time.Sleep(time.Nanosecond)
				}
				synctest.Wait()
				if diff := cmp.Diff(test.want, g.node(), sameAddrs); diff != "" {
					t.Errorf("handed on (-want +got):\n%s", diff)
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

func TestAnAddressThatComesAfterTheWaitIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, Options{IPWait: DefaultIPWait})
		g.in.Synced()
		time.Sleep(time.Hour)
		synctest.Wait()
		g.node()
		g.in.SetNode(makeNode(thisNode, []string{"192.0.2.1"}, nil))
		if diff := cmp.Diff(&model.Node{Name: thisNode, IPs: addrs("192.0.2.1")}, g.node(), sameAddrs); diff != "" {
			t.Errorf("handed on (-want +got):\n%s", diff)
		}
		g.in.SetNode(makeNode(thisNode, []string{"192.0.2.2"}, nil))
		if err := <-g.ended; err == nil {
			t.Error("no error although the address changed afterwards")
		}
	})
}

func TestWhichAddressesCount(t *testing.T) {
	dual := makeNode(thisNode, []string{"192.0.2.1", "fd00::1"}, nil)
	for _, test := range []struct {
		name    string
		options Options
		node    *corev1.Node
		want    []string
	}{
		{"those of the Node", Options{}, dual, []string{"192.0.2.1", "fd00::1"}},
		{"an override for its family, which becomes the primary one", Options{Override: addrs("fd00::9")}, dual, []string{"fd00::9", "192.0.2.1"}},
		{"an override for each family", Options{Override: addrs("198.51.100.1", "fd00::9")}, dual, []string{"198.51.100.1", "fd00::9"}},
		{"unspecified and loopback addresses override nothing", Options{Override: addrs("::", "127.0.0.1")}, dual, []string{"192.0.2.1", "fd00::1"}},
		{"SingleStack takes the primary family", Options{FamilyPolicy: corev1.IPFamilyPolicySingleStack}, dual, []string{"192.0.2.1"}},
		{"SingleStack with an override", Options{FamilyPolicy: corev1.IPFamilyPolicySingleStack, Override: addrs("fd00::9")}, dual, []string{"fd00::9"}},
		{"PreferDualStack is content with one", Options{FamilyPolicy: corev1.IPFamilyPolicyPreferDualStack}, makeNode(thisNode, []string{"fd00::1"}, nil), []string{"fd00::1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := test.node.DeepCopy()
			g := start(t, test.options)
			g.in.SetNode(test.node)
			g.in.Synced()
			node := g.node()
			if node == nil {
				t.Fatal("nothing was handed on")
			}
			if diff := cmp.Diff(addrs(test.want...), node.IPs, sameAddrs); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, test.node); diff != "" {
				t.Errorf("the Source's Node was modified:\n%s", diff)
			}
		})
	}
}

func TestAKernelWithoutIPv6(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy corev1.IPFamilyPolicy
		ips    []string
		ends   string
	}{
		{name: "does for IPv4", ips: []string{"192.0.2.1"}},
		{name: "does for a second family", ips: []string{"192.0.2.1", "fd00::1"}},
		{
			name: "does not do for a primary family", ips: []string{"fd00::1", "192.0.2.1"},
			ends: "node node-1: its address fd00::1 is needed, but IPv6 is disabled on this machine (sysctl net.ipv6.conf.all.disable_ipv6, kernel parameter ipv6.disable)",
		},
		{
			name: "does not do where dual stack is required", ips: []string{"192.0.2.1", "fd00::1"}, policy: corev1.IPFamilyPolicyRequireDualStack,
			ends: "node node-1: its address fd00::1 is needed, but IPv6 is disabled on this machine (sysctl net.ipv6.conf.all.disable_ipv6, kernel parameter ipv6.disable)",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := start(t, Options{FamilyPolicy: test.policy, Kernel: kernel(t, false)})
			g.in.SetNode(makeNode(thisNode, test.ips, nil))
			g.in.Synced()
			if test.ends == "" {
				if g.node() == nil {
					t.Error("it does not go on")
				}
				return
			}
			if err := g.wait(t); err == nil || err.Error() != test.ends {
				t.Errorf("got error %v, want %s", err, test.ends)
			}
		})
	}
}

// fails is a Source that cannot begin.
type fails struct{ err error }

func (f fails) Run(context.Context, tracker.Sink) error { return f.err }

func TestErrorsOfTheSourceArePassedOn(t *testing.T) {
	want := errors.New("no such directory")
	if err := NewGuard(fails{want}, Options{}).Run(t.Context(), tracker.New(tracker.Options{})); err != want {
		t.Errorf("got %v", err)
	}
}
