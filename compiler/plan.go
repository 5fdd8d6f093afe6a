package compiler

import (
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// plan decides on packets to a frontend: the chain that chooses an endpoint, or a refusal. The frontends of a Service
// port share plans, so a plan does not change once it was made.
type plan struct {
	comment string
	// kind is the kind of chain that the frontend's verdict goes to; empty for none.
	kind chainKind
	// endpoints is the list in the map "endpoints": for clients in general or, when kind is local, for clients of the
	// cluster and the node, whom policy Local does not bind.
	endpoints []model.Endpoint
	// list says which of the port's lists endpoints is. It is the Local one for a ClusterIP with internal policy Local.
	list endpointList
	// localEndpoints is the list in the map "local-endpoints": for policy Local, when kind is local.
	localEndpoints []model.Endpoint
	// external says that the plan is for addresses other than the ClusterIP.
	external bool
	// affinity is nil for no affinity.
	affinity *planAffinity
	// unserved says what becomes of new connections that were not sent anywhere.
	unserved unserved
	// sources says who may dial the frontend; nil means everybody.
	sources []netip.Prefix
}

// noPlan is the plan for a frontend that nobody claims.
var noPlan plan

// endpointList is one of the two lists of endpoints of a Service port.
type endpointList uint8

const (
	listCluster endpointList = iota
	listLocal
)

var endpointLists = [...]endpointList{listCluster, listLocal}

// planAffinity is what the frontends of a Service port with affinity have in common.
type planAffinity struct {
	id model.PortID
	// name is affinityName of the port.
	name    string
	timeout time.Duration
}

// planList is a list of endpoints that clients of a frontend may be sent to.
type planList struct {
	list      endpointList
	endpoints []model.Endpoint
}

// lists returns the lists of a plan that are not empty.
func (p *plan) lists() (lists []planList) {
	if p.kind != kindLocal {
		return []planList{{p.list, p.endpoints}}
	}
	for _, l := range []planList{{listCluster, p.endpoints}, {listLocal, p.localEndpoints}} {
		if len(l.endpoints) > 0 {
			lists = append(lists, l)
		}
	}
	return lists
}

// unserved says what becomes of new connections that were not sent anywhere.
type unserved uint8

const (
	unservedNothing unserved = iota
	// unservedReject: there is no usable endpoint anywhere.
	unservedReject
	// unservedDrop: policy Local, and the endpoints are elsewhere. A load balancer's
	// health check tells it to go there; a refusal would tell the client to give up.
	unservedDrop
)

// serves reports whether there is a usable endpoint, on whatever node: one that policy Local keeps
// this node from using counts, or nodes would disagree on whom an address belongs to.
func (p *plan) serves() bool { return p.unserved != unservedReject }

// portPlans holds the plans of a Service port.
type portPlans struct {
	port               *model.ServicePort
	comment            string
	affinity           *planAffinity
	external, balanced *plan
}

func plansOf(p *model.ServicePort) portPlans {
	plans := portPlans{port: p, comment: nft.TruncateComment(p.ID.ServicePortName())}
	if p.AffinityTimeout > 0 {
		plans.affinity = &planAffinity{p.ID, affinityName(p.ID), p.AffinityTimeout}
	}
	return plans
}

// of returns the plan for the port's frontends of a rank.
func (p *portPlans) of(r rank) *plan {
	if r == rankClusterIP {
		return p.complete(internalPlan(p.port))
	}
	if p.external == nil {
		p.external = p.complete(externalPlan(p.port))
	}
	if r != rankLoadBalancer || len(p.port.LoadBalancerSourceRanges) == 0 {
		return p.external
	}
	if p.balanced == nil {
		guarded := *p.external
		guarded.sources = p.port.LoadBalancerSourceRanges
		p.balanced = &guarded
	}
	return p.balanced
}

// complete adds to a plan what all plans of the port have.
func (p *portPlans) complete(pl plan) *plan {
	pl.comment = p.comment
	if pl.kind != "" {
		pl.affinity = p.affinity
	}
	return &pl
}

func internalPlan(p *model.ServicePort) plan {
	endpoints, list := p.Cluster, listCluster
	if p.InternalPolicy == model.PolicyLocal {
		endpoints, list = p.Local, listLocal
	}
	switch {
	case len(endpoints) > 0:
		return plan{kind: kindCluster, endpoints: endpoints, list: list}
	case len(p.Cluster) > 0:
		return plan{unserved: unservedDrop}
	}
	return plan{unserved: unservedReject}
}

func externalPlan(p *model.ServicePort) plan {
	external := plan{external: true}
	switch {
	case len(p.Cluster) == 0 && (p.ExternalPolicy == model.PolicyCluster || len(p.Local) == 0):
		external.unserved = unservedReject
	case p.ExternalPolicy == model.PolicyCluster:
		external.kind, external.endpoints = kindExternal, p.Cluster
	default:
		external.kind, external.endpoints, external.localEndpoints = kindLocal, p.Cluster, p.Local
		if len(p.Local) == 0 {
			external.unserved = unservedDrop
		}
	}
	return external
}
