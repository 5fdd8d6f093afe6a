package protocol_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nftproxy/nftproxy/internal/protocol"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

func validID() *nodelocalv1.PortID {
	return &nodelocalv1.PortID{Namespace: "shop", Service: "web", Protocol: nodelocalv1.Protocol_PROTOCOL_TCP, Family: nodelocalv1.Family_FAMILY_IPV4}
}

func validPort(edits ...func(*nodelocalv1.ServicePort)) *nodelocalv1.ServicePort {
	p := &nodelocalv1.ServicePort{Id: validID(), ClusterIp: "10.96.0.1", Port: 80}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func set(ports ...*nodelocalv1.ServicePort) []*nodelocalv1.Update {
	return []*nodelocalv1.Update{{Set: ports, Sync: &nodelocalv1.Sync{}}}
}

func TestBatch(t *testing.T) {
	t.Run("refuses", testBatchRefuses)
	t.Run("ignores what it does not know", testBatchIgnoresWhatItDoesNotKnow)
	t.Run("reads a later version", testBatchOfALaterVersion)
}

func testBatchRefuses(t *testing.T) {
	for _, tc := range []struct {
		name    string
		updates []*nodelocalv1.Update
		want    string
	}{
		{"a port without ID", set(&nodelocalv1.ServicePort{}), "id.protocol"},
		{"a port without Service", set(validPort(func(p *nodelocalv1.ServicePort) { p.Id.Service = "" })), "id.service"},
		{"a name longer than any in Kubernetes", set(validPort(func(p *nodelocalv1.ServicePort) { p.Id.Namespace = strings.Repeat("n", 254) })), "id.namespace: 254 bytes"},
		{"an address that is none", set(validPort(func(p *nodelocalv1.ServicePort) { p.ClusterIp = "10.0.0" })), "port shop/web/TCP (IPv4): cluster_ip"},
		{"no ClusterIP", set(validPort(func(p *nodelocalv1.ServicePort) { p.ClusterIp = "" })), "cluster_ip"},
		{"an address of the other family", set(validPort(func(p *nodelocalv1.ServicePort) { p.ExternalIps = []string{"fd00::1"} })), "external_ips: fd00::1 is not an IPv4"},
		{"a port number that is too large", set(validPort(func(p *nodelocalv1.ServicePort) { p.NodePort = 65536 })), "node_port: 65536"},
		{"no port number", set(validPort(func(p *nodelocalv1.ServicePort) { p.Port = 0 })), "port: 0 is not 1"},
		{"a range with bits beyond its length", set(validPort(func(p *nodelocalv1.ServicePort) { p.LoadBalancerSourceRanges = []string{"10.0.0.1/8"} })), "load_balancer_source_ranges"},
		{"an endpoint without port", set(validPort(func(p *nodelocalv1.ServicePort) { p.Cluster = []*nodelocalv1.Endpoint{{Address: "10.0.0.1"}} })), "cluster: 0"},
		{"a continuation of nothing", set(&nodelocalv1.ServicePort{Id: validID(), Continued: true}), "does not follow"},
		{"a full state without a node", []*nodelocalv1.Update{{Full: true, ServiceCidrs: &nodelocalv1.ServiceCIDRs{}, Sync: &nodelocalv1.Sync{}}}, "without a node"},
		{"a full state without ranges", []*nodelocalv1.Update{{Full: true, Node: &nodelocalv1.Node{Name: "n"}, Sync: &nodelocalv1.Sync{}}}, "without service_cidrs"},
		{"full state in the middle of a batch", []*nodelocalv1.Update{{}, {Full: true}}, "in the middle"},
		{"a node with an address that is none", []*nodelocalv1.Update{{Node: &nodelocalv1.Node{Name: "n", Ips: []string{"?"}}}}, `node "n": ips`},
		{"a deletion without ID", []*nodelocalv1.Update{{Delete: []*nodelocalv1.PortID{{}}}}, "deletion of port"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var batch protocol.Batch
			var err error
			for _, update := range tc.updates {
				if _, _, err = batch.Add(update); err != nil {
					break
				}
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
			if _, _, err := batch.Add(&nodelocalv1.Update{Set: []*nodelocalv1.ServicePort{validPort()}, Sync: &nodelocalv1.Sync{}}); err != nil {
				t.Errorf("the next batch is refused too: %v", err)
			}
		})
	}
}

func testBatchIgnoresWhatItDoesNotKnow(t *testing.T) {
	extra := protowire.AppendTag(nil, 1000, protowire.BytesType)
	extra = protowire.AppendString(extra, "of a later version")
	with := func(message proto.Message) []byte {
		data, err := proto.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		return append(data, extra...)
	}
	var update nodelocalv1.Update
	data := protowire.AppendTag(nil, 2, protowire.BytesType)
	data = protowire.AppendBytes(data, with(validPort()))
	data = append(data, with(&nodelocalv1.Update{Sync: &nodelocalv1.Sync{}})...)
	if err := proto.Unmarshal(data, &update); err != nil {
		t.Fatal(err)
	}
	var batch protocol.Batch
	changes, _, err := batch.Add(&update)
	if err != nil || len(changes.Ports) != 1 {
		t.Errorf("error %v, changes %+v", err, changes)
	}
}

func FuzzBatch(f *testing.F) {
	data, err := proto.Marshal(set(validPort())[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var update nodelocalv1.Update
		if proto.Unmarshal(data, &update) != nil {
			return
		}
		var batch protocol.Batch
		changes, _, err := batch.Add(&update)
		if err != nil || changes == nil {
			return
		}
		for id, port := range changes.Ports {
			if port != nil && (port.ID != id || port.Port == 0 || !port.ClusterIP.IsValid()) {
				t.Fatalf("%s came out as %+v", id, port)
			}
		}
	})
}

func TestDecodeTriggers(t *testing.T) {
	at := func(seconds int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: seconds} }
	for _, tc := range []struct {
		name string
		sync *nodelocalv1.Sync
		want []time.Time
	}{
		{"of a server that sends none", &nodelocalv1.Sync{}, nil},
		{"of no end of a batch", nil, nil},
		{"in order", &nodelocalv1.Sync{TriggerTimes: []*timestamppb.Timestamp{at(2), at(1)}}, []time.Time{time.Unix(1, 0).UTC(), time.Unix(2, 0).UTC()}},
		{"without what is no time", &nodelocalv1.Sync{TriggerTimes: []*timestamppb.Timestamp{at(-1 << 62), nil, {Nanos: -1}, at(1)}}, []time.Time{time.Unix(1, 0).UTC()}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, protocol.DecodeTriggers(tc.sync)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("no more than there may be", func(t *testing.T) {
		sync := &nodelocalv1.Sync{}
		for range protocol.MaxTriggers + 1 {
			sync.TriggerTimes = append(sync.TriggerTimes, at(1))
		}
		if n := len(protocol.DecodeTriggers(sync)); n != protocol.MaxTriggers {
			t.Errorf("%d", n)
		}
		if n := len(protocol.EncodeSync(nil, make([]time.Time, protocol.MaxTriggers+1)).GetTriggerTimes()); n != protocol.MaxTriggers {
			t.Errorf("%d are sent", n)
		}
	})
}
