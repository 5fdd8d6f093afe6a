package server_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
	"github.com/nftproxy/nftproxy/tracker"
)

// detailed returns web-i with what an L7 proxy reads.
func detailed(i int, tier, weight string) *corev1.Service {
	s := service(i)
	s.Spec.Type = corev1.ServiceTypeNodePort
	s.Spec.Ports[0].AppProtocol = new("http")
	s.Labels = map[string]string{"tier": tier, "team": "a"}
	s.Annotations = map[string]string{"weight": weight, "other": "x"}
	return s
}

// portOf returns what a backend has of web-i.
func (b *backend) portOf(i int) *model.ServicePort {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == nil {
		return nil
	}
	return b.state.Ports[model.PortID{Namespace: "default", Service: service(i).Name, Protocol: model.TCP, Family: model.IPv4}]
}

func TestDetails(t *testing.T) {
	tr := tracker.New(tracker.Options{EveryNode: true, History: 100, Details: true})
	endpoints := slice(1, 2, 1)
	endpoints.Endpoints[0].Hostname, endpoints.Endpoints[0].Zone = new("web-0"), new("zone-a")
	tr.SetService(detailed(1, "front", "3"))
	tr.SetService(service(2))
	tr.SetEndpointSlice(endpoints)
	tr.Synced()
	b := newTestServer(t, tr, server.Options{})
	plain, l7 := &backend{}, &backend{}
	keys := model.ServiceKeys{Labels: []string{"tier"}, Annotations: []string{"weight", "none"}}
	follow(t, b.address, "node-1", plain)
	followWith(t, b.address, l7, nodelocal.Options{Node: "node-1", ServiceKeys: keys})
	// has waits until the L7 backend has these values of web-1, and both have the marker on web-2.
	has := func(t *testing.T, tier, weight string, marker uint16) {
		t.Helper()
		s := service(2)
		s.Spec.Ports[0].NodePort = int32(marker)
		tr.SetService(s)
		eventually(t, func() string {
			for _, each := range []*backend{plain, l7} {
				if p := each.portOf(2); p == nil || p.NodePort != marker {
					return "a backend does not have the marker"
				}
			}
			if p := l7.portOf(1); p == nil || p.ServiceLabels["tier"] != tier || p.ServiceAnnotations["weight"] != weight {
				return "the L7 backend does not have the labels and annotations"
			}
			return ""
		})
	}
	has(t, "front", "3", 30001)
	t.Run("each client has type, application protocol, host names and zones, and the labels that it asked for", func(t *testing.T) {
		for _, each := range []*backend{plain, l7} {
			p := each.portOf(1)
			if p.ServiceType != model.TypeNodePort || p.AppProtocol != "http" || p.Cluster[0].Info != model.NewEndpointInfo("web-0", "zone-a") {
				t.Errorf("%+v", p)
			}
		}
		if p := plain.portOf(1); p.ServiceLabels != nil || p.ServiceAnnotations != nil {
			t.Errorf("a client that asked for none has labels %v and annotations %v", p.ServiceLabels, p.ServiceAnnotations)
		}
		if p := l7.portOf(1); len(p.ServiceLabels) != 1 || len(p.ServiceAnnotations) != 1 {
			t.Errorf("a client that asked for tier, weight and none has labels %v and annotations %v", p.ServiceLabels, p.ServiceAnnotations)
		}
	})
	t.Run("a change reaches those who asked for it alone", func(t *testing.T) {
		_, plainBefore := plain.counts()
		_, l7Before := l7.counts()
		ignored := detailed(1, "front", "3")
		ignored.Labels["team"], ignored.Annotations["other"] = "b", "y"
		tr.SetService(ignored)
		has(t, "front", "3", 30002)
		tr.SetService(detailed(1, "back", "4"))
		has(t, "back", "4", 30003)
		if _, n := plain.counts(); n-plainBefore != 2 {
			t.Errorf("the client that asked for nothing got %d changed ports, want the two markers", n-plainBefore)
		}
		if _, n := l7.counts(); n-l7Before != 3 {
			t.Errorf("the client that asked got %d changed ports, want the two markers and web-1 once", n-l7Before)
		}
	})
	t.Run("a change during a cut arrives without the full state", func(t *testing.T) {
		fulls := b.fulls()
		b.cut()
		tr.SetService(detailed(1, "middle", "5"))
		has(t, "middle", "5", 30004)
		if n := b.fulls() - fulls; n != 0 {
			t.Errorf("%d full states were sent", n)
		}
	})
	t.Run("a position counts for the same keys only", func(t *testing.T) {
		client := dial(t, b.address)
		ask := func(seen *nodelocalv1.Position, keys *nodelocalv1.ServiceKeys) *nodelocalv1.Update {
			t.Helper()
			stream, err := client.Watch(patient(t), &nodelocalv1.WatchRequest{Node: "node-1", LastSeen: seen, ServiceKeys: keys})
			if err != nil {
				t.Fatal(err)
			}
			update, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return update
		}
		tier, weight := &nodelocalv1.ServiceKeys{Labels: []string{"tier"}}, &nodelocalv1.ServiceKeys{Annotations: []string{"tier"}}
		first := ask(nil, tier)
		seen := first.GetSync().GetPosition()
		if !first.Full || len(seen.GetInstance()) > 64 {
			t.Errorf("the first batch is full: %t, at %v", first.Full, seen)
		}
		if again := ask(seen, tier); again.Full {
			t.Error("the same keys get the full state")
		}
		for _, other := range []*nodelocalv1.ServiceKeys{nil, weight} {
			if again := ask(seen, other); !again.Full {
				t.Errorf("other keys (%v) get no full state", other)
			}
		}
	})
	t.Run("refuses keys that no Service can have, and too many", func(t *testing.T) {
		client := dial(t, b.address)
		for _, keys := range []*nodelocalv1.ServiceKeys{
			{Labels: []string{"a b"}}, {Annotations: []string{"/x"}}, {Labels: []string{""}},
			{Labels: make([]string, 17)}, {Annotations: []string{strings.Repeat("x", 318)}},
		} {
			stream, err := client.Get(patient(t), &nodelocalv1.GetRequest{Node: "node-1", ServiceKeys: keys})
			if err == nil {
				_, err = stream.Recv()
			}
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "service_keys") {
				t.Errorf("%.100v: error %v", keys, err)
			}
		}
	})
	t.Run("Get answers like Watch", func(t *testing.T) {
		stream, err := dial(t, b.address).Get(patient(t), &nodelocalv1.GetRequest{Node: "node-1", ServiceKeys: &nodelocalv1.ServiceKeys{Labels: []string{"tier"}}})
		if err != nil {
			t.Fatal(err)
		}
		update, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(update.Set, func(port *nodelocalv1.ServicePort) bool {
			return port.Id.Service == "web-1" && port.ServiceLabels["tier"] == "middle"
		}) {
			t.Errorf("no web-1 with its label in %v", update.Set)
		}
	})
}

// A view of a node that has no Node object yet is legal, and a wrong name must not go unnoticed.
func TestUnknownNode(t *testing.T) {
	tr := servingTracker(100)
	fill(tr, 3, 1)
	tr.Synced()
	var log logLines
	b := newTestServer(t, tr, server.Options{Logger: log.logger()})
	client := dial(t, b.address)
	warning := func(update *nodelocalv1.Update, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return update.GetSync().GetWarning()
	}
	stream, err := client.Watch(patient(t), &nodelocalv1.WatchRequest{Node: "nodee-1"})
	if err != nil {
		t.Fatal(err)
	}
	if got := warning(stream.Recv()); !strings.Contains(got, `"nodee-1"`) {
		t.Errorf("Watch warns %q", got)
	}
	get, err := client.Get(patient(t), &nodelocalv1.GetRequest{Node: "nodee-1"})
	if err != nil {
		t.Fatal(err)
	}
	if got := warning(get.Recv()); !strings.Contains(got, `"nodee-1"`) {
		t.Errorf("Get warns %q", got)
	}
	await.Until(t, "the server's log names the node", func() error { return log.count("nodee-1", 1) })
	tr.SetNode(node("nodee-1"))
	if got := warning(stream.Recv()); got != "" {
		t.Errorf("there is a Node, and Watch warns %q", got)
	}
	if err := log.count("nodee-1", 1); err != nil {
		t.Error(err)
	}
}
