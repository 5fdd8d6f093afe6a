package compiler

import (
	"fmt"
	"net/netip"
	"time"

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

// appendKey appends the frontend as the maps have it in their keys.
func (f frontend) appendKey(b []byte) []byte {
	if f.isNodePort() {
		return append(append(b, nft.ProtoData(uint8(f.protocol))...), nft.PortData(f.port)...)
	}
	return nft.AppendFrontend(b, f.addr, uint8(f.protocol), f.port)
}

// rank orders what may claim one frontend: a ClusterIP is the cluster's own and must not be
// taken over by an external IP that any Service author can name (CVE-2020-8554); a load
// balancer IP is set by a controller, an external IP by the author.
//
// A claim of lower rank does not get the frontend either while the owner has no endpoints,
// though kube-proxy would give it away: whoever may name an external IP would only have to
// wait for a rollout or a crash of the Service that holds the ClusterIP or the load balancer
// IP, and its clients' data would go to him. Refusing them is the safe answer.
type rank uint8

const (
	rankClusterIP rank = iota
	rankLoadBalancer
	rankExternalIP
	rankNodePort
)

// claim is what one Service port wants for a frontend.
type claim struct {
	rank rank
	id   model.PortID
	plan plan
}

// before reports whether c wins over other: by rank, then whoever has something to serve, as
// in kube-proxy, then by name. Who came first does not matter, and all nodes decide alike.
func (c *claim) before(other *claim) bool {
	if c.rank != other.rank {
		return c.rank < other.rank
	}
	if c.plan.serves() != other.plan.serves() {
		return c.plan.serves()
	}
	return c.id.Compare(other.id) < 0
}

// plan says what becomes of packets to a frontend. The zero plan is nothing at all.
type plan struct {
	comment string
	// kind is the kind of chain that the frontend's verdict goes to; empty for none.
	kind chainKind
	// main is the list for clients in general, or, when kind is local, for clients of the
	// cluster and the node, whom the policy Local does not bind.
	main []model.Endpoint
	// local is the list for policy Local, when kind is local.
	local []model.Endpoint
	// mainList says which of the port's lists main is.
	mainList affinityList
	// external says that the frontend is an external or load balancer IP.
	external bool
	// affinity is nil for no affinity.
	affinity *planAffinity
	// unserved is what becomes of new connections that were not sent anywhere.
	unserved unserved
	// sources is who may dial the frontend; nil means everybody.
	sources []netip.Prefix
}

// planAffinity is what the frontends of a Service port with affinity have in common.
type planAffinity struct {
	id model.PortID
	// name is affinityName of the port.
	name    string
	timeout time.Duration
}

// planList is a list of endpoints that clients of a frontend may be sent to.
type planList struct {
	list      affinityList
	endpoints []model.Endpoint
}

// lists returns the lists of a frontend that are not empty.
func (p plan) lists() (lists []planList) {
	if p.kind != kindLocal {
		return []planList{{p.mainList, p.main}}
	}
	for _, l := range []planList{{listCluster, p.main}, {listLocal, p.local}} {
		if len(l.endpoints) > 0 {
			lists = append(lists, l)
		}
	}
	return lists
}

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

// claims returns all that a Service port wants, a frontend once.
func claims(p *model.ServicePort) map[frontend]claim {
	out := make(map[frontend]claim, 2+len(p.ExternalIPs)+len(p.LoadBalancerIPs))
	var affinity *planAffinity
	if p.AffinityTimeout > 0 {
		affinity = &planAffinity{p.ID, affinityName(p.ID), p.AffinityTimeout}
	}
	add := func(r rank, addr netip.Addr, port uint16, pl plan) {
		pl.comment = nft.TruncateComment(p.ID.ServicePortName())
		if pl.kind != "" {
			pl.affinity = affinity
		}
		f := frontend{addr: addr, port: port, protocol: p.ID.Protocol}
		if _, ok := out[f]; !ok {
			pl.external = r == rankLoadBalancer || r == rankExternalIP
			out[f] = claim{rank: r, id: p.ID, plan: pl}
		}
	}
	if p.ClusterIP.IsValid() {
		add(rankClusterIP, p.ClusterIP, p.Port, internalPlan(p))
	}
	external := externalPlan(p)
	for _, addr := range p.LoadBalancerIPs {
		guarded := external
		guarded.sources = p.LoadBalancerSourceRanges
		add(rankLoadBalancer, addr, p.Port, guarded)
	}
	for _, addr := range p.ExternalIPs {
		add(rankExternalIP, addr, p.Port, external)
	}
	if p.NodePort != 0 {
		add(rankNodePort, netip.Addr{}, p.NodePort, external)
	}
	return out
}

func internalPlan(p *model.ServicePort) plan {
	list, which := p.Cluster, listCluster
	if p.InternalPolicy == model.PolicyLocal {
		list, which = p.Local, listLocal
	}
	switch {
	case len(list) > 0:
		return plan{kind: kindCluster, main: list, mainList: which}
	case len(p.Cluster) > 0:
		return plan{unserved: unservedDrop}
	}
	return plan{unserved: unservedReject}
}

func externalPlan(p *model.ServicePort) plan {
	switch {
	case len(p.Cluster) == 0 && len(p.Local) == 0:
		return plan{unserved: unservedReject}
	case p.ExternalPolicy == model.PolicyCluster && len(p.Cluster) == 0:
		return plan{unserved: unservedReject}
	case p.ExternalPolicy == model.PolicyCluster:
		return plan{kind: kindExternal, main: p.Cluster}
	case len(p.Local) == 0:
		return plan{kind: kindLocal, main: p.Cluster, unserved: unservedDrop}
	}
	return plan{kind: kindLocal, main: p.Cluster, local: p.Local}
}
