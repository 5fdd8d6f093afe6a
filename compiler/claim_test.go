package compiler

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

const contested = "203.0.113.1"

// claimant returns a Service port with a ClusterIP of its own, changed by edits.
func claimant(name string, number byte, edits ...func(*model.ServicePort)) *model.ServicePort {
	p := &model.ServicePort{ID: webID(name), ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, number}), Port: 80, Cluster: endpoints("10.244.0.1:8080")}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func asExternalIP(p *model.ServicePort)     { p.ExternalIPs = addrs(contested) }
func asLoadBalancerIP(p *model.ServicePort) { p.LoadBalancerIPs = addrs(contested) }
func asClusterIP(p *model.ServicePort)      { p.ClusterIP = netip.MustParseAddr(contested) }
func withoutEndpoints(p *model.ServicePort) { p.Cluster = nil }
func onOtherNodesOnly(p *model.ServicePort) { p.ExternalPolicy = model.PolicyLocal }

func portsOf(ports ...*model.ServicePort) *model.Changes {
	return &model.Changes{Ports: model.PortsByID(ports...)}
}

func TestClaimOrder(t *testing.T) {
	for _, tt := range []struct {
		name        string
		first, then *model.ServicePort
		owner       string
	}{
		{"among equals the first by name", claimant("a", 1, asExternalIP), claimant("b", 2, asExternalIP), "a"},
		{"endpoints before none", claimant("a", 1, asExternalIP, withoutEndpoints), claimant("b", 2, asExternalIP), "b"},
		{"among those without endpoints the first by name", claimant("a", 1, asExternalIP, withoutEndpoints), claimant("b", 2, asExternalIP, withoutEndpoints), "a"},
		{"endpoints before none, among load balancers", claimant("a", 1, asLoadBalancerIP, withoutEndpoints), claimant("b", 2, asLoadBalancerIP), "b"},
		{"endpoints on other nodes count under policy Local", claimant("a", 1, asExternalIP, onOtherNodesOnly), claimant("b", 2, asExternalIP), "a"},
		{"a load balancer without endpoints before an external IP", claimant("a", 1, asExternalIP), claimant("b", 2, asLoadBalancerIP, withoutEndpoints), "b"},
		{"a ClusterIP without endpoints before an external IP", claimant("a", 1, asExternalIP), claimant("b", 2, asClusterIP, withoutEndpoints), "b"},
		{"a ClusterIP without endpoints before a load balancer", claimant("a", 1, asLoadBalancerIP), claimant("b", 2, asClusterIP, withoutEndpoints), "b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, order := range [][]*model.ServicePort{{tt.first, tt.then}, {tt.then, tt.first}} {
				c := newCompiler(t)
				for _, p := range order {
					c.Apply(portsOf(p))
				}
				owner := c.Owner(model.IPv4, model.TCP, netip.MustParseAddr(contested), 80)
				if owner == nil || owner.ID.Service != tt.owner {
					t.Errorf("the owner is %+v, want %s", owner, tt.owner)
				}
			}
		})
	}
	t.Run("an address changes hands as endpoints come and go", func(t *testing.T) {
		c := newCompiler(t)
		blue, green := claimant("blue", 1, asExternalIP), claimant("green", 2, asExternalIP)
		green.Cluster = endpoints("10.244.0.2:8080")
		key := nft.AddrData(netip.MustParseAddr(contested)) + nft.ProtoData(6) + nft.PortData(80)
		for _, step := range []struct {
			change *model.ServicePort
			want   string
		}{
			{blue, "blue"}, {green, "blue"},
			{claimant("blue", 1, asExternalIP, withoutEndpoints), "green"},
			{blue, "blue"},
		} {
			c.Apply(portsOf(step.change))
			if e, _ := c.Tables()[0].Set("service-ips").Element(key); e.Comment != "default/"+step.want {
				t.Errorf("the kernel is told of %q, want %q", e.Comment, step.want)
			}
		}
	})
}

func TestConflicts(t *testing.T) {
	services := func(conflicts []Conflict) (names []string) {
		for _, c := range conflicts {
			names = append(names, c.Owner.Service)
			for _, other := range c.Others {
				names = append(names, other.Service)
			}
		}
		return names
	}
	c := newCompiler(t)
	a, b, third := claimant("a", 1, asExternalIP), claimant("b", 2, asExternalIP), claimant("c", 3, asExternalIP)
	all := portsOf(a, b)
	all.Full = true
	gone := portsOf(b)
	gone.Ports[b.ID] = nil
	for _, step := range []struct {
		name   string
		change *model.Changes
		want   []string
	}{
		{"not for an address of one Service", portsOf(a), nil},
		{"when a second Service claims an address", portsOf(b), []string{"a", "b"}},
		{"not again when nothing changed", portsOf(a, b), nil},
		{"not again when the owner loses its endpoints", portsOf(claimant("a", 1, asExternalIP, withoutEndpoints)), nil},
		{"not again when the owner has endpoints again", portsOf(a), nil},
		{"when a third claims it", portsOf(third), []string{"a", "b", "c"}},
		{"when a full model lacks the third", all, []string{"a", "b"}},
		{"not when it is over", gone, nil},
		{"when it begins again", portsOf(b), []string{"a", "b"}},
	} {
		t.Run(step.name, func(t *testing.T) {
			if got := services(c.Apply(step.change)); fmt.Sprint(got) != fmt.Sprint(step.want) {
				t.Errorf("conflict of %v, want %v", got, step.want)
			}
		})
	}
	t.Run("and remembers none that is over", func(t *testing.T) {
		for i := range 1000 {
			one, two := claimant(fmt.Sprint("one-", i), 10, asExternalIP), claimant(fmt.Sprint("two-", i), 11, asExternalIP)
			one.Port, two.Port = uint16(1000+i), uint16(1000+i)
			if got := c.Apply(portsOf(one, two)); len(got) == 0 {
				t.Fatal("no conflict")
			}
			c.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{one.ID: nil, two.ID: nil}})
		}
		if n := len(c.families[0].claims.contested); n != 1 {
			t.Errorf("%d conflicts are remembered, want 1", n)
		}
	})
}
