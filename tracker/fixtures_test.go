package tracker

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/model"
)

const (
	thisNode  = "node-1"
	otherNode = "node-2"
)

// sameAddrs lets cmp compare netip values.
var sameAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// makeService returns Service default/web with one TCP port 80 on 10.96.0.1, and edits applied.
func makeService(edits ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "10.96.0.1",
			ClusterIPs: []string{"10.96.0.1"},
			Ports:      []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

// makeSlice returns the IPv4 slice default/web-1 of Service web with TCP port 8080, and edits applied.
func makeSlice(edits ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

// sliceOf is makeSlice with endpoints.
func sliceOf(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return makeSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints = endpoints })
}

// pod returns an endpoint; condition lists what is explicitly true or, with "!", false.
func pod(addr, node string, conditions ...string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{addr}}
	if node != "" {
		e.NodeName = new(node)
	}
	for _, c := range conditions {
		value := c[0] != '!'
		switch c {
		case "ready", "!ready":
			e.Conditions.Ready = new(value)
		case "serving", "!serving":
			e.Conditions.Serving = new(value)
		case "terminating", "!terminating":
			e.Conditions.Terminating = new(value)
		default:
			panic("unknown condition " + c)
		}
	}
	return e
}

func hintZones(e discoveryv1.Endpoint, zones ...string) discoveryv1.Endpoint {
	if e.Hints == nil {
		e.Hints = &discoveryv1.EndpointHints{}
	}
	for _, z := range zones {
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
	}
	return e
}

func hintNodes(e discoveryv1.Endpoint, nodes ...string) discoveryv1.Endpoint {
	if e.Hints == nil {
		e.Hints = &discoveryv1.EndpointHints{}
	}
	for _, n := range nodes {
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return e
}

// makeNode returns a Node in a zone; an empty zone is no label.
func makeNode(name, zone string, edits ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	for _, edit := range edits {
		edit(n)
	}
	return n
}

func makeServiceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// set hands any object to sink.
func set(sink Sink, obj any) {
	switch o := obj.(type) {
	case *corev1.Service:
		sink.SetService(o)
	case *discoveryv1.EndpointSlice:
		sink.SetEndpointSlice(o)
	case *corev1.Node:
		sink.SetNode(o)
	case *networkingv1.ServiceCIDR:
		sink.SetServiceCIDR(o)
	default:
		panic("unknown object")
	}
}

// skips counts what a Tracker skipped, by kind and reason.
type skips map[string]int

func (s skips) count(kind, reason string) { s[kind+" "+reason]++ }

// newSynced returns a Tracker on thisNode that has objects and is synced.
func newSynced(objects ...any) (*Tracker, skips) {
	skipped := skips{}
	t := New(Options{NodeName: thisNode, OnSkip: skipped.count})
	for _, obj := range objects {
		set(t, obj)
	}
	t.Synced()
	return t, skipped
}

// portsOf returns the ports in changes, sorted; there must be no deletions.
func portsOf(t *testing.T, changes *model.Changes) []*model.ServicePort {
	t.Helper()
	if changes == nil {
		return nil
	}
	var ports []*model.ServicePort
	for id, port := range changes.Ports {
		if port == nil {
			t.Fatalf("unexpected deletion of %s", id)
		}
		if port.ID != id {
			t.Fatalf("port %s is filed under %s", port.ID, id)
		}
		ports = append(ports, port)
	}
	slices.SortFunc(ports, func(a, b *model.ServicePort) int { return a.ID.Compare(b.ID) })
	return ports
}

// onePort returns the only port of a Tracker that was just synced.
func onePort(t *testing.T, tracker *Tracker) *model.ServicePort {
	t.Helper()
	ports := portsOf(t, tracker.Changes())
	if len(ports) != 1 {
		t.Fatalf("got %d ports, want 1", len(ports))
	}
	return ports[0]
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func addrs(list ...string) (parsed []netip.Addr) {
	for _, s := range list {
		parsed = append(parsed, addr(s))
	}
	return parsed
}

func prefixes(list ...string) (parsed []netip.Prefix) {
	for _, s := range list {
		parsed = append(parsed, netip.MustParsePrefix(s))
	}
	return parsed
}

// texts prints endpoints as "addr:port", with " local" behind those on this node.
func texts(list []model.Endpoint) (printed []string) {
	for _, e := range list {
		s := e.AddrPort.String()
		if e.Local {
			s += " local"
		}
		printed = append(printed, s)
	}
	return printed
}
