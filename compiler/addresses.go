package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// countAddresses adds by, 1 or -1, to the number of uses of each address of the port. The sets cluster-ips and hairpin
// hold the addresses with uses.
func (f *family) countAddresses(p *model.ServicePort, by int) {
	if p.ClusterIP.IsValid() && countUse(f.clusterIPs, p.ClusterIP, by) {
		f.putElementIf(by > 0, f.sets.clusterIPs, nft.Element{Key: nft.AddrData(p.ClusterIP)})
	}
	eachHairpin(p, func(addr netip.Addr) {
		if countUse(f.hairpins, addr, by) {
			data := nft.AddrData(addr)
			f.putElementIf(by > 0, f.sets.hairpin, nft.Element{Key: data + data})
		}
	})
}

// countUse reports whether this use is the first one, or was the last one.
func countUse(uses map[netip.Addr]int, addr netip.Addr, by int) (changed bool) {
	n := uses[addr] + by
	if n == 0 {
		delete(uses, addr)
		return true
	}
	uses[addr] = n
	return n == 1 && by > 0
}

// eachHairpin calls do with each endpoint of a port whose own packets this node may send back to it without
// masquerading them for another reason.
//
// A client's packet is translated on the client's own node. So a client that is its own endpoint is on this node. The
// exception is a node port: a pod of another node can dial it here. Under policy Cluster its packets are masqueraded
// anyway, under policy Local they are not.
func eachHairpin(p *model.ServicePort, do func(netip.Addr)) {
	for _, list := range [...][]model.Endpoint{p.Cluster, p.Local} {
		for i := range list {
			if !list[i].Remote || p.ExternalPolicy == model.PolicyLocal {
				do(list[i].AddrPort.Addr())
			}
		}
	}
}
