package compiler

import (
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// frontend is one address that clients dial: an IP address, protocol and port, or, without
// an address, a node port.
type frontend struct {
	addr     netip.Addr
	port     uint16
	protocol model.Protocol
}

func (f frontend) isNodePort() bool { return !f.addr.IsValid() }

// String returns "address:port/PROTOCOL", or "node port 30080/PROTOCOL".
func (f frontend) String() string {
	if f.isNodePort() {
		return fmt.Sprintf("node port %d/%s", f.port, f.protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.addr, f.port), f.protocol)
}

// maxFrontendKey is the length of the longest key, that of an IPv6 address.
const maxFrontendKey = 16 + 4 + 4

// key returns the frontend as a key of the maps, or the start of one.
func (f frontend) key() nft.Data {
	if f.isNodePort() {
		return nft.ProtoData(uint8(f.protocol)) + nft.PortData(f.port)
	}
	var buf [maxFrontendKey]byte
	return nft.Data(nft.AppendPort(nft.AppendProto(nft.AppendAddr(buf[:0], f.addr), uint8(f.protocol)), f.port))
}

// eachFrontend calls do with each frontend of a Service port and its rank. A frontend comes twice if the port names the
// address twice.
func eachFrontend(p *model.ServicePort, do func(rank, frontend)) {
	address := func(r rank, addr netip.Addr) { do(r, frontend{addr, p.Port, p.ID.Protocol}) }
	if p.ClusterIP.IsValid() {
		address(rankClusterIP, p.ClusterIP)
	}
	for _, addr := range p.LoadBalancerIPs {
		address(rankLoadBalancer, addr)
	}
	for _, addr := range p.ExternalIPs {
		address(rankExternalIP, addr)
	}
	if p.NodePort != 0 {
		do(rankNodePort, frontend{port: p.NodePort, protocol: p.ID.Protocol})
	}
}

// frontendState is a frontend that somebody claims.
type frontendState struct {
	frontend frontend
	// claims are sorted, the owner's first.
	claims []claim
	// first is the memory of the first claim. Nearly all frontends have no other.
	first [1]claim
	// applied is the plan that is in the draft; &noPlan for none.
	applied *plan
	// touched says that it is in family.touched.
	touched bool
}

// frontendElements is a change of a frontend's elements in the draft, from the plan have to the plan want.
type frontendElements struct {
	frontend   frontend
	key        nft.Data
	have, want *plan
}
