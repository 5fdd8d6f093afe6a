package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
)

const servicePort, endpointPort = 80, 8080

// numbered returns the i-th address from first on.
func numbered(first string, i int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i))
	return netip.AddrFrom4(b)
}

// service returns the i-th UDP Service: a ClusterIP and two endpoints on another node.
func service(i int) *model.ServicePort {
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "default", Service: fmt.Sprintf("service-%d", i), Protocol: model.UDP, Family: model.IPv4},
		ClusterIP: numbered("10.96.0.0", i), Port: servicePort,
	}
	for slot := range 2 {
		p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(numbered("10.128.0.0", 2*i+slot), endpointPort), Remote: true})
	}
	return p
}

// services returns a model of n Services.
func services(n int) *model.Changes {
	changes := &model.Changes{Full: true, Ports: make(map[model.PortID]*model.ServicePort, n), Node: &model.Node{Name: "node"},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, ServiceCIDRsChanged: true}
	for i := range n {
		p := service(i)
		changes.Ports[p.ID] = p
	}
	return changes
}

// change returns the change of one Service.
func change(p *model.ServicePort) *model.Changes {
	return &model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: p}}
}
