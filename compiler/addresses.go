package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// countAddresses adds by to the uses of each address that the port, which may be nil, uses.
func (f *family) countAddresses(p *model.ServicePort, by int) {
	if p == nil {
		return
	}
	f.clusterIPs[p.ClusterIP] += by
	eachHairpin(p, func(addr netip.Addr) { f.hairpins[addr] += by })
}

// eachHairpin calls do with each endpoint of a port that this node may send to itself
// without masquerading it for another reason.
//
// A client's packet is translated on the client's own node, so the client, and the endpoint
// that it is, must be on this one. The exception is a node port: a pod of another node
// can dial it here. Under policy Cluster it is masqueraded anyway, under policy Local it is not.
func eachHairpin(p *model.ServicePort, do func(netip.Addr)) {
	for _, list := range [...][]model.Endpoint{p.Cluster, p.Local} {
		for i := range list {
			if !list[i].Remote || p.ExternalPolicy == model.PolicyLocal {
				do(list[i].AddrPort.Addr())
			}
		}
	}
}

// reconcileAddresses puts the addresses that a port, which may be nil, uses or used into cluster-ips and hairpin, or
// removes those that no port uses.
func (f *family) reconcileAddresses(p *model.ServicePort) {
	if p == nil {
		return
	}
	if p.ClusterIP.IsValid() {
		f.reconcileAddress(f.sets.clusterIPs, nft.AddrData(p.ClusterIP), f.clusterIPs, p.ClusterIP)
	}
	eachHairpin(p, func(addr netip.Addr) {
		data := nft.AddrData(addr)
		f.reconcileAddress(f.sets.hairpin, data+data, f.hairpins, addr)
	})
}

func (f *family) reconcileAddress(set *nft.Set, key nft.Data, uses map[netip.Addr]int, addr netip.Addr) {
	if uses[addr] > 0 {
		f.draft.Put(set, nft.Element{Key: key})
		return
	}
	delete(uses, addr)
	f.draft.Remove(set, key)
}
