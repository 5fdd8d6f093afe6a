package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// family compiles one IP family.
type family struct {
	nft          nft.Family
	config       *Config
	draft        *nft.Draft
	node         model.Node
	serviceCIDRs []netip.Prefix

	serviceIPs, serviceNodePorts            *nft.Set
	endpoints, nodePortEndpoints            *nft.Set
	localEndpoints, localNodePortEndpoints  *nft.Set
	shortCircuitIPs, shortCircuitNodePorts  *nft.Set
	noEndpointServices, noEndpointNodePorts *nft.Set
	clusterIPs, hairpin                     *nft.Set
	guardedIPs, allowedSources              *nft.Set
	affinityIPs, affinityNodePorts          *nft.Set

	ports map[model.PortID]*model.ServicePort
	// claims holds who wants a frontend, the winner first.
	claims map[frontend][]claim
	// contested holds who wants a frontend that more than one wants, sorted, as Apply returned it.
	contested map[frontend][]model.PortID
	// programmed holds the plan that is in the draft for a frontend.
	programmed map[frontend]plan
	// balancers holds how many frontends go to a balancer, and balancerGroups how many to those that differ in count only.
	balancers, balancerGroups map[balancer]int
	// How many ports use an address.
	clusterIPUses, hairpinUses map[netip.Addr]int

	// affinityPorts holds the Service ports with affinity by affinityName.
	affinityPorts map[string]*affinityPort
	// affinityFrontends is how many frontends with affinity there are for each rule that looks for them.
	affinityFrontends map[affinityRule]int
	// affinityNumbers holds the node ports with affinity, and externals the external addresses without it by port number, with
	// the comment for an element.
	affinityNumbers map[portNumber]bool
	externals       map[portNumber]map[frontend]string
	// affinityLosing holds the ports with a map that loses an endpoint by the next commit.
	affinityLosing map[*affinityPort]bool
	// affinityStale holds the ports with a map that may hold clients of endpoints that do not serve them any more.
	affinityStale map[*affinityPort]bool
	// affinityMoves holds the ports of which a map came or went since the last commit.
	affinityMoves map[string]bool
}

func newFamily(f nft.Family, config *Config) *family {
	c := &family{
		nft: f, config: config,
		draft:      nft.NewDraft(f, TableName, "rules for Kubernetes Services, written by nftproxy"),
		ports:      map[model.PortID]*model.ServicePort{},
		claims:     map[frontend][]claim{},
		contested:  map[frontend][]model.PortID{},
		programmed: map[frontend]plan{},
		balancers:  map[balancer]int{},

		balancerGroups: map[balancer]int{},
		clusterIPUses:  map[netip.Addr]int{},
		hairpinUses:    map[netip.Addr]int{},
		affinityPorts:  map[string]*affinityPort{},

		affinityFrontends: map[affinityRule]int{},
		affinityLosing:    map[*affinityPort]bool{},
		affinityStale:     map[*affinityPort]bool{},
		affinityMoves:     map[string]bool{},
		affinityNumbers:   map[portNumber]bool{},
		externals:         map[portNumber]map[frontend]string{},
	}
	if config.OwnTables {
		c.draft.Own()
	}
	c.addSets()
	c.putFixedChains()
	return c
}

func (f *family) addSets() {
	verdicts := func(name string, nodePort bool) *nft.Set {
		return f.draft.AddSet(&nft.Set{Name: name, Key: f.key(nodePort), Verdicts: true})
	}
	endpoints := func(name string, nodePort bool) *nft.Set {
		key := append(f.key(nodePort), nft.Numgen{Mod: 2})
		return f.draft.AddSet(&nft.Set{Name: name, Key: key, Data: nft.Concat{f.nft.Daddr(), nft.ThDport}})
	}
	f.serviceIPs = verdicts("service-ips", false)
	f.serviceNodePorts = verdicts("service-nodeports", true)
	f.endpoints = endpoints("endpoints", false)
	f.nodePortEndpoints = endpoints("nodeport-endpoints", true)
	f.shortCircuitIPs = verdicts("short-circuit-ips", false)
	f.shortCircuitNodePorts = verdicts("short-circuit-nodeports", true)
	f.localEndpoints = endpoints("local-endpoints", false)
	f.localNodePortEndpoints = endpoints("local-nodeport-endpoints", true)
	f.noEndpointServices = verdicts("no-endpoint-services", false)
	f.noEndpointNodePorts = verdicts("no-endpoint-nodeports", true)
	f.clusterIPs = f.draft.AddSet(&nft.Set{Name: "cluster-ips", Key: nft.Concat{f.nft.Daddr()}})
	f.guardedIPs = f.draft.AddSet(&nft.Set{Name: guardSet, Key: f.key(false)})
	f.allowedSources = f.draft.AddSet(&nft.Set{Name: "allowed-sources", Key: append(f.key(false), f.nft.Saddr()), Interval: true})
	f.addAffinitySets()
	f.hairpin = f.draft.AddSet(&nft.Set{Name: "hairpin", Key: nft.Concat{f.nft.Saddr(), f.nft.Daddr()}})
}

// nodePortPrefixes is where node ports answer, sorted, without what another prefix contains.
func (f *family) nodePortPrefixes() []netip.Prefix {
	prefixes := prefixesOf(f.nft, f.config.NodePortAddresses.CIDRs)
	if f.config.NodePortAddresses.Primary {
		for _, ip := range f.node.IPs {
			prefixes = append(prefixes, prefixesOf(f.nft, []netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())})...)
		}
	}
	// Packets to loopback addresses never leave the machine: no rule can send them elsewhere.
	loopback := f.nft.Loopback()
	prefixes = slices.DeleteFunc(prefixes, func(p netip.Prefix) bool {
		return p.Bits() >= loopback.Bits() && loopback.Contains(p.Addr())
	})
	return withoutNested(prefixes)
}

// setPort makes p, which may be nil, what the port with that ID is. Frontends that may have
// changed are added to touched.
func (f *family) setPort(id model.PortID, p *model.ServicePort, touched map[frontend]bool) {
	old := f.ports[id]
	if old != nil {
		for fe := range claims(old) {
			f.withdraw(fe, id)
			touched[fe] = true
		}
	}
	if p != nil {
		f.ports[id] = p
		for fe, c := range claims(p) {
			f.stake(fe, c)
			touched[fe] = true
		}
	} else {
		delete(f.ports, id)
	}
	f.countAddresses(old, -1)
	f.countAddresses(p, +1)
	f.settleAddresses(old)
	f.settleAddresses(p)
}

func (f *family) withdraw(fe frontend, id model.PortID) {
	rest := slices.DeleteFunc(f.claims[fe], func(c claim) bool { return c.id == id })
	if len(rest) == 0 {
		delete(f.claims, fe)
		return
	}
	f.claims[fe] = rest
}

func (f *family) stake(fe frontend, c claim) {
	list := f.claims[fe]
	at, _ := slices.BinarySearchFunc(list, c, func(have, c claim) int {
		if have.before(&c) {
			return -1
		}
		return 1
	})
	f.claims[fe] = slices.Insert(list, at, c)
}

// countAddresses adds by to the uses of each address that the port uses.
func (f *family) countAddresses(p *model.ServicePort, by int) {
	if p == nil {
		return
	}
	f.clusterIPUses[p.ClusterIP] += by
	eachHairpin(p, func(addr netip.Addr) { f.hairpinUses[addr] += by })
}

// eachHairpin calls do with each endpoint of a port that may be sent to itself by this node, without
// being masqueraded for another reason.
//
// A client's packet is translated on the client's own node, so the client, and the endpoint
// that it is, must be on this one. The exception is a node port: a pod of another node
// can dial it here. Under policy Cluster it is masqueraded anyway, under policy Local it is not.
func eachHairpin(p *model.ServicePort, do func(netip.Addr)) {
	for _, list := range [][]model.Endpoint{p.Cluster, p.Local} {
		for i := range list {
			if !list[i].Remote || p.ExternalPolicy == model.PolicyLocal {
				do(list[i].AddrPort.Addr())
			}
		}
	}
}

// settleAddresses brings cluster-ips and hairpin in line with the counts of what p uses.
func (f *family) settleAddresses(p *model.ServicePort) {
	if p == nil {
		return
	}
	if p.ClusterIP.IsValid() {
		f.settleAddress(f.clusterIPs, nft.AddrData(p.ClusterIP), f.clusterIPUses, p.ClusterIP)
	}
	eachHairpin(p, func(addr netip.Addr) {
		data := nft.AddrData(addr)
		f.settleAddress(f.hairpin, data+data, f.hairpinUses, addr)
	})
}

func (f *family) settleAddress(set *nft.Set, key nft.Data, uses map[netip.Addr]int, addr netip.Addr) {
	if uses[addr] > 0 {
		f.draft.Put(set, nft.Element{Key: key})
		return
	}
	delete(uses, addr)
	f.draft.Remove(set, key)
}

// settle brings the draft in line with the claims for a frontend.
func (f *family) settle(fe frontend) {
	var want plan
	if list := f.claims[fe]; len(list) > 0 {
		want = list[0].plan
	}
	if len(want.sources) > 0 {
		want.sources = f.sourcesFor(fe, want.sources)
	}
	have := f.programmed[fe]
	f.putLists(fe, have, want)
	f.putVerdicts(fe, have, want)
	f.putSources(fe, have, want)
	f.putAffinity(fe, have, want)
	if want.comment == "" {
		delete(f.programmed, fe)
	} else {
		f.programmed[fe] = want
	}
}

// listsOf returns the maps that hold the main and the local list of a frontend.
func (f *family) listsOf(fe frontend) (main, local *nft.Set) {
	if fe.isNodePort() {
		return f.nodePortEndpoints, f.localNodePortEndpoints
	}
	return f.endpoints, f.localEndpoints
}

func (f *family) putLists(fe frontend, have, want plan) {
	main, local := f.listsOf(fe)
	f.putList(main, fe, have.main, want.main)
	f.putList(local, fe, have.local, want.local)
}

func (f *family) putList(set *nft.Set, fe frontend, have, want []model.Endpoint) {
	var buf [64]byte // enough for an IPv6 frontend, a slot and an endpoint
	key := fe.appendKey(buf[:0])
	for i, e := range want {
		if i < len(have) && have[i].AddrPort == e.AddrPort {
			continue
		}
		slot := nft.AppendInteger(key, uint32(i))
		// One allocation for both: there are many endpoints.
		both := nft.Data(nft.AppendEndpoint(slot, e.AddrPort))
		f.draft.Put(set, nft.Element{Key: both[:len(slot)], Value: both[len(slot):]})
	}
	for i := len(want); i < len(have); i++ {
		f.draft.Remove(set, nft.Data(nft.AppendInteger(key, uint32(i))))
	}
}

// verdictsOf returns the balancers that a plan's verdicts lead to; the second is for
// clients whom policy Local does not bind.
func (p plan) verdictsOf(fe frontend) (first, shortCircuit balancer) {
	if p.kind == "" {
		return balancer{}, balancer{}
	}
	to := func(kind chainKind, list affinityList, endpoints []model.Endpoint) balancer {
		b := balancer{kind: kind, nodePort: fe.isNodePort(), count: len(endpoints)}
		if p.affinity != nil && len(endpoints) > 1 {
			b.affinity = balancerAffinity{p.affinity.name, uint8(fe.protocol), list}
		}
		return b
	}
	if p.kind == kindLocal {
		return to(kindLocal, listLocal, p.local), to(kindDirect, listCluster, p.main)
	}
	return to(p.kind, p.mainList, p.main), balancer{}
}

func (f *family) putVerdicts(fe frontend, have, want plan) {
	services, shortCircuits, none := f.serviceIPs, f.shortCircuitIPs, f.noEndpointServices
	if fe.isNodePort() {
		services, shortCircuits, none = f.serviceNodePorts, f.shortCircuitNodePorts, f.noEndpointNodePorts
	}
	key := nft.Data(fe.appendKey(nil))
	wantFirst, wantShort := want.verdictsOf(fe)
	haveFirst, haveShort := have.verdictsOf(fe)
	f.use(wantFirst)
	f.use(wantShort)
	f.putGoto(services, key, wantFirst, want.comment)
	f.putGoto(shortCircuits, key, wantShort, want.comment)
	f.release(haveFirst)
	f.release(haveShort)
	switch want.unserved {
	case unservedReject:
		f.draft.Put(none, nft.Element{Key: key, Verdict: nft.Goto(chainReject), Comment: want.comment})
	case unservedDrop:
		f.draft.Put(none, nft.Element{Key: key, Verdict: nft.Drop, Comment: want.comment})
	case unservedNothing:
		f.draft.Remove(none, key)
	}
}

func (f *family) putGoto(set *nft.Set, key nft.Data, to balancer, comment string) {
	if to.kind == "" {
		f.draft.Remove(set, key)
		return
	}
	f.draft.Put(set, nft.Element{Key: key, Verdict: nft.Goto(to.name()), Comment: comment})
}

// refreshChains rewrites all chains after node or ServiceCIDRs changed.
func (f *family) refreshChains() {
	f.putFixedChains()
	f.refreshAffinity()
	f.refreshBalancers()
}
