package tracker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"pgregory.net/rapid"

	"github.com/nftproxy/nftproxy/model"
)

// The generators draw from few values, so that objects meet, clash and repeat.

func genService(t *rapid.T) *corev1.Service {
	s := makeService(func(s *corev1.Service) {
		s.Name = rapid.SampledFrom([]string{"web", "dns"}).Draw(t, "service")
		s.Spec.ClusterIPs = rapid.SampledFrom([][]string{
			{"10.96.0.1"}, {"10.96.0.1", "fd00::1"}, {"fd00::1"}, {"None"}, {"10.96.0.01"}, nil,
		}).Draw(t, "clusterIPs")
		s.Spec.ClusterIP = ""
		s.Spec.Ports = nil
		for _, name := range []string{"", "dns"} {
			if rapid.Bool().Draw(t, "has port") {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
					Name:     name,
					Port:     rapid.SampledFrom([]int32{0, 53, 80}).Draw(t, "port"),
					Protocol: rapid.SampledFrom([]corev1.Protocol{"", corev1.ProtocolUDP, "ODD"}).Draw(t, "protocol"),
				})
			}
		}
		if rapid.Bool().Draw(t, "external") {
			s.Spec.ExternalIPs = []string{"192.0.2.1"}
			s.Spec.ExternalTrafficPolicy = rapid.SampledFrom([]corev1.ServiceExternalTrafficPolicy{"Local", "Cluster"}).Draw(t, "policy")
		}
		if rapid.IntRange(0, 9).Draw(t, "labelled") == 0 {
			s.Labels = map[string]string{LabelServiceProxyName: "x"}
		}
	})
	return s
}

func genSlice(t *rapid.T) *discoveryv1.EndpointSlice {
	return makeSlice(func(s *discoveryv1.EndpointSlice) {
		s.Name = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "slice")
		s.Labels[discoveryv1.LabelServiceName] = rapid.SampledFrom([]string{"web", "dns", ""}).Draw(t, "of service")
		s.AddressType = rapid.SampledFrom([]discoveryv1.AddressType{"IPv4", "IPv4", "IPv6", "FQDN", "odd"}).Draw(t, "type")
		s.Ports[0].Name = new(rapid.SampledFrom([]string{"", "dns"}).Draw(t, "port name"))
		s.Ports[0].Protocol = new(rapid.SampledFrom([]corev1.Protocol{"TCP", "UDP"}).Draw(t, "slice protocol"))
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			s.Endpoints = append(s.Endpoints, genEndpoint(t))
		}
	})
}

func genEndpoint(t *rapid.T) discoveryv1.Endpoint {
	e := pod(
		rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2", "bad"}).Draw(t, "addr"),
		rapid.SampledFrom([]string{"", thisNode, otherNode}).Draw(t, "node"),
	)
	condition := rapid.SampledFrom([]*bool{nil, new(true), new(false)})
	e.Conditions = discoveryv1.EndpointConditions{
		Ready: condition.Draw(t, "ready"), Serving: condition.Draw(t, "serving"), Terminating: condition.Draw(t, "terminating"),
	}
	if rapid.Bool().Draw(t, "zone hint") {
		e = hintZones(e, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone"))
	}
	if rapid.IntRange(0, 3).Draw(t, "node hint") == 0 {
		e = hintNodes(e, rapid.SampledFrom([]string{thisNode, otherNode}).Draw(t, "hinted node"))
	}
	return e
}

// generator draws events and holds the objects that then exist, as an API server would.
type generator struct {
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	cidrs    map[string]*networkingv1.ServiceCIDR
	node     *corev1.Node
}

// objects returns everything, in random order.
func (g *generator) objects(seed uint64) []any {
	var all []any
	for _, o := range g.services {
		all = append(all, o)
	}
	for _, o := range g.slices {
		all = append(all, o)
	}
	for _, o := range g.cidrs {
		all = append(all, o)
	}
	if g.node != nil {
		all = append(all, g.node)
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// event draws a change of the objects and tells sink, once or twice.
func (g *generator) event(t *rapid.T, sink Sink) {
	times := rapid.IntRange(1, 2).Draw(t, "times")
	switch rapid.IntRange(0, 9).Draw(t, "event") {
	case 0, 1, 2:
		s := genService(t)
		g.services[s.Name] = s
		for range times {
			sink.SetService(s.DeepCopy())
		}
	case 3, 4, 5:
		s := genSlice(t)
		g.slices[s.Name] = s
		for range times {
			sink.SetEndpointSlice(s.DeepCopy())
		}
	case 6:
		name := rapid.SampledFrom([]string{"web", "dns", "absent"}).Draw(t, "deleted service")
		delete(g.services, name)
		for range times {
			sink.DeleteService("default", name)
		}
	case 7:
		name := rapid.SampledFrom([]string{"a", "b", "absent"}).Draw(t, "deleted slice")
		delete(g.slices, name)
		for range times {
			sink.DeleteEndpointSlice("default", name)
		}
	case 8:
		name := rapid.SampledFrom([]string{"main", "more"}).Draw(t, "cidr")
		delete(g.cidrs, name)
		sink.DeleteServiceCIDR(name)
		if rapid.Bool().Draw(t, "cidr stays") {
			g.cidrs[name] = makeServiceCIDR(name, rapid.SampledFrom([]string{"10.96.0.0/16", "fd00::/112", "bad"}).Draw(t, "range"))
			sink.SetServiceCIDR(g.cidrs[name])
		}
	case 9:
		n := makeNode(thisNode, rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone"))
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2"}).Draw(t, "node ip")}}
		g.node = n
		sink.SetNode(n)
		sink.SetNode(makeNode(otherNode, "b"))
	}
}

// checkMinimal fails if changes says anything that was so before.
func checkMinimal(t *rapid.T, before, changes *model.Changes) {
	for id, port := range changes.Ports {
		old, had := before.Ports[id]
		if port == nil && !had {
			t.Fatalf("%s is deleted but was not there", id)
		}
		if port != nil && had && cmp.Equal(old, port, sameAddrs) {
			t.Fatalf("%s is published again without a difference", id)
		}
	}
	if changes.Node != nil && cmp.Equal(before.Node, changes.Node, sameAddrs) {
		t.Fatalf("the node is published again without a difference")
	}
	if changes.ServiceCIDRsChanged && cmp.Equal(before.ServiceCIDRs, changes.ServiceCIDRs, sameAddrs) {
		t.Fatalf("the ranges are published again without a difference")
	}
}

func checkNormal(t *rapid.T, state *model.Changes) {
	for id, port := range state.Ports {
		for _, list := range [][]model.Endpoint{port.Cluster, port.Local} {
			if list != nil && len(list) == 0 {
				t.Fatalf("%s has an empty list that is not nil", id)
			}
			if !slices.IsSortedFunc(list, model.CompareEndpoints) || len(slices.Compact(slices.Clone(list))) != len(list) {
				t.Fatalf("%s has a list that is not sorted and unique: %v", id, list)
			}
		}
	}
}

func TestTracker(t *testing.T) {
	t.Run("incremental equals full", testIncrementalEqualsFull)
	t.Run("changes are published after synced", testChangesArePublishedAfterSynced)
	t.Run("an empty cluster is a full change", testEmptyClusterIsAFullChange)
	t.Run("changes that are undone do not show", testChangesThatAreUndoneDoNotShow)
	t.Run("unchanged objects cost nothing", testUnchangedObjectsCostNothing)
	t.Run("an event touches only its Service", testEventTouchesOnlyItsService)
	t.Run("deleted objects leave nothing", testDeletedObjectsLeaveNothing)
	t.Run("a new zone decides anew", testNewZoneDecidesAnew)
	t.Run("objects without a name are skipped", testObjectsWithoutANameAreSkipped)
	t.Run("triggers come with the changes", testTriggersComeWithTheChanges)
	t.Run("triggers are bounded", testTriggersAreBounded)
	t.Run("is safe for concurrent use", testConcurrentUse)
}

func testIncrementalEqualsFull(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := New(Options{NodeName: thisNode})
		g := generator{map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}, map[string]*networkingv1.ServiceCIDR{}, nil}
		for range rapid.IntRange(0, 5).Draw(t, "events before sync") {
			g.event(t, tracker)
		}
		if c := tracker.Changes(); c != nil {
			t.Fatalf("changes before sync: %v", c)
		}
		tracker.Synced()
		state := tracker.Changes()
		if state == nil || !state.Full {
			t.Fatalf("first changes are not full: %v", state)
		}
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			g.event(t, tracker)
			if rapid.Bool().Draw(t, "take") {
				if changes := tracker.Changes(); changes != nil {
					checkMinimal(t, state, changes)
					state.Merge(changes)
				}
			}
		}
		if changes := tracker.Changes(); changes != nil {
			checkMinimal(t, state, changes)
			state.Merge(changes)
		}
		checkNormal(t, state)

		fresh, _ := newSynced(g.objects(rapid.Uint64().Draw(t, "order"))...)
		if diff := cmp.Diff(fresh.Changes(), state, sameAddrs); diff != "" {
			t.Fatalf("incremental state differs from a full one (-full +incremental):\n%s", diff)
		}
		tracker.Resync()
		if diff := cmp.Diff(state, tracker.Changes(), sameAddrs); diff != "" {
			t.Fatalf("resync differs from the state (-state +resync):\n%s", diff)
		}
		if changes := tracker.Changes(); changes != nil {
			t.Fatalf("nothing happened, but: %v", changes)
		}
	})
}

func testChangesArePublishedAfterSynced(t *testing.T) {
	tracker := New(Options{})
	tracker.SetService(makeService())
	select {
	case <-tracker.Dirty():
		t.Error("woken before Synced")
	default:
	}
	if c := tracker.Changes(); c != nil {
		t.Errorf("got %v before Synced", c)
	}
	if got := tracker.WaitingFor(); got != "Services and EndpointSlices" {
		t.Errorf("it waits for %q before the source says for what", got)
	}
	tracker.Waiting("endpointslices: forbidden")
	if got := tracker.WaitingFor(); got != "endpointslices: forbidden" {
		t.Errorf("it waits for %q", got)
	}
	view := tracker.View("", 0)
	defer view.Close()
	if _, _, _, synced := view.TakeRevision(); synced {
		t.Error("a view is synced before Synced")
	}
	tracker.Synced()
	if _, _, _, synced := view.TakeRevision(); !synced {
		t.Error("a view is not synced after Synced")
	}
	tracker.Waiting("late")
	if got := tracker.WaitingFor(); got != "" {
		t.Errorf("it waits for %q after Synced", got)
	}
	select {
	case <-tracker.Dirty():
	default:
		t.Error("not woken by Synced")
	}
	if c := tracker.Changes(); c == nil || !c.Full || len(c.Ports) != 1 {
		t.Errorf("got %v after Synced, want everything", c)
	}
}

func testEmptyClusterIsAFullChange(t *testing.T) {
	tracker, _ := newSynced()
	want := &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}, Node: &model.Node{Name: thisNode}, ServiceCIDRsChanged: true}
	if diff := cmp.Diff(want, tracker.Changes(), sameAddrs); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func testChangesThatAreUndoneDoNotShow(t *testing.T) {
	node := func(ip string) *corev1.Node {
		return makeNode(thisNode, "", func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
		})
	}
	tracker, _ := newSynced(makeService(), sliceOf(pod("10.0.0.1", "")), node("192.0.2.1"), makeServiceCIDR("main", "10.96.0.0/16"))
	before := onePort(t, tracker)
	tracker.DeleteEndpointSlice("default", "web-1")
	tracker.DeleteService("default", "web")
	tracker.DeleteServiceCIDR("main")
	tracker.SetNode(node("192.0.2.2"))
	tracker.SetService(makeService())
	tracker.SetEndpointSlice(sliceOf(pod("10.0.0.1", "")))
	tracker.SetServiceCIDR(makeServiceCIDR("main", "10.96.0.0/16"))
	tracker.SetNode(node("192.0.2.1"))
	if c := tracker.Changes(); c != nil {
		t.Errorf("got %v, want nothing", c)
	}
	tracker.Resync()
	if after := onePort(t, tracker); after != before {
		t.Error("an unchanged port got a new ServicePort")
	}
}

func testUnchangedObjectsCostNothing(t *testing.T) {
	tracker, skipped := newSynced(makeService(), sliceOf(pod("bad", ""), pod("10.0.0.1", "")))
	tracker.Changes()
	<-tracker.Dirty()
	for range 3 {
		tracker.SetService(makeService(func(s *corev1.Service) { s.ResourceVersion = "7" }))
		tracker.SetEndpointSlice(sliceOf(pod("bad", ""), pod("10.0.0.1", "")))
	}
	select {
	case <-tracker.Dirty():
		t.Error("woken by objects that did not change")
	default:
	}
	if diff := cmp.Diff(skips{"EndpointSlice invalid_ip": 1}, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

func testEventTouchesOnlyItsService(t *testing.T) {
	named := func(name string) *corev1.Service { return makeService(func(s *corev1.Service) { s.Name = name }) }
	tracker, _ := newSynced(named("web"), named("dns"))
	tracker.Changes()
	tracker.SetEndpointSlice(sliceOf(pod("10.0.0.1", "")))
	if got := tracker.own.Behind(); got != 1 {
		t.Errorf("%d Services to recompute, want 1", got)
	}
	if got := onePort(t, tracker).ID.Service; got != "web" {
		t.Errorf("%s changed, want web", got)
	}
}

func testDeletedObjectsLeaveNothing(t *testing.T) {
	tracker, _ := newSynced()
	tracker.Changes()
	tracker.SetService(makeService())
	tracker.SetEndpointSlice(sliceOf(pod("10.0.0.1", "")))
	tracker.Changes()
	tracker.DeleteService("default", "web")
	tracker.DeleteEndpointSlice("default", "web-1")
	tracker.Changes()
	if n := len(tracker.entries) + len(tracker.slices) + len(tracker.changes.gone) + len(tracker.triggers); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

func TestNode(t *testing.T) {
	address := func(kind corev1.NodeAddressType, ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: kind, Address: ip}
	}
	for _, tc := range []struct {
		name string
		node *corev1.Node
		want model.Node
	}{
		{
			name: "the first InternalIP of each family, in the order of the Node",
			node: makeNode(thisNode, "", func(n *corev1.Node) {
				n.Status.Addresses = []corev1.NodeAddress{
					address(corev1.NodeExternalIP, "198.51.100.1"), address(corev1.NodeHostName, "node-1"),
					address(corev1.NodeInternalIP, "fd00::1"), address(corev1.NodeInternalIP, "192.0.2.1"), address(corev1.NodeInternalIP, "192.0.2.2"),
				}
			}),
			want: model.Node{Name: thisNode, IPs: addrs("fd00::1", "192.0.2.1")},
		},
		{
			name: "an ExternalIP where there is no InternalIP",
			node: makeNode(thisNode, "", func(n *corev1.Node) {
				n.Status.Addresses = []corev1.NodeAddress{
					address(corev1.NodeExternalIP, "198.51.100.1"), address(corev1.NodeInternalIP, "fd00::1"), address(corev1.NodeInternalIP, "192.0.2.01"),
				}
			}),
			want: model.Node{Name: thisNode, IPs: addrs("fd00::1", "198.51.100.1")},
		},
		{
			name: "pod CIDRs",
			node: makeNode(thisNode, "", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"fd00::/64", "10.0.0.0/24"} }),
			want: model.Node{Name: thisNode, PodCIDRs: prefixes("10.0.0.0/24", "fd00::/64")},
		},
		{
			name: "another node is nothing to us",
			node: makeNode(otherNode, "", func(n *corev1.Node) { n.Spec.PodCIDR = "10.0.0.0/24" }),
			want: model.Node{Name: thisNode},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker, _ := newSynced(tc.node)
			if diff := cmp.Diff(&tc.want, tracker.Changes().Node, sameAddrs); diff != "" {
				t.Errorf("node (-want +got):\n%s", diff)
			}
			known := len(tc.want.IPs)+len(tc.want.PodCIDRs) > 0
			tracker.DeleteNode(thisNode)
			tracker.DeleteNode(thisNode)
			tc.want.GoingAway = true
			c := tracker.Changes()
			switch {
			case !known && c == nil:
			case !known:
				t.Errorf("deletion of a Node object that is not known changed %v", c)
			case len(c.Ports) > 0 || !cmp.Equal(&tc.want, c.Node, sameAddrs):
				t.Errorf("deletion of the Node object (-want +got):\n%s", cmp.Diff(&tc.want, c.Node, sameAddrs))
			}
		})
	}
}

func testNewZoneDecidesAnew(t *testing.T) {
	slice := sliceOf(hintZones(pod("10.0.0.1", ""), "a"), hintZones(pod("10.0.0.2", ""), "b"))
	tracker, _ := newSynced(makeService(), slice, makeNode(thisNode, "a"))
	if diff := cmp.Diff([]string{"10.0.0.1:8080"}, texts(onePort(t, tracker).Cluster)); diff != "" {
		t.Errorf("in zone a (-want +got):\n%s", diff)
	}
	tracker.SetNode(makeNode(thisNode, "b"))
	changes := tracker.Changes()
	if changes == nil || changes.Node != nil {
		t.Fatalf("a zone is nothing that a backend sees of the node: %v", changes)
	}
	if diff := cmp.Diff([]string{"10.0.0.2:8080"}, texts(portsOf(t, changes)[0].Cluster)); diff != "" {
		t.Errorf("in zone b (-want +got):\n%s", diff)
	}
}

func TestServiceCIDRs(t *testing.T) {
	tracker, skipped := newSynced(makeServiceCIDR("b", "10.97.0.0/16", "bad"), makeServiceCIDR("a", "fd00::/112", "10.96.0.0/16"))
	want := prefixes("10.96.0.0/16", "10.97.0.0/16", "fd00::/112")
	if diff := cmp.Diff(want, tracker.Changes().ServiceCIDRs, sameAddrs); diff != "" {
		t.Errorf("ranges (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(skips{"ServiceCIDR invalid_ip": 1}, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	tracker.SetServiceCIDR(makeServiceCIDR("c", "10.96.0.0/16"))
	if c := tracker.Changes(); c != nil {
		t.Errorf("a range that was there changed %v", c)
	}
	tracker.DeleteServiceCIDR("b")
	changes := tracker.Changes()
	if !changes.ServiceCIDRsChanged {
		t.Fatal("a deletion is no change")
	}
	if diff := cmp.Diff(prefixes("10.96.0.0/16", "fd00::/112"), changes.ServiceCIDRs, sameAddrs); diff != "" {
		t.Errorf("ranges after deletion (-want +got):\n%s", diff)
	}
}

func testObjectsWithoutANameAreSkipped(t *testing.T) {
	_, skipped := newSynced(
		makeService(func(s *corev1.Service) { s.Name = "" }),
		makeSlice(func(s *discoveryv1.EndpointSlice) { s.Name = "" }),
		makeServiceCIDR("", "10.96.0.0/16"), (*corev1.Service)(nil), (*discoveryv1.EndpointSlice)(nil), (*corev1.Node)(nil), (*networkingv1.ServiceCIDR)(nil),
	)
	want := skips{"Service malformed": 1, "EndpointSlice malformed": 1, "ServiceCIDR malformed": 1}
	if diff := cmp.Diff(want, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

func testTriggersComeWithTheChanges(t *testing.T) {
	tracker, _ := newSynced(makeService())
	tracker.Take()
	at := func(when string, ip string) *discoveryv1.EndpointSlice {
		s := sliceOf(pod(ip, ""))
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: when}
		return s
	}
	late := tracker.started.Add(time.Minute).UTC().Round(0)
	tracker.SetEndpointSlice(at(late.Format(time.RFC3339Nano), "10.0.0.1"))
	tracker.SetEndpointSlice(at(tracker.started.Add(-time.Minute).Format(time.RFC3339Nano), "10.0.0.2"))
	tracker.SetEndpointSlice(at("nonsense", "10.0.0.3"))
	_, triggers := tracker.Take()
	if len(triggers) != 1 || !triggers[0].Equal(late) {
		t.Errorf("triggers are %v, want %v", triggers, late)
	}
	if _, triggers = tracker.Take(); triggers != nil {
		t.Errorf("triggers came twice: %v", triggers)
	}
}

func testConcurrentUse(t *testing.T) {
	tracker := New(Options{NodeName: thisNode})
	done := make(chan struct{})
	for g := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range 200 {
				tracker.SetService(makeService(func(s *corev1.Service) { s.Name = fmt.Sprint(i % 7) }))
				tracker.SetEndpointSlice(makeSlice(func(s *discoveryv1.EndpointSlice) {
					s.Labels[discoveryv1.LabelServiceName] = fmt.Sprint(i % 5)
					s.Endpoints = []discoveryv1.Endpoint{pod(fmt.Sprintf("10.0.%d.%d", g, i), "")}
				}))
				tracker.SetNode(makeNode(thisNode, fmt.Sprint(i%2)))
				tracker.Synced()
				tracker.Changes()
				tracker.DeleteService("default", fmt.Sprint(i%3))
			}
		}()
	}
	for range 4 {
		<-done
	}
}
