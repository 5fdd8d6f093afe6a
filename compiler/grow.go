package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
)

// grow makes room for a full model in the families that have no ports. Without it, growing maps takes a third of the
// time to compile the model.
func (c *Compiler) grow(ports map[model.PortID]*model.ServicePort) {
	var counts, endpoints [len(c.families)]int
	for id, p := range ports {
		i := familyIndex(id.Family)
		counts[i]++
		endpoints[i] += len(p.Cluster)
	}
	for i, f := range c.served() {
		if len(f.ports) == 0 {
			f.grow(counts[i], endpoints[i])
		}
	}
}

func (f *family) grow(ports, endpoints int) {
	f.ports = make(map[model.PortID]*model.ServicePort, ports)
	f.frontends = make(map[frontend]*frontendState, ports)
	f.touched = make([]*frontendState, 0, ports)
	f.clusterIPs = make(map[netip.Addr]int, ports)
	f.sets.clusterIPs.Grow(ports)
	f.sets.addresses.endpoints.Grow(endpoints)
}
