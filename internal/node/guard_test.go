package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

var sameAddrs = cmpopts.EquateComparable(addrs("::")[0], prefixes("::/0")[0])

func TestGuard(t *testing.T) {
	t.Run("changes of the Node", testChangesOfTheNode)
	t.Run("a family that appears ends the proxy", testFamilyThatAppearsEndsTheProxy)
	t.Run("a Node that comes back", testNodeThatComesBack)
	t.Run("addresses that count", testAddressesThatCount)
	t.Run("a kernel without IPv6", testKernelWithoutIPv6)
	t.Run("errors of the source are passed on", testErrorsOfTheSourceArePassedOn)
	t.Run("the life of a Node", testLifeOfANode)
	t.Run("stopping is no error", testStoppingIsNoError)
	t.Run("a start without the whole Node", testStartWithoutTheWholeNode)
	t.Run("an address that comes after the wait is taken", testAddressThatComesAfterTheWaitIsTaken)
}

// What a change of the Node does to a running proxy: it goes on, with the Node as it is
// published then, or it ends.
func testChangesOfTheNode(t *testing.T) {
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
		want    *model.Node // nil: nothing new is published
		ends    string
	}{
		{name: "the same Node again is nothing new", next: first()},
		{
			name: "labels, taints and conditions change all the time",
			next: change(func(n *corev1.Node) {
				n.Labels = map[string]string{corev1.LabelTopologyZone: "b"}
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable}}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
			}),
		},
		{
			name: "a Node that is about to go is published and ends nothing",
			next: change(func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
				n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			}),
			want: &model.Node{Name: thisNode, IPs: addrs(dual...), PodCIDRs: prefixes("10.0.1.0/24"), GoingAway: true},
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
		{name: "a family less is kept", next: makeNode(thisNode, []string{"fd00::1"}, []string{"10.0.1.0/24"})},
		{name: "no address any more: both are kept", next: makeNode(thisNode, nil, []string{"10.0.1.0/24"})},
		{
			name:    "the only family that counts is gone, and kept",
			options: Options{FamilyPolicy: corev1.IPFamilyPolicySingleStack},
			next:    makeNode(thisNode, []string{"fd00::1"}, []string{"10.0.1.0/24"}),
		},
		{
			name: "a family less, and another address of the other one",
			next: makeNode(thisNode, []string{"fd00::7"}, []string{"10.0.1.0/24"}),
			ends: "node node-1: its addresses changed from 192.0.2.1, fd00::1 to 192.0.2.1, fd00::7; exiting, so that a restart sets up everything anew",
		},
		{
			name: "the same addresses in another order",
			next: makeNode(thisNode, []string{"fd00::1", "192.0.2.1"}, []string{"10.0.1.0/24"}),
			want: &model.Node{Name: thisNode, IPs: addrs("fd00::1", "192.0.2.1"), PodCIDRs: prefixes("10.0.1.0/24")},
		},
		{
			name:    "another primary family where only that counts",
			options: Options{FamilyPolicy: corev1.IPFamilyPolicySingleStack},
			next:    makeNode(thisNode, []string{"fd00::1", "192.0.2.1"}, []string{"10.0.1.0/24"}),
			ends:    "node node-1: its addresses changed from 192.0.2.1 to fd00::1; exiting, so that a restart sets up everything anew",
		},
		{
			name:    "the address beside an overridden one is gone, and kept",
			options: Options{Override: addrs("fd00::9")},
			next:    makeNode(thisNode, nil, []string{"10.0.1.0/24"}),
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
		{
			name:    "no pod CIDR any more under NodeCIDR: it is kept",
			options: Options{NodeCIDR: true},
			next:    makeNode(thisNode, dual, nil),
		},
		{name: "another Node is nothing to us", next: makeNode("node-2", []string{"192.0.2.2"}, nil)},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := start(t, test.options)
			g.in.SetNode(first())
			g.in.Synced()
			if g.node() == nil {
				t.Fatal("the first Node was not published")
			}
			g.in.SetNode(test.next)
			if diff := cmp.Diff(test.want, g.node(), sameAddrs); diff != "" {
				t.Errorf("published (-want +got):\n%s", diff)
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

func testFamilyThatAppearsEndsTheProxy(t *testing.T) {
	g := start(t, Options{})
	g.in.SetNode(makeNode(thisNode, []string{"192.0.2.1"}, nil))
	g.in.Synced()
	g.in.SetNode(makeNode(thisNode, []string{"192.0.2.1", "fd00::1"}, nil))
	const want = "node node-1: its addresses changed from 192.0.2.1 to 192.0.2.1, fd00::1; exiting, so that a restart sets up everything anew"
	if err := g.wait(t); err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

// A Node that loses its addresses, or is deleted and registers anew without any, and what it says then.
func testNodeThatComesBack(t *testing.T) {
	with := func(ips ...string) *corev1.Node { return makeNode(thisNode, ips, nil) }
	for _, vanish := range []struct {
		name string
		do   func(tracker.Sink)
	}{
		{"addresses vanish", func(sink tracker.Sink) { sink.SetNode(with()) }},
		{"the Node is deleted", func(sink tracker.Sink) { sink.DeleteNode(thisNode) }},
		{"the Node is deleted and registers without addresses", func(sink tracker.Sink) {
			sink.DeleteNode(thisNode)
			sink.SetNode(with())
		}},
	} {
		t.Run(vanish.name, func(t *testing.T) {
			g := start(t, Options{Wait: DefaultWait})
			g.in.SetNode(with("192.0.2.1"))
			g.in.Synced()
			g.node()
			for range 2 {
				vanish.do(g.in)
				g.in.SetNode(with("192.0.2.1"))
				if node := g.node(); node != nil && !node.Equal(&model.Node{Name: thisNode, IPs: addrs("192.0.2.1")}) {
					t.Errorf("with the same address it hands on %v", node)
				}
			}
			if diff := cmp.Diff([]Missing{{}}, g.missing()); diff != "" {
				t.Errorf("reported (-want +got):\n%s", diff)
			}
			vanish.do(g.in)
			g.in.SetNode(with("192.0.2.2"))
			const want = "node node-1: its addresses changed from 192.0.2.1 to 192.0.2.2; exiting, so that a restart sets up everything anew"
			if err := g.wait(t); err == nil || err.Error() != want {
				t.Errorf("with another address: error %v, want %s", err, want)
			}
		})
	}
}

func testAddressesThatCount(t *testing.T) {
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
				t.Fatal("nothing was published")
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

func testKernelWithoutIPv6(t *testing.T) {
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

func testErrorsOfTheSourceArePassedOn(t *testing.T) {
	want := errors.New("no such directory")
	if err := NewSource(fails{want}, Options{}).Run(t.Context(), tracker.New(tracker.Options{})); err != want {
		t.Errorf("got %v", err)
	}
}
