package protocol_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

var sameAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func genAddr(family model.Family) *rapid.Generator[netip.Addr] {
	return rapid.Custom(func(t *rapid.T) netip.Addr {
		tail := rapid.Uint16().Draw(t, "tail")
		if family == model.IPv4 {
			return netip.AddrFrom4([4]byte{10, 0, byte(tail >> 8), byte(tail)})
		}
		return netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(tail >> 8), 15: byte(tail)})
	})
}

func genPrefix(family model.Family) *rapid.Generator[netip.Prefix] {
	return rapid.Custom(func(t *rapid.T) netip.Prefix {
		addr := genAddr(family).Draw(t, "network")
		return netip.PrefixFrom(addr, rapid.IntRange(0, addr.BitLen()).Draw(t, "bits")).Masked()
	})
}

// genSet draws a sorted list without duplicates; empty is nil.
func genSet[T comparable](t *rapid.T, name string, gen *rapid.Generator[T], compare func(a, b T) int) []T {
	list := rapid.SliceOfN(gen, 0, 4).Draw(t, name)
	slices.SortFunc(list, compare)
	if list = slices.Compact(list); len(list) == 0 {
		return nil
	}
	return list
}

func genEndpoints(t *rapid.T, name string, family model.Family) []model.Endpoint {
	list := []model.Endpoint(nil)
	for _, ap := range genAddrPorts(t, name, family) {
		e := model.Endpoint{AddrPort: ap}
		switch rapid.IntRange(0, 2).Draw(t, "placement") {
		case 0:
			e.Local = true
		case 1:
			e.Remote = true
		}
		e.Info = model.NewEndpointInfo(rapid.SampledFrom([]string{"", "web-0"}).Draw(t, "hostname"), rapid.SampledFrom([]string{"", "zone-a", "zone-b"}).Draw(t, "zone"))
		list = append(list, e)
	}
	return list
}

func genAddrPorts(t *rapid.T, name string, family model.Family) []netip.AddrPort {
	return genSet(t, name, rapid.Custom(func(t *rapid.T) netip.AddrPort {
		return netip.AddrPortFrom(genAddr(family).Draw(t, "addr"), rapid.Uint16Min(1).Draw(t, "port"))
	}), netip.AddrPort.Compare)
}

func genID(t *rapid.T) model.PortID {
	return model.PortID{
		Namespace: rapid.SampledFrom([]string{"", "default", "kube-system"}).Draw(t, "namespace"),
		Service:   rapid.SampledFrom([]string{"web", "dns", "ünï"}).Draw(t, "service"),
		Port:      rapid.SampledFrom([]string{"", "http"}).Draw(t, "port name"),
		Protocol:  rapid.SampledFrom([]model.Protocol{model.TCP, model.UDP, model.SCTP}).Draw(t, "protocol"),
		Family:    rapid.SampledFrom(model.Families[:]).Draw(t, "family"),
	}
}

func genPort(t *rapid.T, id model.PortID) *model.ServicePort {
	policy := rapid.SampledFrom([]model.TrafficPolicy{model.PolicyCluster, model.PolicyLocal})
	p := &model.ServicePort{
		ID:                       id,
		ClusterIP:                genAddr(id.Family).Draw(t, "clusterIP"),
		Port:                     rapid.Uint16Min(1).Draw(t, "port"),
		NodePort:                 rapid.Uint16().Draw(t, "nodePort"),
		ExternalIPs:              genSet(t, "external", genAddr(id.Family), netip.Addr.Compare),
		LoadBalancerIPs:          genSet(t, "load balancer", genAddr(id.Family), netip.Addr.Compare),
		LoadBalancerSourceRanges: genSet(t, "source ranges", genPrefix(id.Family), netip.Prefix.Compare),
		AffinityTimeout:          time.Duration(rapid.IntRange(0, 86400).Draw(t, "affinity")) * time.Second,
		InternalPolicy:           policy.Draw(t, "internal"),
		ExternalPolicy:           policy.Draw(t, "external"),
		HealthCheckNodePort:      rapid.Uint16().Draw(t, "health"),
		Cluster:                  genEndpoints(t, "cluster", id.Family),
		Local:                    genEndpoints(t, "local", id.Family),
		LocalTerminating:         rapid.Bool().Draw(t, "terminating"),
		Serving:                  genAddrPorts(t, "serving", id.Family),
		NotServing:               genAddrPorts(t, "not serving", id.Family),
		AppProtocol:              rapid.SampledFrom([]string{"", "http", "kubernetes.io/h2c"}).Draw(t, "application protocol"),
		ServiceType:              rapid.SampledFrom([]model.ServiceType{0, model.TypeClusterIP, model.TypeNodePort, model.TypeLoadBalancer}).Draw(t, "type"),
		ServiceLabels:            genValues(t, "labels"),
		ServiceAnnotations:       genValues(t, "annotations"),
		DirectReturn:             rapid.Bool().Draw(t, "direct return"),
	}
	if p.DirectReturn && rapid.Bool().Draw(t, "creation") {
		at := time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "created"), 0).UTC()
		p.Creation = &model.Creation{Time: at, UID: rapid.SampledFrom([]string{"", "3f6c"}).Draw(t, "uid")}
	}
	return p
}

// someKeys has all keys of genValues.
var someKeys = []string{"tier", "example.com/weight"}

func genValues(t *rapid.T, name string) map[string]string {
	values := rapid.MapOf(rapid.SampledFrom(someKeys), rapid.SampledFrom([]string{"", "3", "ünï"})).Draw(t, name)
	if len(values) == 0 {
		return nil
	}
	return values
}

func genChanges(t *rapid.T) *model.Changes {
	c := &model.Changes{Full: rapid.Bool().Draw(t, "full"), Ports: map[model.PortID]*model.ServicePort{}}
	for range rapid.IntRange(0, 4).Draw(t, "ports") {
		id := genID(t)
		c.Ports[id] = nil
		if c.Full || rapid.Bool().Draw(t, "set") {
			c.Ports[id] = genPort(t, id)
		}
	}
	if c.Full || rapid.Bool().Draw(t, "node") {
		c.Node = &model.Node{
			Name:      rapid.SampledFrom([]string{"node-1", "n.example.com"}).Draw(t, "node name"),
			PodCIDRs:  genSet(t, "pod CIDRs", genPrefix(model.IPv4), netip.Prefix.Compare),
			GoingAway: rapid.Bool().Draw(t, "going away"),
		}
		for _, family := range rapid.Permutation(model.Families[:]).Draw(t, "families") {
			if rapid.Bool().Draw(t, "has IP") {
				c.Node.IPs = append(c.Node.IPs, genAddr(family).Draw(t, "node IP"))
			}
		}
	}
	if c.Full || rapid.Bool().Draw(t, "ranges") {
		c.ServiceCIDRs, c.ServiceCIDRsChanged = genSet(t, "service CIDRs", genPrefix(model.IPv6), netip.Prefix.Compare), true
	}
	return c
}

// carry sends changes as messages and returns what arrives, and in how many parts.
func carry(t interface{ Fatal(...any) }, changes *model.Changes) (got *model.Changes, parts int) {
	var batch protocol.Batch
	end := protocol.EncodeSync(&nodelocalv1.Position{Instance: "i", Revision: 7}, []time.Time{time.Unix(1_700_000_000, 5)})
	encode := func(port *model.ServicePort) []protocol.Field {
		return protocol.AddKeys(protocol.SetField(port), port, model.ServiceKeys{Labels: someKeys, Annotations: someKeys})
	}
	for part := range protocol.Parts(changes, end, encode) {
		parts++
		if len(part) > 2*protocol.PartSize {
			t.Fatal(fmt.Sprintf("a part of %d bytes", len(part)))
		}
		var update nodelocalv1.Update
		if err := proto.Unmarshal(part, &update); err != nil {
			t.Fatal(err)
		}
		if len(update.ProtoReflect().GetUnknown()) > 0 {
			t.Fatal("a field that the API does not have")
		}
		if got != nil {
			t.Fatal("a part after the end of the batch")
		}
		var at *nodelocalv1.Sync
		var err error
		if got, at, err = batch.Add(&update); err != nil {
			t.Fatal(err)
		}
		if got != nil && !proto.Equal(at, end) {
			t.Fatal("the batch ends in another way")
		}
	}
	return got, parts
}

func TestRoundTrip(t *testing.T) {
	t.Run("any changes arrive as they were sent", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			want := genChanges(t)
			got, _ := carry(t, want)
			if diff := cmp.Diff(want, got, sameAddrs); diff != "" {
				t.Fatalf("(-sent +received):\n%s", diff)
			}
		})
	})
	t.Run("nothing new arrives as an empty batch", func(t *testing.T) {
		if got, parts := carry(t, nil); parts != 1 || !got.Empty() {
			t.Errorf("%d parts, %+v", parts, got)
		}
	})
	t.Run("a port with 100,000 endpoints is split and put together", func(t *testing.T) {
		id := model.PortID{Namespace: "default", Service: "large", Protocol: model.UDP, Family: model.IPv6}
		port := &model.ServicePort{ID: id, ClusterIP: netip.MustParseAddr("fd00::1"), Port: 53, ServiceLabels: map[string]string{"tier": "dns"}}
		info := model.NewEndpointInfo(strings.Repeat("h", 63), strings.Repeat("z", 63))
		for i := range 100_000 {
			addr := netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 2: 0xab, 3: 0xcd, 4: 0xab, 5: 0xcd, 6: 0xab, 8: 0xcd, 10: 0xab, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
			port.Cluster = append(port.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(addr, 53535), Remote: true, Info: info})
			port.Serving = append(port.Serving, netip.AddrPortFrom(addr, 53535))
			port.NotServing = append(port.NotServing, netip.AddrPortFrom(addr, 53536))
		}
		port.Local = port.Cluster[:15_000]
		want := &model.Changes{Ports: map[model.PortID]*model.ServicePort{id: port}}
		got, parts := carry(t, want)
		if !got.Ports[id].Equal(port) {
			t.Error("it came out different")
		}
		if parts < 11 {
			t.Errorf("%d parts", parts)
		}
	})
	t.Run("10,000 ports are split over parts", func(t *testing.T) {
		want := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
		for i := range 10_000 {
			id := model.PortID{Namespace: "default", Service: fmt.Sprint("web-", i), Protocol: model.TCP, Family: model.IPv4}
			want.Ports[id] = &model.ServicePort{ID: id, ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Cluster: []model.Endpoint{
				{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080), Local: true},
				{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 8080), Remote: true},
			}}
		}
		got, _ := carry(t, want)
		if diff := cmp.Diff(want, got, sameAddrs); diff != "" {
			t.Errorf("(-sent +received):\n%s", diff)
		}
	})
}
