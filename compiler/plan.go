package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// plan decides on packets to a frontend: the chain that chooses an endpoint, or a refusal. The zero value is the plan
// for a frontend that nobody claims.
type plan struct {
	port *portPlans
	// kind is the kind of chain that the frontend's verdict goes to; kindNone for no chain. kindLocal draws from the Local
	// list, and for clients of the cluster and the node, which policy Local does not bind, from the Cluster list.
	kind chainKind
	// list is the list from which other kinds draw. It is the Local one for a ClusterIP with internal policy Local.
	list endpointList
	// unserved is the fate of new connections that the plan sends to no endpoint.
	unserved unserved
	// sources are the prefixes that may dial the frontend; empty means everybody.
	sources []netip.Prefix
}

type endpointList uint8

const (
	listCluster endpointList = iota
	listLocal
)

var endpointLists = [...]endpointList{listCluster, listLocal}

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

// affinity returns the name of the port's maps and chains; empty for no affinity.
func (p *plan) affinity() string {
	if p.kind == kindNone {
		return ""
	}
	return p.port.affinity
}

// listOf returns the endpoints of one of the lists; nil if clients are sent to none of them.
func (p *plan) listOf(list endpointList) []model.Endpoint {
	if p.kind == kindNone || p.kind != kindLocal && p.list != list {
		return nil
	}
	return p.port.list(list)
}

func (p *plan) chains(fe frontend, config *Config) (first, shortCircuit endpointChain) {
	chain := func(kind chainKind, list endpointList) endpointChain {
		n := len(p.listOf(list))
		hash := config.AffinityHash && p.affinity() != "" && n > 1
		return endpointChain{kind: kind, nodePort: fe.isNodePort(), hash: hash, count: n}
	}
	switch p.kind {
	case kindNone:
		return endpointChain{}, endpointChain{}
	case kindLocal:
		return chain(kindLocal, listLocal), chain(kindAllEndpoints, listCluster)
	}
	return chain(p.kind, p.list), endpointChain{}
}

// portPlans is a Service port with the names that its records share. Its plans follow from it.
type portPlans struct {
	*model.ServicePort
	comment string
	// affinity is affinityName; empty for no affinity.
	affinity string
}

func plansOf(p *model.ServicePort) *portPlans {
	plans := &portPlans{ServicePort: p, comment: nft.TruncateComment(p.ID.ServicePortName())}
	if p.AffinityTimeout > 0 {
		plans.affinity = affinityName(p.ID)
	}
	return plans
}

func (p *portPlans) list(list endpointList) []model.Endpoint {
	if list == listLocal {
		return p.Local
	}
	return p.Cluster
}

// of returns the plan for the port's frontends of a rank.
func (p *portPlans) of(r rank) plan {
	pl := plan{port: p}
	local := p.ExternalPolicy == model.PolicyLocal
	switch {
	case r == rankClusterIP:
		pl.planInternal()
		return pl
	case len(p.Cluster) == 0 && (!local || len(p.Local) == 0):
		pl.unserved = unservedReject
	case !local:
		pl.kind = kindExternal
	default:
		pl.kind = kindLocal
		if len(p.Local) == 0 {
			pl.unserved = unservedDrop
		}
	}
	if r == rankLoadBalancer {
		pl.sources = p.LoadBalancerSourceRanges
	}
	return pl
}

func (p *plan) planInternal() {
	if p.port.InternalPolicy == model.PolicyLocal {
		p.list = listLocal
	}
	switch {
	case len(p.port.list(p.list)) > 0:
		p.kind = kindCluster
	case len(p.port.Cluster) > 0:
		p.unserved = unservedDrop
	default:
		p.unserved = unservedReject
	}
}
