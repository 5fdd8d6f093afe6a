package main

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// tableName is the name of both tables, "ip" and "ip6".
const tableName = "example-chains"

// masqueradeMark is the bit of the packet mark that says "masquerade on the way out".
const masqueradeMark = 1 << 14

// builder builds the table of one IP family from the state: a chain for each list of endpoints, and maps that lead
// from what clients dial to the chains.
type builder struct {
	family      nft.Family
	clusterCIDR netip.Prefix
	table       *nft.Table
	// services leads to chains that translate; refused, in filter chains, to what becomes of the rest.
	services, refused *nft.Set
	clusterIPs        *nft.Set
	hairpin           *nft.Set
}

// dialed returns the address, the protocol and the port that clients dial. They are the key of services and refused.
func (b *builder) dialed() nft.Concat {
	return nft.Concat{b.family.Daddr(), nft.MetaL4proto, nft.ThDport}
}

// buildTable returns the table for all ports of a family. clusterCIDR is the range of the pods.
func buildTable(family nft.Family, state *model.Changes, clusterCIDR netip.Prefix) *nft.Table {
	b := &builder{family: family, clusterCIDR: clusterCIDR}
	b.services = &nft.Set{Name: "services", Key: b.dialed(), Verdicts: true}
	b.refused = &nft.Set{Name: "refused", Key: b.dialed(), Verdicts: true}
	b.clusterIPs = &nft.Set{Name: "cluster-ips", Key: nft.Concat{family.Daddr()}}
	b.hairpin = &nft.Set{Name: "hairpin", Key: nft.Concat{family.Saddr(), family.Daddr()}}
	b.table = &nft.Table{Family: family, Name: tableName, Sets: []*nft.Set{b.services, b.refused, b.clusterIPs, b.hairpin}}
	b.addBaseChains()
	var ports []*model.ServicePort
	for _, id := range slices.SortedFunc(maps.Keys(state.Ports), model.PortID.Compare) {
		if port := state.Ports[id]; (id.Family == model.IPv4) == (family == nft.FamilyIP) {
			ports = append(ports, port)
			b.addChains(port)
		}
	}
	// If two ports claim an address, one that has endpoints comes first.
	slices.SortStableFunc(ports, func(a, b *model.ServicePort) int { return min(len(b.Cluster), 1) - min(len(a.Cluster), 1) })
	for kind := clusterIP; kind <= nodePort; kind++ {
		for _, port := range ports {
			b.claim(port, kind, state.Node.IPs)
		}
	}
	return b.table
}

func (b *builder) addBaseChains() {
	translate := nft.NewRule(nft.Vmap{Key: b.dialed(), Map: "services"})
	refuse := []nft.Rule{
		nft.NewRule(nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}, nft.Accept),
		nft.NewRule(nft.Match{Field: nft.CTState, Value: nft.CTStateNew}, nft.Vmap{Key: b.dialed(), Map: "refused"}),
		nft.NewRule(nft.InSet{Key: b.clusterIPs.Key, Set: "cluster-ips"}, nft.Reject{Family: b.family}),
	}
	for _, hook := range []nft.Hook{nft.HookPrerouting, nft.HookOutput} {
		b.addChain(&nft.Chain{Name: "nat-" + string(hook), Type: nft.TypeNAT, Hook: hook, Priority: nft.PriorityDstNAT, Rules: []nft.Rule{translate}})
	}
	for _, hook := range []nft.Hook{nft.HookInput, nft.HookForward, nft.HookOutput} {
		b.addChain(&nft.Chain{Name: "filter-" + string(hook), Type: nft.TypeFilter, Hook: hook, Priority: nft.PriorityFilter, Rules: refuse})
	}
	b.addChain(&nft.Chain{Name: "nat-postrouting", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT, Rules: []nft.Rule{
		nft.NewRule(nft.MatchMark(masqueradeMark, masqueradeMark), nft.FlipMark(masqueradeMark), nft.Masquerade),
		// A client that is its own endpoint would answer itself, past us.
		nft.NewRule(nft.Match{Field: nft.CTStatus, Value: nft.CTStatusDNAT}, nft.InSet{Key: b.hairpin.Key, Set: "hairpin"}, nft.Masquerade),
	}})
	b.addChain(&nft.Chain{Name: "reject", Rules: []nft.Rule{nft.NewRule(nft.Reject{Family: b.family})}})
}

// addChains adds the chains of a port. Three lead to endpoints: cluster/…, local/… (only if internal traffic is Local) and external/….
func (b *builder) addChains(port *model.ServicePort) {
	name, affinity := portName(port.ID), port.AffinityTimeout > 0
	for _, e := range slices.Concat(port.Cluster, port.Local) {
		b.hairpin.Put(nft.Element{Key: nft.AddrData(e.AddrPort.Addr()) + nft.AddrData(e.AddrPort.Addr())})
	}
	b.clusterIPs.Put(nft.Element{Key: nft.AddrData(port.ClusterIP)})

	mark := nft.SetMark(masqueradeMark)
	markUnlessPod := nft.NewRule(nft.Match{Field: b.family.Saddr(), Op: nft.NotEqual, Value: b.clusterCIDR}, mark)
	b.addEndpointChain("cluster/"+name, port.Cluster, affinity, markUnlessPod)
	if port.InternalPolicy == model.PolicyLocal {
		b.addEndpointChain("local/"+name, port.Local, affinity, markUnlessPod)
	}
	toCluster := nft.Goto("cluster/" + name)
	if port.ExternalPolicy == model.PolicyLocal {
		// The policy is about clients outside; pods and the node itself reach all endpoints.
		b.addEndpointChain("external/"+name, port.Local, affinity,
			nft.NewRule(nft.Match{Field: b.family.Saddr(), Value: b.clusterCIDR}, toCluster),
			nft.NewRule(nft.Match{Field: nft.FibSaddrType, Value: nft.IntegerData(unix.RTN_LOCAL)}, toCluster))
	} else {
		b.addChain(&nft.Chain{Name: "external/" + name, Rules: []nft.Rule{nft.NewRule(mark), nft.NewRule(toCluster)}})
	}
	if ranges := port.LoadBalancerSourceRanges; ranges != nil {
		guard := &nft.Chain{Name: "guard/" + name}
		for _, r := range ranges {
			guard.Rules = append(guard.Rules, nft.NewRule(nft.Match{Field: b.family.Saddr(), Value: r}, nft.Goto("external/"+name)))
		}
		guard.Rules = append(guard.Rules, nft.NewRule(nft.Drop))
		b.addChain(guard)
	}
}

// What an address is to its Service. The first kind that claims an address has it, so nobody takes a ClusterIP by naming it as external IP.
const (
	clusterIP = iota
	loadBalancerIP
	externalIP
	nodePort
)

// claim leads the addresses of one kind to the chain of the port.
func (b *builder) claim(port *model.ServicePort, kind int, nodeIPs []netip.Addr) {
	name, policy, number := portName(port.ID), port.ExternalPolicy, port.Port
	chain := "external/" + name
	var addrs []netip.Addr
	switch kind {
	case clusterIP:
		addrs, policy, chain = []netip.Addr{port.ClusterIP}, port.InternalPolicy, "cluster/"+name
		if policy == model.PolicyLocal {
			chain = "local/" + name
		}
	case loadBalancerIP:
		addrs = port.LoadBalancerIPs
		if port.LoadBalancerSourceRanges != nil {
			chain = "guard/" + name
		}
	case externalIP:
		addrs = port.ExternalIPs
	case nodePort:
		if number = port.NodePort; number != 0 {
			addrs = nodeIPs
		}
	}
	for _, addr := range addrs {
		if model.FamilyOf(addr) == port.ID.Family {
			b.put(port, nft.AddrData(addr)+nft.ProtoData(uint8(port.ID.Protocol))+nft.PortData(number), policy, chain)
		}
	}
}

// put leads what clients dial to a chain, and what the chain does not translate to its end.
func (b *builder) put(port *model.ServicePort, dialed nft.Data, policy model.TrafficPolicy, chain string) {
	if _, taken := b.services.Element(dialed); taken {
		return
	}
	comment := port.ID.ServicePortName()
	b.services.Put(nft.Element{Key: dialed, Verdict: nft.Goto(chain), Comment: comment})
	switch {
	case len(port.Cluster) == 0:
		b.refused.Put(nft.Element{Key: dialed, Verdict: nft.Goto("reject"), Comment: comment})
	case policy == model.PolicyLocal && len(port.Local) == 0:
		b.refused.Put(nft.Element{Key: dialed, Verdict: nft.Drop, Comment: comment})
	}
}

// addEndpointChain adds a chain that runs the rules and then translates to one of the endpoints, which are in a map of their own.
func (b *builder) addEndpointChain(name string, endpoints []model.Endpoint, affinity bool, rules ...nft.Rule) {
	if n := uint32(len(endpoints)); n > 0 {
		draw := nft.Numgen{Mod: n}
		slots := &nft.Set{Name: name, Key: nft.Concat{draw}, Data: nft.Concat{b.family.Daddr(), nft.ThDport}}
		for i, e := range endpoints {
			slots.Put(nft.Element{Key: nft.IntegerData(uint32(i)), Value: nft.AddrData(e.AddrPort.Addr()) + nft.PortData(e.AddrPort.Port())})
		}
		b.table.Sets = append(b.table.Sets, slots)
		key := nft.Concat{draw}
		if affinity { // one client, one endpoint, as long as the list is the same
			key = nft.Concat{nft.JHash{Field: b.family.Saddr(), Mod: n, Seed: 1}}
		}
		rules = append(rules, nft.NewRule(nft.DNAT(b.family, key, name)))
	}
	b.addChain(&nft.Chain{Name: name, Rules: rules})
}

func (b *builder) addChain(c *nft.Chain) { b.table.Chains = append(b.table.Chains, c) }

// portName is a name that nft takes for a chain: letters, digits, and no colon.
func portName(id model.PortID) string {
	name := id.Namespace + "/" + id.Service
	if id.Port != "" {
		name += "/" + id.Port
	}
	return name + "/" + id.Protocol.String()
}
