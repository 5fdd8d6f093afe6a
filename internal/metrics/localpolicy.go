package metrics

import "github.com/nftproxy/nftproxy/model"

var noLocalEndpoints = newGaugeVec("sync_proxy_rules_no_local_endpoints_total", "Service ports with traffic policy Local that have endpoints, but none on this node", "traffic_policy", ipFamily)

// unserved holds the ports that drop traffic under policy Local for want of a local
// endpoint: what noLocalEndpoints counts.
type unserved map[model.PortID]dropped

// dropped says which traffic is dropped.
type dropped struct{ internal, external bool }

// apply takes changes in that were synced.
func (u unserved) apply(changes *model.Changes) {
	if changes.Full {
		clear(u)
	}
	for id, port := range changes.Ports {
		delete(u, id)
		if d := droppedBy(port); d != (dropped{}) {
			u[id] = d
		}
	}
}

// show sets the metric.
func (u unserved) show() {
	for _, family := range model.Families {
		internal, external := 0, 0
		for id, d := range u {
			if id.Family == family && d.internal {
				internal++
			}
			if id.Family == family && d.external {
				external++
			}
		}
		noLocalEndpoints.WithLabelValues("internal", family.String()).Set(float64(internal))
		noLocalEndpoints.WithLabelValues("external", family.String()).Set(float64(external))
	}
}

// droppedBy says which traffic a port drops. Without an endpoint anywhere traffic is refused,
// which is not counted here.
func droppedBy(p *model.ServicePort) dropped {
	if p == nil || len(p.Local) > 0 || len(p.Cluster) == 0 {
		return dropped{}
	}
	return dropped{internal: p.InternalPolicy == model.PolicyLocal, external: p.ExternalPolicy == model.PolicyLocal}
}
