package tracker

import (
	"encoding/json"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/nftproxy/nftproxy/model"
)

// apiObjects has objects that somebody who may write to the API server can create, as JSON.
type apiObjects struct {
	Services     []corev1.Service
	Slices       []discoveryv1.EndpointSlice
	Nodes        []corev1.Node
	ServiceCIDRs []networkingv1.ServiceCIDR
}

func (o *apiObjects) feed(sink Sink) {
	for i := range o.Services {
		sink.SetService(&o.Services[i])
	}
	for i := range o.Slices {
		sink.SetEndpointSlice(&o.Slices[i])
	}
	for i := range o.Nodes {
		sink.SetNode(&o.Nodes[i])
	}
	for i := range o.ServiceCIDRs {
		sink.SetServiceCIDR(&o.ServiceCIDRs[i])
	}
	sink.Synced()
}

func (o *apiObjects) deleteAll(sink Sink) {
	for _, s := range o.Services {
		sink.DeleteService(s.Namespace, s.Name)
	}
	for _, s := range o.Slices {
		sink.DeleteEndpointSlice(s.Namespace, s.Name)
	}
	for _, c := range o.ServiceCIDRs {
		sink.DeleteServiceCIDR(c.Name)
	}
}

// FuzzObjects shows that no objects make the Tracker fall over, that a Service port that it publishes is one that can
// be compiled, and that nothing is left of objects that were deleted. The API server validates objects, but a proxy of
// another version, an aggregated API server or a manifest need not.
func FuzzObjects(f *testing.F) {
	node := corev1.Node{}
	node.Name = thisNode
	service := makeService(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeLoadBalancer, 30080
		s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.1", "010.0.0.1", "fd00::1"}, []string{"10.0.0.0/8", "::/0", "x"}
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	})
	slice := makeSlice(func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}, NodeName: new(thisNode)}, {Addresses: nil}}
	})
	for _, seed := range []apiObjects{
		{Services: []corev1.Service{*service}, Slices: []discoveryv1.EndpointSlice{*slice}, Nodes: []corev1.Node{node}},
		{ServiceCIDRs: []networkingv1.ServiceCIDR{{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12", "fd00::/200"}}}}},
	} {
		data, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var objects apiObjects
		if json.Unmarshal(data, &objects) != nil {
			return
		}
		tracker := New(Options{NodeName: thisNode})
		objects.feed(tracker)
		changes := tracker.Changes()
		if changes == nil {
			t.Fatal("the first changes are none")
		}
		for id, port := range changes.Ports {
			checkPublished(t, id, port)
		}
		for _, cidr := range changes.ServiceCIDRs {
			if !cidr.IsValid() {
				t.Errorf("Service CIDR %v", cidr)
			}
		}
		objects.deleteAll(tracker)
		live := maps.Clone(changes.Ports)
		if gone := tracker.Changes(); gone != nil {
			maps.DeleteFunc(live, func(id model.PortID, _ *model.ServicePort) bool {
				port, said := gone.Ports[id]
				return said && port == nil
			})
		}
		if len(live) > 0 {
			t.Errorf("after all objects were deleted there are %v", live)
		}
	})
}

func checkPublished(t *testing.T, id model.PortID, port *model.ServicePort) {
	t.Helper()
	switch {
	case port == nil:
		t.Fatalf("%v is published without a port", id)
	case port.Port == 0 || !port.ClusterIP.IsValid() || model.FamilyOf(port.ClusterIP) != id.Family:
		t.Errorf("%v: ClusterIP %v, port %d", id, port.ClusterIP, port.Port)
	}
	for _, e := range append(port.Cluster, port.Local...) {
		if e.AddrPort.Port() == 0 || model.FamilyOf(e.AddrPort.Addr()) != id.Family {
			t.Errorf("%v: endpoint %+v", id, e)
		}
	}
	for _, addr := range append(port.ExternalIPs, port.LoadBalancerIPs...) {
		if !addr.IsValid() || model.FamilyOf(addr) != id.Family {
			t.Errorf("%v: external address %v", id, addr)
		}
	}
}
