package conntrack

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
)

func udpPort(name string, nodePort uint16, serving ...string) *model.ServicePort {
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "ns", Service: name, Protocol: model.UDP, Family: model.IPv4},
		ClusterIP: netip.MustParseAddr("10.96.0.1"), Port: 53, NodePort: nodePort,
		ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
	}
	for _, s := range serving {
		p.Serving = append(p.Serving, netip.MustParseAddrPort(s))
	}
	return p
}

// unready returns the port with endpoints that are listed while none serves.
func unready(p *model.ServicePort, listed ...string) *model.ServicePort {
	for _, l := range listed {
		p.NotServing = append(p.NotServing, netip.MustParseAddrPort(l))
	}
	return p
}

func changed(ports ...*model.ServicePort) *model.Changes {
	return &model.Changes{Ports: model.PortsByID(ports...)}
}

func udpFlow(dialed, server string) Flow {
	return Flow{Protocol: uint8(model.UDP), Source: netip.MustParseAddrPort("10.244.1.9:999"),
		Dialed: netip.MustParseAddrPort(dialed), Server: netip.MustParseAddrPort(server)}
}

const (
	endpointA = "10.244.1.1:5353"
	endpointB = "10.244.1.2:5353"
)

const (
	nodeIP    = "192.168.0.1"
	secondary = "10.0.0.1"
	elsewhere = "8.8.8.8"
)

// local are the machine's own addresses, as the kernel lists them.
var local = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix(nodeIP + "/32"), netip.MustParsePrefix(secondary + "/32")}

// flowsAfter returns what is known after the changes, all but the last of which were dealt with.
func flowsAfter(t *testing.T, config compiler.Config, changes ...*model.Changes) *udpFlows {
	t.Helper()
	rules, err := compiler.New(config)
	if err != nil {
		t.Fatal(err)
	}
	u := newUDPFlows()
	for _, c := range changes {
		for _, family := range model.Families {
			u.done(family, u.changes)
		}
		rules.Apply(c)
		u.apply(rules, c)
	}
	return u
}

func everywhere() compiler.Config {
	c := compiler.Default()
	c.NodePortAddresses = compiler.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	return c
}

func started(c *model.Changes) *model.Changes {
	c.Full, c.Node = true, &model.Node{IPs: []netip.Addr{netip.MustParseAddr(nodeIP)}}
	return c
}

func with(p *model.ServicePort, edit func(*model.ServicePort)) *model.ServicePort {
	edit(p)
	return p
}

func TestUDPFlowsStale(t *testing.T) {
	gone := changed()
	gone.Ports[udpPort("dns", 0).ID] = nil
	everything := changed()
	everything.Full = true
	type steps = []*model.Changes
	// thief has the ClusterIP of dns as external IP.
	thief := func(serving ...string) *model.ServicePort {
		return with(udpPort("a-thief", 0, serving...), func(p *model.ServicePort) {
			p.ClusterIP, p.ExternalIPs = netip.MustParseAddr("10.96.0.66"), []netip.Addr{netip.MustParseAddr("10.96.0.1")}
		})
	}
	for _, tt := range []struct {
		name   string
		config compiler.Config
		steps  steps
		flow   Flow
		stale  bool
	}{
		{"to an endpoint that was replaced", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointB))}, udpFlow("10.96.0.1:53", endpointA), true},
		{"to an endpoint that was replaced, by external IP", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointB))}, udpFlow("203.0.113.1:53", endpointA), true},
		{"to an endpoint that was replaced, by node port", compiler.Default(), steps{changed(udpPort("dns", 30053, endpointA)), changed(udpPort("dns", 30053, endpointB))}, udpFlow(nodeIP+":30053", endpointA), true},
		{"to an endpoint that was replaced, by node port on a secondary address", everywhere(), steps{changed(udpPort("dns", 30053, endpointA)), changed(udpPort("dns", 30053, endpointB))}, udpFlow(secondary+":30053", endpointA), true},
		{"to an endpoint that stays", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA, endpointB)), changed(udpPort("dns", 0, endpointA))}, udpFlow("10.96.0.1:53", endpointA), false},
		{"to another Service's port", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointB))}, udpFlow("10.96.0.1:54", endpointA), false},
		{"untranslated, when the first endpoint comes", compiler.Default(), steps{changed(udpPort("dns", 0)), changed(udpPort("dns", 0, endpointA))}, udpFlow("10.96.0.1:53", "10.96.0.1:53"), true},
		{"untranslated, when the Service comes", compiler.Default(), steps{changed(), changed(udpPort("dns", 0, endpointA))}, udpFlow("10.96.0.1:53", "10.96.0.1:53"), true},
		{"untranslated to the node, when the first endpoint of a node port comes", compiler.Default(), steps{changed(udpPort("dns", 30053)), changed(udpPort("dns", 30053, endpointA))}, udpFlow(nodeIP+":30053", nodeIP+":30053"), true},
		{"untranslated to a secondary address on which node ports answer", everywhere(), steps{changed(udpPort("dns", 30053)), changed(udpPort("dns", 30053, endpointA))}, udpFlow(secondary+":30053", secondary+":30053"), true},
		{"untranslated to a secondary address on which they do not", compiler.Default(), steps{changed(udpPort("dns", 30053)), changed(udpPort("dns", 30053, endpointA))}, udpFlow(secondary+":30053", secondary+":30053"), false},
		{"untranslated to another machine with the number of a node port", everywhere(), steps{changed(udpPort("dns", 30053)), changed(udpPort("dns", 30053, endpointA))}, udpFlow(elsewhere+":30053", elsewhere+":30053"), false},
		{"translated by others, to another machine with the number of a node port", everywhere(), steps{changed(udpPort("dns", 30053)), changed(udpPort("dns", 30053, endpointA))}, udpFlow(elsewhere+":30053", endpointB), false},
		{"untranslated to loopback with the number of a node port", everywhere(), steps{changed(udpPort("dns", 30053)), changed(udpPort("dns", 30053, endpointA))}, udpFlow("127.0.0.1:30053", "127.0.0.1:30053"), false},
		{"to an external IP that is the node's own, with the number of a node port", everywhere(), steps{changed(),
			changed(udpPort("dns", 53, endpointA), with(udpPort("other", 0, endpointB), func(p *model.ServicePort) {
				p.ClusterIP, p.ExternalIPs = netip.MustParseAddr("10.96.0.2"), []netip.Addr{netip.MustParseAddr(nodeIP)}
			}))}, udpFlow(nodeIP+":53", endpointB), false},
		{"to the only endpoint, which is gone", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0))}, udpFlow("10.96.0.1:53", endpointA), true},
		{"to the only endpoint, which is gone, by node port", compiler.Default(), steps{changed(udpPort("dns", 30053, endpointA)), changed(udpPort("dns", 30053))}, udpFlow(nodeIP+":30053", endpointA), true},
		{"to the only endpoint, which is unready", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(unready(udpPort("dns", 0), endpointA))}, udpFlow("10.96.0.1:53", endpointA), false},
		{"to an endpoint that was unready and is gone", compiler.Default(), steps{changed(unready(udpPort("dns", 0), endpointA, endpointB)), changed(unready(udpPort("dns", 0), endpointB))}, udpFlow("10.96.0.1:53", endpointA), true},
		{"to an endpoint that is unready, when another one is gone", compiler.Default(), steps{changed(unready(udpPort("dns", 0), endpointA, endpointB)), changed(unready(udpPort("dns", 0), endpointB))}, udpFlow("10.96.0.1:53", endpointB), false},
		{"to an endpoint that is unready, when another one comes to serve", compiler.Default(), steps{changed(unready(udpPort("dns", 0), endpointA)), changed(udpPort("dns", 0, endpointB))}, udpFlow("10.96.0.1:53", endpointA), true},
		{"to the only endpoint, which serves again", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(unready(udpPort("dns", 0), endpointA)), changed(udpPort("dns", 0, endpointA))}, udpFlow("10.96.0.1:53", endpointA), false},
		{"untranslated, while the only endpoint is unready", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(unready(udpPort("dns", 0), endpointB))}, udpFlow("10.96.0.1:53", "10.96.0.1:53"), false},
		{"to an endpoint that has the number of the node port", compiler.Default(), steps{changed(udpPort("dns", 30053, endpointA, nodeIP+":30053")), changed(udpPort("dns", 30053, nodeIP+":30053"))}, udpFlow(nodeIP+":30053", nodeIP+":30053"), false},
		{"to a Service that went", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), gone}, udpFlow("10.96.0.1:53", endpointA), true},
		{"to a Service that went, by node port on a secondary address", everywhere(), steps{changed(udpPort("dns", 30053, endpointA)), gone}, udpFlow(secondary+":30053", endpointA), true},
		{"to another machine with the number of a node port that went", everywhere(), steps{changed(udpPort("dns", 30053, endpointA)), gone}, udpFlow(elsewhere+":30053", endpointA), false},
		{"untranslated to a Service that went", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), gone}, udpFlow("10.96.0.1:53", "10.96.0.1:53"), false},
		{"to a Service that a full model does not have any more", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), everything}, udpFlow("10.96.0.1:53", endpointA), true},
		{"to a Service that came again with another endpoint", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), gone, changed(udpPort("dns", 0, endpointB))}, udpFlow("10.96.0.1:53", endpointA), true},
		{"to an address that went", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(with(udpPort("dns", 0, endpointA), func(p *model.ServicePort) { p.ExternalIPs = nil }))}, udpFlow("203.0.113.1:53", endpointA), true},
		{"to an address that stays when another one went", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(with(udpPort("dns", 0, endpointA), func(p *model.ServicePort) { p.ExternalIPs = nil }))}, udpFlow("10.96.0.1:53", endpointA), false},
		{"to a ClusterIP with an unready endpoint that is another Service's external IP", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(unready(udpPort("dns", 0), endpointA), thief(endpointB))}, udpFlow("10.96.0.1:53", endpointA), false},
		{"to another Service's external IP that became a ClusterIP", compiler.Default(), steps{changed(thief(endpointB)), changed(udpPort("dns", 0, endpointA))}, udpFlow("10.96.0.1:53", endpointB), true},
		{"when nothing changed", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointA))}, udpFlow("10.96.0.1:53", endpointB), false},
		{"when an endpoint came", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointA, endpointB))}, udpFlow("10.96.0.1:53", "10.244.1.7:5353"), false},
		{"after a restart, to what does not serve", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA))}, udpFlow("10.96.0.1:53", endpointB), true},
		{"after a restart, to what serves", compiler.Default(), steps{changed(udpPort("dns", 0, endpointA))}, udpFlow("10.96.0.1:53", endpointA), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			started(tt.steps[0])
			if got := flowsAfter(t, tt.config, tt.steps...).stale(tt.flow, local); got != tt.stale {
				t.Errorf("stale = %v, want %v", got, tt.stale)
			}
		})
	}
}

func TestUDPFlowsPending(t *testing.T) {
	u := flowsAfter(t, compiler.Default(), started(changed(udpPort("dns", 0, endpointA))), changed(udpPort("dns", 0, endpointB)))
	flow := udpFlow("10.96.0.1:53", endpointA)
	_, _, upTo := u.begin(model.IPv4)
	t.Run("a change during a search is looked at by the next one", func(t *testing.T) {
		rules, err := compiler.New(compiler.Default())
		if err != nil {
			t.Fatal(err)
		}
		c := started(changed(udpPort("dns", 0, "10.244.1.3:5353")))
		rules.Apply(c)
		u.apply(rules, c)
		u.done(model.IPv4, upTo)
		if some, _, _ := u.begin(model.IPv4); !some || !u.stale(flow, local) {
			t.Error("nothing has to be looked at")
		}
	})
	t.Run("a search that saw all changes leaves nothing", func(t *testing.T) {
		_, _, upTo := u.begin(model.IPv4)
		u.done(model.IPv4, upTo)
		if some, _, _ := u.begin(model.IPv4); some || u.stale(flow, local) {
			t.Error("flows have to be looked at again")
		}
	})
	t.Run("what comes and goes leaves nothing", func(t *testing.T) {
		rules, err := compiler.New(compiler.Default())
		if err != nil {
			t.Fatal(err)
		}
		u := newUDPFlows()
		for i := range 1000 {
			p := udpPort(fmt.Sprint(i), uint16(30000+i), endpointA)
			came, went := changed(p), changed()
			went.Ports[p.ID] = nil
			for _, c := range []*model.Changes{came, went} {
				rules.Apply(c)
				u.apply(rules, c)
			}
		}
		_, _, upTo := u.begin(model.IPv4)
		u.done(model.IPv4, upTo)
		if n := len(u.ports) + len(u.owners) + len(u.pending); n != 0 {
			t.Errorf("%d things are known of Services that are gone", n)
		}
	})
	t.Run("frontends that are gone are noted up to a limit while searches fail", func(t *testing.T) {
		u := newUDPFlows()
		for i := range maxGone + 10 {
			u.gone(udpFrontend{model.IPv4, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 53)})
		}
		if n := len(u.pending); n != maxGone {
			t.Errorf("%d are noted, want %d", n, maxGone)
		}
	})
}
