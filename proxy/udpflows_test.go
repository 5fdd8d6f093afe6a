package proxy

import (
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/conntrack"
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

func changed(ports ...*model.ServicePort) *model.Changes {
	c := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
	for _, p := range ports {
		c.Ports[p.ID] = p
	}
	return c
}

func udpFlow(dialed, server string) conntrack.Flow {
	return conntrack.Flow{Protocol: uint8(model.UDP), Source: netip.MustParseAddrPort("10.244.1.9:999"),
		Dialed: netip.MustParseAddrPort(dialed), Server: netip.MustParseAddrPort(server)}
}

const (
	endpointA = "10.244.1.1:5353"
	endpointB = "10.244.1.2:5353"
)

func TestWhichUDPFlowsAreStale(t *testing.T) {
	gone := changed()
	gone.Ports[udpPort("dns", 0).ID] = nil
	for _, tt := range []struct {
		name         string
		before, then *model.Changes
		flow         conntrack.Flow
		stale        bool
	}{
		{"to an endpoint that went", changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointB)), udpFlow("10.96.0.1:53", endpointA), true},
		{"to an endpoint that went, by external IP", changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointB)), udpFlow("203.0.113.1:53", endpointA), true},
		{"to an endpoint that went, by node port", changed(udpPort("dns", 30053, endpointA)), changed(udpPort("dns", 30053, endpointB)), udpFlow("192.168.0.1:30053", endpointA), true},
		{"to an endpoint that stays", changed(udpPort("dns", 0, endpointA, endpointB)), changed(udpPort("dns", 0, endpointA)), udpFlow("10.96.0.1:53", endpointA), false},
		{"to another Service's port", changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointB)), udpFlow("10.96.0.1:54", endpointA), false},
		{"untranslated, when the first endpoint comes", changed(udpPort("dns", 0)), changed(udpPort("dns", 0, endpointA)), udpFlow("10.96.0.1:53", "10.96.0.1:53"), true},
		{"untranslated to the node, when the first endpoint of a node port comes", changed(udpPort("dns", 30053)), changed(udpPort("dns", 30053, endpointA)), udpFlow("192.168.0.1:30053", "192.168.0.1:30053"), true},
		{"untranslated to another machine with the number of a node port", changed(udpPort("dns", 30053)), changed(udpPort("dns", 30053, endpointA)), udpFlow("8.8.8.8:30053", "8.8.8.8:30053"), false},
		{"to a Service that went", changed(udpPort("dns", 0, endpointA)), gone, udpFlow("10.96.0.1:53", endpointA), true},
		{"when nothing changed", changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointA)), udpFlow("10.96.0.1:53", endpointB), false},
		{"when an endpoint came", changed(udpPort("dns", 0, endpointA)), changed(udpPort("dns", 0, endpointA, endpointB)), udpFlow("10.96.0.1:53", "10.244.1.7:5353"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := newUDPFlows()
			tt.before.Full, tt.before.Node = true, &model.Node{IPs: []netip.Addr{netip.MustParseAddr("192.168.0.1")}}
			u.apply(tt.before)
			clear(u.touched)
			u.apply(tt.then)
			if got := u.stale(tt.flow); got != tt.stale {
				t.Errorf("stale = %v, want %v", got, tt.stale)
			}
		})
	}
}

func TestAfterARestartEveryUDPFlowIsLookedAt(t *testing.T) {
	u := newUDPFlows()
	c := changed(udpPort("dns", 0, endpointA))
	c.Full = true
	u.apply(c)
	if !u.stale(udpFlow("10.96.0.1:53", endpointB)) || u.stale(udpFlow("10.96.0.1:53", endpointA)) {
		t.Error("want flows to what does not serve to be stale, and no others")
	}
}
