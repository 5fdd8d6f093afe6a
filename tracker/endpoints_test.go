package tracker

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nftproxy/nftproxy/model"
)

type lists struct {
	Cluster, Local   []string
	LocalTerminating bool
}

func TestEndpoints(t *testing.T) {
	t.Run("are chosen", testEndpointsAreChosen)
	t.Run("the local list is only filled for policy Local", testLocalListIsOnlyFilledForPolicyLocal)
	t.Run("slices join Services", testSlicesJoinServices)
	t.Run("one in two slices counts once", testEndpointInTwoSlices)
	t.Run("the serving list is for UDP", testServingListIsForUDP)
	t.Run("endpoints that do not serve are listed while none serves", testEndpointsThatDoNotServeAreListedWhileNoneServes)
	t.Run("families are independent", testFamiliesAreIndependent)
	t.Run("those of a slice are small", testSliceEndpointIsSmall)
}

func testEndpointsAreChosen(t *testing.T) {
	for _, tc := range []struct {
		name      string
		zone      string
		endpoints []discoveryv1.Endpoint
		want      lists
	}{
		{
			name:      "unset conditions mean ready",
			endpoints: []discoveryv1.Endpoint{pod("10.0.0.2", thisNode), pod("10.0.0.1", otherNode)},
			want:      lists{Cluster: []string{"10.0.0.1:8080", "10.0.0.2:8080 local"}, Local: []string{"10.0.0.2:8080 local"}},
		},
		{
			name:      "an endpoint without a node is not local",
			endpoints: []discoveryv1.Endpoint{pod("10.0.0.1", "")},
			want:      lists{Cluster: []string{"10.0.0.1:8080"}},
		},
		{
			name:      "endpoints that are not ready are left out",
			endpoints: []discoveryv1.Endpoint{pod("10.0.0.1", thisNode, "!ready"), pod("10.0.0.2", thisNode, "ready")},
			want:      lists{Cluster: []string{"10.0.0.2:8080 local"}, Local: []string{"10.0.0.2:8080 local"}},
		},
		{
			name:      "none ready means those that serve and terminate",
			endpoints: []discoveryv1.Endpoint{pod("10.0.0.1", thisNode, "!ready", "serving", "terminating"), pod("10.0.0.2", otherNode, "!ready", "!serving", "terminating")},
			want:      lists{Cluster: []string{"10.0.0.1:8080 local"}, Local: []string{"10.0.0.1:8080 local"}, LocalTerminating: true},
		},
		{
			name:      "the fallback needs terminating",
			endpoints: []discoveryv1.Endpoint{pod("10.0.0.1", thisNode, "!ready", "serving")},
		},
		{
			name:      "serving unset means serving",
			endpoints: []discoveryv1.Endpoint{pod("10.0.0.1", thisNode, "!ready", "terminating")},
			want:      lists{Cluster: []string{"10.0.0.1:8080 local"}, Local: []string{"10.0.0.1:8080 local"}, LocalTerminating: true},
		},
		{
			name:      "the fallback is decided for Local alone",
			endpoints: []discoveryv1.Endpoint{pod("10.0.0.1", thisNode, "!ready", "serving", "terminating"), pod("10.0.0.2", otherNode)},
			want:      lists{Cluster: []string{"10.0.0.2:8080"}, Local: []string{"10.0.0.1:8080 local"}, LocalTerminating: true},
		},
		{
			name:      "the fallback is decided for Cluster alone",
			endpoints: []discoveryv1.Endpoint{pod("10.0.0.1", otherNode, "!ready", "serving", "terminating")},
			want:      lists{Cluster: []string{"10.0.0.1:8080"}},
		},
		{
			name: "zone hints choose this zone for Cluster, never for Local",
			zone: "a",
			endpoints: []discoveryv1.Endpoint{
				hintZones(pod("10.0.0.1", otherNode), "a"),
				hintZones(pod("10.0.0.2", thisNode), "b"),
				hintZones(pod("10.0.0.3", otherNode), "b", "a"),
			},
			want: lists{Cluster: []string{"10.0.0.1:8080", "10.0.0.3:8080"}, Local: []string{"10.0.0.2:8080 local"}},
		},
		{
			name:      "zone hints count only if every ready endpoint has one",
			zone:      "a",
			endpoints: []discoveryv1.Endpoint{hintZones(pod("10.0.0.1", ""), "a"), pod("10.0.0.2", "")},
			want:      lists{Cluster: []string{"10.0.0.1:8080", "10.0.0.2:8080"}},
		},
		{
			name:      "endpoints that are not ready need no hint",
			zone:      "a",
			endpoints: []discoveryv1.Endpoint{hintZones(pod("10.0.0.1", ""), "a"), pod("10.0.0.2", "", "!ready"), hintZones(pod("10.0.0.3", ""), "b")},
			want:      lists{Cluster: []string{"10.0.0.1:8080"}},
		},
		{
			name:      "hints of endpoints that are not ready match nothing",
			zone:      "a",
			endpoints: []discoveryv1.Endpoint{hintZones(pod("10.0.0.1", "", "!ready"), "a"), hintZones(pod("10.0.0.3", ""), "b")},
			want:      lists{Cluster: []string{"10.0.0.3:8080"}},
		},
		{
			name:      "without a hint for this zone all endpoints count",
			zone:      "c",
			endpoints: []discoveryv1.Endpoint{hintZones(pod("10.0.0.1", ""), "a"), hintZones(pod("10.0.0.2", ""), "b")},
			want:      lists{Cluster: []string{"10.0.0.1:8080", "10.0.0.2:8080"}},
		},
		{
			name:      "a node without a zone ignores zone hints, even empty ones",
			endpoints: []discoveryv1.Endpoint{hintZones(pod("10.0.0.1", ""), ""), hintZones(pod("10.0.0.2", ""), "b")},
			want:      lists{Cluster: []string{"10.0.0.1:8080", "10.0.0.2:8080"}},
		},
		{
			name: "node hints go before zone hints",
			zone: "a",
			endpoints: []discoveryv1.Endpoint{
				hintNodes(hintZones(pod("10.0.0.1", thisNode), "a"), thisNode),
				hintNodes(hintZones(pod("10.0.0.2", otherNode), "a"), otherNode),
			},
			want: lists{Cluster: []string{"10.0.0.1:8080 local"}, Local: []string{"10.0.0.1:8080 local"}},
		},
		{
			name: "node hints for other nodes leave it to zone hints",
			zone: "a",
			endpoints: []discoveryv1.Endpoint{
				hintNodes(hintZones(pod("10.0.0.1", otherNode), "b"), otherNode),
				hintNodes(hintZones(pod("10.0.0.2", otherNode), "a"), otherNode),
			},
			want: lists{Cluster: []string{"10.0.0.2:8080"}},
		},
		{
			name: "topology does not touch the fallback",
			zone: "a",
			endpoints: []discoveryv1.Endpoint{
				hintZones(pod("10.0.0.1", "", "!ready", "serving", "terminating"), "a"),
				hintZones(pod("10.0.0.2", "", "!ready", "serving", "terminating"), "b"),
			},
			want: lists{Cluster: []string{"10.0.0.1:8080", "10.0.0.2:8080"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker, skipped := newSynced(makeNode(thisNode, tc.zone), localService(), sliceOf(tc.endpoints...))
			port := onePort(t, tracker)
			got := lists{texts(port.Cluster), texts(port.Local), port.LocalTerminating}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("lists (-want +got):\n%s", diff)
			}
			if len(skipped) > 0 {
				t.Errorf("skipped %v", skipped)
			}
		})
	}
}

// localService is makeService with both policies Local, so that all lists are filled.
func localService() *corev1.Service {
	return makeService(func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	})
}

func testLocalListIsOnlyFilledForPolicyLocal(t *testing.T) {
	tracker, _ := newSynced(makeService(), sliceOf(pod("10.0.0.1", thisNode)))
	if got := texts(onePort(t, tracker).Local); got != nil {
		t.Errorf("got %v, want none", got)
	}
}

func testSlicesJoinServices(t *testing.T) {
	slice := func(name string, edits ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		return makeSlice(append([]func(*discoveryv1.EndpointSlice){func(s *discoveryv1.EndpointSlice) { s.Name = name }}, edits...)...)
	}
	with := func(endpoints ...discoveryv1.Endpoint) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Endpoints = endpoints }
	}
	port := func(name string, protocol corev1.Protocol, number int32) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) {
			s.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &number}}
		}
	}
	for _, tc := range []struct {
		name    string
		slices  []*discoveryv1.EndpointSlice
		want    []string
		skipped skips
	}{
		{
			name:   "the slices of a Service are merged",
			slices: []*discoveryv1.EndpointSlice{slice("b", with(pod("10.0.0.1", ""))), slice("a", with(pod("10.0.0.2", "")))},
			want:   []string{"10.0.0.1:8080", "10.0.0.2:8080"},
		},
		{
			name: "one port name may have a number in each slice",
			slices: []*discoveryv1.EndpointSlice{
				slice("a", port("", corev1.ProtocolTCP, 1), with(pod("10.0.0.1", ""))),
				slice("b", port("", corev1.ProtocolTCP, 2), with(pod("10.0.0.1", ""))),
			},
			want: []string{"10.0.0.1:1", "10.0.0.1:2"},
		},
		{
			name: "the same endpoint in two slices counts once, and is ready if either says so",
			slices: []*discoveryv1.EndpointSlice{
				slice("a", with(pod("10.0.0.1", "", "!ready"))),
				slice("b", with(pod("10.0.0.1", "", "ready"))),
				slice("c", with(pod("10.0.0.1", "", "ready"))),
			},
			want: []string{"10.0.0.1:8080"},
		},
		{
			name: "the same endpoint in two slices is local if either says so",
			slices: []*discoveryv1.EndpointSlice{
				slice("a", with(pod("10.0.0.1", ""))),
				slice("b", with(pod("10.0.0.1", thisNode))),
			},
			want: []string{"10.0.0.1:8080 local"},
		},
		{
			name:   "only the first address of an endpoint counts",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(discoveryv1.Endpoint{Addresses: []string{"10.0.0.1", "10.0.0.2"}}))},
			want:   []string{"10.0.0.1:8080"},
		},
		{
			name:   "another port name does not join",
			slices: []*discoveryv1.EndpointSlice{slice("a", port("http", corev1.ProtocolTCP, 8080), with(pod("10.0.0.1", "")))},
		},
		{
			name:   "another protocol does not join",
			slices: []*discoveryv1.EndpointSlice{slice("a", port("", corev1.ProtocolUDP, 8080), with(pod("10.0.0.1", "")))},
		},
		{
			name: "a port without name and protocol is the unnamed TCP port",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(pod("10.0.0.1", "")), func(s *discoveryv1.EndpointSlice) {
				s.Ports[0].Name, s.Ports[0].Protocol = nil, nil
			})},
			want: []string{"10.0.0.1:8080"},
		},
		{
			name: "another namespace does not join",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(pod("10.0.0.1", "")), func(s *discoveryv1.EndpointSlice) {
				s.Namespace = "other"
			})},
		},
		{
			name: "a slice without a Service label joins nothing",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(pod("10.0.0.1", "")), func(s *discoveryv1.EndpointSlice) {
				s.Labels = nil
			})},
		},
		{
			name: "a headless slice joins nothing, whatever the label's value",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(pod("10.0.0.1", "")), func(s *discoveryv1.EndpointSlice) {
				s.Labels[corev1.IsHeadlessService] = ""
			})},
		},
		{
			name: "an FQDN slice is ignored silently",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(pod("web.example", "")), func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeFQDN
			})},
		},
		{
			name: "a slice of an unknown address type is skipped",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(pod("10.0.0.1", "")), func(s *discoveryv1.EndpointSlice) {
				s.AddressType = "IPX"
			})},
			skipped: skips{"EndpointSlice malformed": 1},
		},
		{
			name: "an IPv6 slice does not feed the IPv4 port",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(pod("fd00::1", "")), func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeIPv6
			})},
		},
		{
			name: "bad endpoints are skipped and the good ones work",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(
				pod("10.0.0.01", ""), pod("nonsense", ""), pod("127.0.0.1", ""), pod("fd00::1", ""), discoveryv1.Endpoint{}, pod("10.0.0.1", ""),
			))},
			want:    []string{"10.0.0.1:8080"},
			skipped: skips{"EndpointSlice invalid_ip": 3, "EndpointSlice wrong_family": 1, "EndpointSlice malformed": 1},
		},
		{
			name: "bad ports are skipped and the good ones work",
			slices: []*discoveryv1.EndpointSlice{slice("a", with(pod("10.0.0.1", "")), func(s *discoveryv1.EndpointSlice) {
				s.Ports = append(s.Ports,
					discoveryv1.EndpointPort{Name: new("")},
					discoveryv1.EndpointPort{Name: new(""), Port: new(int32(0))},
					discoveryv1.EndpointPort{Name: new(""), Port: new(int32(65536))},
					discoveryv1.EndpointPort{Name: new(""), Port: new(int32(1)), Protocol: new(corev1.Protocol("X"))})
			})},
			want:    []string{"10.0.0.1:8080"},
			skipped: skips{"EndpointSlice invalid_port": 3, "EndpointSlice invalid_protocol": 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var objects []any
			for _, s := range tc.slices {
				objects = append(objects, s)
			}
			tracker, skipped := newSynced(append(objects, makeService())...)
			if diff := cmp.Diff(tc.want, texts(onePort(t, tracker).Cluster)); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			want := tc.skipped
			if want == nil {
				want = skips{}
			}
			if diff := cmp.Diff(want, skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

// testEndpointInTwoSlices has the same address twice, on this node and on the other, in
// both orders of slices: only conditions decide, and the node where they are equal.
func testEndpointInTwoSlices(t *testing.T) {
	here := func(conditions ...string) discoveryv1.Endpoint { return pod("10.0.0.1", thisNode, conditions...) }
	there := func(conditions ...string) discoveryv1.Endpoint { return pod("10.0.0.1", otherNode, conditions...) }
	for _, tc := range []struct {
		name string
		a, b discoveryv1.Endpoint
		want lists
	}{
		{
			name: "ready elsewhere beats terminating here",
			a:    here("!ready", "serving", "terminating"), b: there("ready"),
			want: lists{Cluster: []string{"10.0.0.1:8080"}},
		},
		{
			name: "ready elsewhere beats serving here",
			a:    here("!ready", "serving"), b: there("ready", "!serving"),
			want: lists{Cluster: []string{"10.0.0.1:8080"}},
		},
		{
			name: "serving elsewhere beats not serving here",
			a:    here("!ready", "!serving", "terminating"), b: there("!ready", "serving", "terminating"),
			want: lists{Cluster: []string{"10.0.0.1:8080"}},
		},
		{
			name: "among serving ones the one that does not terminate counts, and does not stand in",
			a:    here("!ready", "serving", "terminating"), b: there("!ready", "serving"),
		},
		{
			name: "one that is not ready beats one that serves while it terminates",
			a:    here("!ready", "!serving"), b: there("!ready", "serving", "terminating"),
		},
		{
			name: "one that is not ready beats one that is ready while it terminates",
			a:    here("!ready", "!serving"), b: there("ready", "terminating"),
		},
		{
			name: "among equals the one on this node counts",
			a:    here(), b: there(),
			want: lists{Cluster: []string{"10.0.0.1:8080 local"}, Local: []string{"10.0.0.1:8080 local"}},
		},
	} {
		for order, endpoints := range map[string][2]discoveryv1.Endpoint{"": {tc.a, tc.b}, ", the other way round": {tc.b, tc.a}} {
			t.Run(tc.name+order, func(t *testing.T) {
				first, second := sliceOf(endpoints[0]), sliceOf(endpoints[1])
				second.Name = "web-2"
				tracker, _ := newSynced(localService(), first, second)
				port := onePort(t, tracker)
				got := lists{texts(port.Cluster), texts(port.Local), port.LocalTerminating}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("lists (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// withUDP returns the TCP and the UDP port of a Service with these endpoints.
func withUDP(t *testing.T, endpoints ...discoveryv1.Endpoint) (tcp, udp *model.ServicePort) {
	t.Helper()
	slice := sliceOf(endpoints...)
	slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(53))})
	service := makeService(func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53})
	})
	tracker, _ := newSynced(makeNode(thisNode, "a"), service, slice)
	ports := portsOf(t, tracker.Changes())
	return ports[0], ports[1]
}

func parsed(list ...string) (out []netip.AddrPort) {
	for _, text := range list {
		out = append(out, netip.MustParseAddrPort(text))
	}
	return out
}

func testServingListIsForUDP(t *testing.T) {
	tcp, udp := withUDP(t,
		hintZones(pod("10.0.0.1", ""), "a"),
		hintZones(pod("10.0.0.2", ""), "b"),
		pod("10.0.0.3", "", "!ready", "serving", "terminating"),
		pod("10.0.0.4", "", "!ready", "!serving"),
		hintZones(pod("10.0.0.5", "", "ready", "!serving"), "b"), // publishNotReadyAddresses
		pod("10.0.0.6", "", "!ready"),                            // serving unset means serving
	)
	if tcp.Serving != nil {
		t.Errorf("TCP has a serving list: %v", tcp.Serving)
	}
	if diff := cmp.Diff([]string{"10.0.0.1:53"}, texts(udp.Cluster)); diff != "" {
		t.Errorf("cluster list (-want +got):\n%s", diff)
	}
	want := parsed("10.0.0.1:53", "10.0.0.2:53", "10.0.0.3:53", "10.0.0.5:53", "10.0.0.6:53")
	if diff := cmp.Diff(want, udp.Serving, sameAddrs); diff != "" {
		t.Errorf("serving list (-want +got):\n%s", diff)
	}
	if udp.NotServing != nil {
		t.Errorf("the list of those that do not serve has %v, while others serve", udp.NotServing)
	}
}

func testEndpointsThatDoNotServeAreListedWhileNoneServes(t *testing.T) {
	tcp, udp := withUDP(t, pod("10.0.0.1", "", "!ready", "!serving"), pod("10.0.0.2", "", "!ready", "!serving", "terminating"))
	if tcp.NotServing != nil {
		t.Errorf("TCP has a list of endpoints that do not serve: %v", tcp.NotServing)
	}
	if diff := cmp.Diff(parsed("10.0.0.1:53", "10.0.0.2:53"), udp.NotServing, sameAddrs); diff != "" {
		t.Errorf("listed, not serving (-want +got):\n%s", diff)
	}
	if len(udp.Serving)+len(udp.Cluster) > 0 {
		t.Errorf("%v serve, and %v get connections", udp.Serving, udp.Cluster)
	}
}

func testFamiliesAreIndependent(t *testing.T) {
	service := makeService(func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.1", "fd00:96::1"} })
	slice := makeSlice(func(s *discoveryv1.EndpointSlice) {
		s.AddressType = discoveryv1.AddressTypeIPv6
		s.Endpoints = []discoveryv1.Endpoint{pod("fd00::1", "")}
	})
	tracker, _ := newSynced(service, slice)
	got := map[model.Family][]string{}
	for _, port := range portsOf(t, tracker.Changes()) {
		got[port.ID.Family] = texts(port.Cluster)
	}
	want := map[model.Family][]string{model.IPv4: nil, model.IPv6: {"[fd00::1]:8080"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}
