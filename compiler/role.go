package compiler

// Role is what a chain decides about a packet, for those who explain a packet's way.
type Role uint8

// The roles.
const (
	// RoleOther is a chain that only leads to others, or that the compiler did not make.
	RoleOther Role = iota
	// RoleFirewall drops clients that loadBalancerSourceRanges does not name.
	RoleFirewall
	// RoleNoEndpoints refuses or drops clients of frontends that send them nowhere.
	RoleNoEndpoints
	// RoleClusterIPs refuses ports that a ClusterIP does not have, and drops addresses that no Service holds.
	RoleClusterIPs
	// RoleMarkUnlessLocal marks clients that are not the cluster's own, so that they are masqueraded.
	RoleMarkUnlessLocal
	// RoleShortCircuit sends the cluster's own clients past policy Local, and marks those of the node.
	RoleShortCircuit
	// RoleServeCluster, RoleServeExternal, RoleServeLocal and RoleServeDirect send to an endpoint: of a ClusterIP,
	// under external policy Cluster, under external policy Local, and after another chain has decided.
	RoleServeCluster
	RoleServeExternal
	RoleServeLocal
	RoleServeDirect
)

// RoleOf returns the role of a chain of TableName, by its name.
func RoleOf(chain string) Role {
	switch chain {
	case chainFirewall:
		return RoleFirewall
	case chainNoEndpoints, chainNoEndpointNodePorts:
		return RoleNoEndpoints
	case chainClusterIPs:
		return RoleClusterIPs
	case chainMarkUnlessLocal:
		return RoleMarkUnlessLocal
	case chainShortCircuit, chainShortCircuitNodePorts:
		return RoleShortCircuit
	}
	c, ok := parseEndpointChain(chain)
	if !ok {
		return RoleOther
	}
	switch c.kind {
	case kindCluster:
		return RoleServeCluster
	case kindExternal:
		return RoleServeExternal
	case kindLocal:
		return RoleServeLocal
	}
	return RoleServeDirect
}

// IsHairpinSet reports whether a set holds the endpoints that may be sent to themselves.
func IsHairpinSet(set string) bool { return set == hairpinSet }

// ServesNodePorts reports whether a chain sends clients of node ports to endpoints.
func ServesNodePorts(chain string) bool {
	c, ok := parseEndpointChain(chain)
	return ok && c.nodePort
}
