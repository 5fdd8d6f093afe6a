package main

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// pod is an endpoint of the demo's Services.
type pod struct {
	name, node string
	// addrs is its IPv4 and its IPv6 address.
	addrs [2]netip.Addr
}

func newPod(name, node, ipv4, ipv6 string) pod {
	return pod{name, node, [2]netip.Addr{netip.MustParseAddr(ipv4), netip.MustParseAddr(ipv6)}}
}

// pods are those that the manifests name.
var pods = []pod{
	newPod("web-1", lab.NodeName, "10.244.1.11", "fd00:10:244:1::11"),
	newPod("web-2", lab.NodeName, "10.244.1.12", "fd00:10:244:1::12"),
	newPod("web-3", lab.RemoteName, "10.244.2.11", "fd00:10:244:2::11"),
	newPod("web-4", lab.RemoteName, "10.244.2.12", "fd00:10:244:2::12"),
}

// oldPod gives way to newcomer while connections run.
var (
	oldPod   = pods[1]
	newcomer = newPod("web-5", lab.NodeName, "10.244.1.13", "fd00:10:244:1::13")
)

func (p pod) has(addr netip.Addr) bool { return p.addrs[0] == addr || p.addrs[1] == addr }

// start adds the pod to the lab and has it serve.
func (p pod) start(l *lab.Lab) (*server, error) {
	host := l.Remote
	if p.node == lab.NodeName {
		var err error
		if host, err = l.AddPod(p.name, p.addrs[:]...); err != nil {
			return nil, err
		}
		return serve(host, p.addrs[:])
	}
	for _, addr := range p.addrs {
		if err := l.AddRemoteAddr(addr); err != nil {
			return nil, err
		}
	}
	return serve(host, p.addrs[:])
}
