package compiler

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// plan is the claim of a Service port for its frontends of one rank, and decides on packets to them: the chain that
// chooses an endpoint, or a refusal. A frontend that no Service port claims has a nil plan.
type plan struct {
	port *portPlans
	rank rank
	// kind is the kind of chain that the frontend's verdict goes to; kindNone for no chain. kindLocal selects from the Local
	// list, and for clients of the cluster and the node, which policy Local does not bind, from the Cluster list.
	kind chainKind
	// list is the list from which other kinds select. It is the Local list for a ClusterIP with internal policy Local. All
	// plans of one kind of a Service port have the same list.
	list endpointList
	// unserved is the fate of new connections that the plan sends to no endpoint.
	unserved unserved
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

func (p *plan) isNodePort() bool { return p.rank == rankNodePort }

// isSticky reports whether clients keep their endpoint: the Service port has session affinity, and an endpoint.
func (p *plan) isSticky() bool {
	return p != nil && p.kind != kindNone && p.port.affinityName != ""
}

// endpoints returns a list of endpoints; nil if no client is sent to this list.
func (p *plan) endpoints(list endpointList) []model.Endpoint {
	if p == nil || p.kind == kindNone || p.kind != kindLocal && p.list != list {
		return nil
	}
	return p.port.list(list)
}

// slots returns the endpoints in the frontend's slots, and the endpoints in the slots for clients that policy Local binds.
func (p *plan) slots() (all, local []model.Endpoint) {
	if p == nil {
		return nil, nil
	}
	if p.kind == kindLocal {
		local = p.port.Local
	}
	return p.endpoints(p.list), local
}

// chains returns the chain for the frontend's clients, and the chain for clients that policy Local does not bind.
func (p *plan) chains(config *Config) (first, shortCircuit endpointChain) {
	if p == nil || p.kind == kindNone {
		return first, shortCircuit
	}
	chain := func(kind chainKind, list endpointList) endpointChain {
		n := len(p.port.list(list))
		return endpointChain{kind: kind, nodePort: p.isNodePort(), hash: config.AffinityHash && p.isSticky() && n > 1, count: n}
	}
	if p.kind == kindLocal {
		return chain(kindLocal, listLocal), chain(kindAllEndpoints, listCluster)
	}
	return chain(p.kind, p.list), shortCircuit
}

// sourceRanges returns the prefixes that may dial the frontend; nil means everybody.
func (p *plan) sourceRanges() []netip.Prefix {
	if p == nil || p.rank != rankLoadBalancer {
		return nil
	}
	return p.port.LoadBalancerSourceRanges
}

// portPlans is a Service port with its plans, and with the names that its elements share. It does not change: another
// state of the Service port has other plans.
type portPlans struct {
	*model.ServicePort
	comment string
	// affinityName is empty without session affinity.
	affinityName string
	// plans has, for a rank without frontends, a plan with kindNone and unservedNothing.
	plans [ranks]plan
}

func plansOf(port *model.ServicePort) *portPlans {
	p := &portPlans{ServicePort: port, comment: nft.TruncateComment(port.ID.ServicePortName())}
	if port.AffinityTimeout > 0 {
		p.affinityName = affinityName(port.ID)
	}
	eachFrontend(port, func(r rank, _ frontend) { p.plans[r] = p.plan(r) })
	return p
}

func (p *portPlans) list(list endpointList) []model.Endpoint {
	if list == listLocal {
		return p.Local
	}
	return p.Cluster
}

// plan decides on the port's frontends of a rank.
func (p *portPlans) plan(r rank) plan {
	decided := plan{port: p, rank: r}
	local := p.ExternalPolicy == model.PolicyLocal
	if r == rankClusterIP {
		local = p.InternalPolicy == model.PolicyLocal
	}
	switch {
	case len(p.Cluster) == 0 && (!local || len(p.Local) == 0):
		decided.unserved = unservedReject
		return decided
	case local && len(p.Local) == 0:
		decided.unserved = unservedDrop
	}
	switch {
	case r != rankClusterIP && local:
		decided.kind = kindLocal
	case r != rankClusterIP:
		decided.kind = kindExternal
	case decided.unserved == unservedNothing:
		decided.kind = kindCluster
	}
	if decided.kind == kindCluster && local {
		decided.list = listLocal
	}
	return decided
}
