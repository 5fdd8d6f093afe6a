package protocol_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

func TestServiceKeys(t *testing.T) {
	port := &model.ServicePort{
		ID:        model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4},
		ClusterIP: netip.MustParseAddr("10.96.0.10"), Port: 80,
		ServiceLabels:      map[string]string{"tier": "front", "team": "a"},
		ServiceAnnotations: map[string]string{"weight": "3", "secret": "x"},
	}
	received := func(t *testing.T, fields []protocol.Field) *nodelocalv1.ServicePort {
		t.Helper()
		var update nodelocalv1.Update
		if err := proto.Unmarshal(slices.Concat(fields...), &update); err != nil || len(update.Set) != 1 {
			t.Fatalf("%v, %d ports", err, len(update.Set))
		}
		return update.Set[0]
	}
	t.Run("a client gets the values that it asked for, and one encoding serves all clients", func(t *testing.T) {
		shared := protocol.SetField(port)
		before := slices.Clone(shared[0])
		for _, tt := range []struct {
			keys                model.ServiceKeys
			labels, annotations map[string]string
		}{
			{keys: model.ServiceKeys{}},
			{keys: model.ServiceKeys{Labels: []string{"weight"}, Annotations: []string{"tier"}}},
			{keys: model.ServiceKeys{Labels: []string{"tier", "none"}}, labels: map[string]string{"tier": "front"}},
			{keys: model.ServiceKeys{Annotations: []string{"weight"}}, annotations: map[string]string{"weight": "3"}},
		} {
			got := received(t, protocol.AddKeys(shared, port, tt.keys))
			if diff := cmp.Diff(tt.labels, got.ServiceLabels); diff != "" {
				t.Errorf("%+v: labels (-want +got):\n%s", tt.keys, diff)
			}
			if diff := cmp.Diff(tt.annotations, got.ServiceAnnotations); diff != "" {
				t.Errorf("%+v: annotations (-want +got):\n%s", tt.keys, diff)
			}
			if got.Id.Service != "web" || got.Port != 80 || got.ClusterIp != "10.96.0.10" {
				t.Errorf("%+v: the port came out as %v", tt.keys, got)
			}
		}
		if !slices.Equal(before, shared[0]) {
			t.Error("the shared encoding was modified")
		}
	})
	t.Run("a server's texts have limits", func(t *testing.T) {
		for name, edit := range map[string]func(*nodelocalv1.ServicePort){
			"app_protocol": func(p *nodelocalv1.ServicePort) { p.AppProtocol = strings.Repeat("x", 318) },
			"zone": func(p *nodelocalv1.ServicePort) {
				p.Cluster = []*nodelocalv1.Endpoint{{Address: "10.0.0.1", Port: 1, Zone: strings.Repeat("x", 64)}}
			},
			"hostname": func(p *nodelocalv1.ServicePort) {
				p.Cluster = []*nodelocalv1.Endpoint{{Address: "10.0.0.1", Port: 1, Hostname: strings.Repeat("x", 64)}}
			},
			"service_labels": func(p *nodelocalv1.ServicePort) { p.ServiceLabels = map[string]string{"k": strings.Repeat("x", 4097)} },
			"service_labels: 17 values": func(p *nodelocalv1.ServicePort) {
				p.ServiceLabels = map[string]string{}
				for i := range 17 {
					p.ServiceLabels[string(rune('a'+i))] = ""
				}
			},
			"service_annotations": func(p *nodelocalv1.ServicePort) {
				p.ServiceAnnotations = map[string]string{strings.Repeat("x", 318): "v"}
			},
		} {
			message := received(t, protocol.SetField(port))
			edit(message)
			if _, err := protocol.DecodePort(message); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: error %v", name, err)
			}
		}
	})
	t.Run("a type of a later version is unknown", func(t *testing.T) {
		message := received(t, protocol.SetField(port))
		message.ServiceType = 99
		if got, err := protocol.DecodePort(message); err != nil || got.ServiceType != 0 || got.ServiceType.String() != "" {
			t.Errorf("%v, type %d", err, got.ServiceType)
		}
	})
	t.Run("a client may ask for 16 keys of each kind", func(t *testing.T) {
		keys := func(n, length int) []string { return slices.Repeat([]string{strings.Repeat("k", length)}, n) }
		for _, tt := range []struct {
			labels, annotations []string
			ok                  bool
		}{
			{keys(16, 317), keys(16, 317), true},
			{keys(17, 1), nil, false},
			{nil, keys(17, 1), false},
			{keys(1, 318), nil, false},
			{nil, keys(1, 0), false},
		} {
			want := model.ServiceKeys{Labels: tt.labels, Annotations: tt.annotations}
			got, err := protocol.DecodeKeys(protocol.EncodeKeys(want))
			if (err == nil) != tt.ok {
				t.Errorf("%d and %d keys: %v", len(tt.labels), len(tt.annotations), err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-sent +received):\n%s", diff)
			}
		}
	})
}
