package tracker_test

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// A Tracker takes Kubernetes objects in any order and hands out what changed for one node.
func ExampleTracker_Changes() {
	t := tracker.New(tracker.Options{NodeName: "node-1"})
	t.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.1.5"}, NodeName: new("node-1")},
			{Addresses: []string{"10.244.2.6"}, NodeName: new("node-2")},
			{Addresses: []string{"10.244.2.7"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
		},
	})
	t.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10",
			Ports:     []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	})
	fmt.Println("before Synced:", t.Changes())

	t.Synced()
	changes := t.Changes()
	fmt.Println("full:", changes.Full)
	for id, port := range changes.Ports {
		fmt.Println(id, "on", port.ClusterIP)
		for _, e := range port.Cluster {
			fmt.Println("  endpoint", e.AddrPort, "local:", e.Local)
		}
	}

	t.DeleteService("shop", "web")
	for id, port := range t.Changes().Ports {
		fmt.Println(id, "is gone:", port == nil)
	}
	fmt.Println("nothing new:", t.Changes())
	// Output:
	// before Synced: <nil>
	// full: true
	// shop/web:http/TCP (IPv4) on 10.96.0.10
	//   endpoint 10.244.1.5:8080 local: true
	//   endpoint 10.244.2.6:8080 local: false
	// shop/web:http/TCP (IPv4) is gone: true
	// nothing new: <nil>
}

// printer is a Backend that keeps the model and prints it. A real one would program a dataplane.
type printer struct {
	ports map[model.PortID]*model.ServicePort
	done  func()
}

// Sync implements model.Backend.
func (p *printer) Sync(_ context.Context, changes *model.Changes) error {
	if changes.Full || p.ports == nil {
		p.ports = map[model.PortID]*model.ServicePort{}
	}
	for id, port := range changes.Ports {
		if port == nil {
			delete(p.ports, id)
		} else {
			p.ports[id] = port
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(p.ports), model.PortID.Compare) {
		port := p.ports[id]
		fmt.Printf("%s: %s port %d, %d endpoints, %d on this node\n", id, port.ClusterIP, port.Port, len(port.Cluster), countLocal(port))
	}
	p.done()
	return nil
}

func countLocal(port *model.ServicePort) (n int) {
	for _, e := range port.Cluster {
		if e.Local {
			n++
		}
	}
	return n
}

// shop is a Source of one Service. A real one follows an API server (source/apiserver), or reads files.
type shop struct{}

// Run implements tracker.Source.
func (shop) Run(ctx context.Context, sink tracker.Sink) error {
	sink.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}},
	})
	sink.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.1.5"}, NodeName: new("node-1")},
			{Addresses: []string{"10.244.2.6"}, NodeName: new("node-2")},
		},
	})
	sink.Synced() // that was all
	<-ctx.Done()
	return nil
}

// A proxy is a Source, a Tracker, a Loop and a Backend. This one stops after its first Sync.
func ExampleSource() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	t := tracker.New(tracker.Options{NodeName: "node-1"})
	loop := model.NewLoop(t, &printer{done: stop}, model.LoopOptions{})

	failed := make(chan error, 1)
	go func() {
		defer stop() // a Source that fails ends the Loop too
		failed <- shop{}.Run(ctx, t)
	}()
	if err := loop.Run(ctx); err != nil {
		fmt.Println(err)
	}
	if err := <-failed; err != nil {
		fmt.Println(err)
	}
	// Output:
	// shop/web/TCP (IPv4): 10.96.0.10 port 80, 2 endpoints, 1 on this node
}
