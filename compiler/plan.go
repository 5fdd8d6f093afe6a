package compiler

import (
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// plan decides on packets to a frontend: the chain that chooses an endpoint, or a refusal. The frontends of a Service
// port share plans, so a plan is never modified.
type plan struct {
	comment string
	// kind is the kind of chain that the frontend's verdict goes to; kindNone for no chain.
	kind chainKind
	// endpoints is the list in the map "endpoints". It is for all clients, or, if kind is kindLocal, for clients of the
	// cluster and the node, which policy Local does not bind.
	endpoints []model.Endpoint
	// list says which of the port's lists endpoints is. It is the Local one for a ClusterIP with internal policy Local.
	list endpointList
	// localEndpoints is the list in the map "local-endpoints": if kind is kindLocal, for all other clients.
	localEndpoints []model.Endpoint
	// affinity is nil for no affinity.
	affinity *planAffinity
	// unserved is the fate of new connections that the plan sends to no endpoint.
	unserved unserved
	// sources are the prefixes that may dial the frontend; nil means everybody.
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

// planAffinity is the affinity of a Service port, which all its frontends share.
type planAffinity struct {
	id model.PortID
	// name is affinityName of the port.
	name    string
	timeout time.Duration
}

// lists returns the lists of a plan that has a chain, without empty ones.
func (p *plan) lists() (lists []endpointList) {
	for _, list := range endpointLists {
		if len(p.listOf(list)) > 0 {
			lists = append(lists, list)
		}
	}
	return lists
}

// listOf returns the endpoints of one of the lists; nil if clients are sent to none of them.
func (p *plan) listOf(list endpointList) []model.Endpoint {
	switch {
	case p.kind == kindLocal && list == listLocal:
		return p.localEndpoints
	case p.kind == kindLocal || p.list == list:
		return p.endpoints
	}
	return nil
}

// chains returns the endpoint chains of a plan. shortCircuit is for clients that policy Local does not bind.
func (p *plan) chains(fe frontend, config *Config) (first, shortCircuit endpointChain) {
	chain := func(kind chainKind, endpoints []model.Endpoint) endpointChain {
		n := len(endpoints)
		return endpointChain{kind: kind, nodePort: fe.isNodePort(), hash: config.AffinityHash && p.affinity != nil && n > 1, count: n}
	}
	switch p.kind {
	case kindNone:
		return endpointChain{}, endpointChain{}
	case kindLocal:
		return chain(kindLocal, p.localEndpoints), chain(kindDirect, p.endpoints)
	}
	return chain(p.kind, p.endpoints), endpointChain{}
}

// unserved is the fate of new connections that are sent to no endpoint.
type unserved uint8

const (
	unservedNothing unserved = iota
	// unservedReject is for a port without any usable endpoint.
	unservedReject
	// unservedDrop is for policy Local with endpoints on other nodes only. A load balancer's health check sends it to
	// those nodes; a refusal would make the client give up.
	unservedDrop
)

// serves reports whether there is a usable endpoint on any node. Endpoints that policy Local keeps this node from using
// count too: otherwise nodes would disagree about the owner of an address.
func (p *plan) serves() bool { return p.unserved != unservedReject }

// portPlans holds the plans of a Service port.
type portPlans struct {
	port     *model.ServicePort
	comment  string
	affinity *planAffinity
	// external is the plan of all frontends but the ClusterIP, and guarded that of load balancer IPs with source ranges.
	// Each is nil until it is needed.
	external, guarded *plan
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
	if p.guarded == nil {
		guarded := *p.external
		guarded.sources = p.port.LoadBalancerSourceRanges
		p.guarded = &guarded
	}
	return p.guarded
}

// complete adds the comment and the affinity of the port to a plan.
func (p *portPlans) complete(pl plan) *plan {
	pl.comment = p.comment
	if pl.kind != kindNone {
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
	switch {
	case len(p.Cluster) == 0 && (p.ExternalPolicy == model.PolicyCluster || len(p.Local) == 0):
		return plan{unserved: unservedReject}
	case p.ExternalPolicy == model.PolicyCluster:
		return plan{kind: kindExternal, endpoints: p.Cluster}
	case len(p.Local) == 0:
		return plan{kind: kindLocal, endpoints: p.Cluster, unserved: unservedDrop}
	}
	return plan{kind: kindLocal, endpoints: p.Cluster, localEndpoints: p.Local}
}
