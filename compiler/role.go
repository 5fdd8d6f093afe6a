package compiler

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// Role is the decision that a chain makes about a packet, for programs that explain a packet's path.
type Role uint8

// The roles.
const (
	// RoleOther is a chain that only jumps to others, or that the compiler did not make.
	RoleOther Role = iota
	// RoleFirewall drops clients that loadBalancerSourceRanges does not include.
	RoleFirewall
	// RoleNoEndpoints refuses or drops clients of frontends that send them to no endpoint.
	RoleNoEndpoints
	// RoleClusterIPs refuses ports that a ClusterIP does not have, and drops addresses that no Service holds.
	RoleClusterIPs
	// RoleMarkUnlessLocal marks clients that are not the cluster's own, so that they are masqueraded.
	RoleMarkUnlessLocal
	// RoleShortCircuit sends clients of the cluster and the node, which policy Local does not bind, to all endpoints, and
	// marks the node's connections.
	RoleShortCircuit
	// RoleServeCluster sends clients of a ClusterIP to an endpoint. Its first rule may do what RoleMarkUnlessLocal does.
	RoleServeCluster
	// RoleServeExternal sends clients of an external frontend with policy Cluster to an endpoint.
	RoleServeExternal
	// RoleServeLocal sends clients of an external frontend with policy Local to an endpoint.
	RoleServeLocal
	// RoleServeAll sends clients to one of all endpoints after another chain has decided about the source address.
	RoleServeAll
	// RoleServeReturn sends clients of external frontends with direct return to the endpoint of their slot, if that is on
	// this node.
	RoleServeReturn
	// RoleDirectForward sends packets of external frontends with direct return to the node of their endpoint.
	RoleDirectForward
	// RoleKnownLocal sends known clients of an external frontend with policy Local to their endpoint. Like
	// RoleShortCircuit, it marks the node's connections.
	RoleKnownLocal
)

var kindRoles = [len(chainKindNames)]Role{
	kindCluster: RoleServeCluster, kindExternal: RoleServeExternal, kindLocal: RoleServeLocal, kindAllEndpoints: RoleServeAll,
}

var fixedRoles = map[string]Role{
	chainFirewall:    RoleFirewall,
	chainNoEndpoints: RoleNoEndpoints, chainNoEndpointNodePorts: RoleNoEndpoints,
	chainClusterIPs:      RoleClusterIPs,
	chainMarkUnlessLocal: RoleMarkUnlessLocal,
	chainShortCircuit:    RoleShortCircuit, chainShortCircuitNodePorts: RoleShortCircuit,
}

// RoleOf returns the role of a chain of TableName, by its name.
func RoleOf(chain string) Role {
	c, _ := parseEndpointChain(chain)
	if known, ok := strings.CutPrefix(chain, affinityKnownPrefix); ok {
		name, _, _ := strings.Cut(known, ".")
		if c.kind = parseChainKind(name); c.kind == kindLocal {
			return RoleKnownLocal
		}
	}
	return max(fixedRoles[chain], kindRoles[c.kind], frontRole(chain))
}

// ServiceCIDRs returns the ranges of a table in which packets to an address that no Service holds are dropped.
func ServiceCIDRs(t *nft.Table) (cidrs []netip.Prefix) {
	for _, chain := range t.Chains {
		if RoleOf(chain.Name) != RoleClusterIPs {
			continue
		}
		for _, rule := range chain.Rules {
			for _, s := range rule.Statements {
				in, _ := s.(nft.Match)
				if cidr, is := in.Value.(netip.Prefix); is && in.Field == t.Family.Daddr() && !slices.Contains(cidrs, cidr) {
					cidrs = append(cidrs, cidr)
				}
			}
		}
	}
	return cidrs
}

// ServesNodePorts reports whether the chain of that name sees packets to node ports only.
func ServesNodePorts(chain string) bool {
	c, ok := parseEndpointChain(chain)
	return ok && c.nodePort || chain == chainNodePorts
}
