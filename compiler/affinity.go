package compiler

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Session affinity (sessionAffinity ClientIP) is code, not data: each Service port with affinity has maps and chains of
// its own. All frontends of the port share them, so a client has one endpoint whichever address it dials, and a flood
// of clients at one Service fills that Service's map only.
//
// A client that is not in the map is sent to a random endpoint, as in kube-proxy; Config.AffinityHash has the hash of its
// address choose instead. The map keeps clients in place.

// affinitySize is how many clients a map holds. Clients beyond that are served as if they were new each time.
const affinitySize = nft.DefaultSize

// affinitySeed is the seed of the hash. It is the same on all nodes and in all versions, so that all of them choose alike.
const affinitySeed = 0x5eed

// affinityList says which of a Service port's two lists of endpoints a map is for.
type affinityList uint8

const (
	listCluster affinityList = iota
	listLocal
)

var affinityLists = [...]affinityList{listCluster, listLocal}

// affinityPrefixes are the start of the names of maps, and of the chains that fill them, by affinityList.
var (
	affinityMapPrefixes   = [...]string{listCluster: "affinity.", listLocal: "affinity-local."}
	affinityChainPrefixes = [...]string{listCluster: "affinity-update.", listLocal: "affinity-update-local."}
)

const (
	chainAffinity = "affinity-check"
	// affinityShortCircuitPrefix starts the name of the chain that tells under policy Local from which list an endpoint came.
	affinityShortCircuitPrefix = "affinity-update-short-circuit."
)

// affinityPort is the session affinity of one Service port: its maps, and the chains that fill them.
type affinityPort struct {
	id      model.PortID
	name    string
	timeout time.Duration
	lists   [len(affinityLists)]affinityUse
	// shortCircuits is how many frontends use the chain that tells the lists apart.
	shortCircuits int
}

// affinityUse is the use of one list of a port.
type affinityUse struct {
	// frontends is how many use the list. There is a map as long as there are any.
	frontends int
	endpoints []model.Endpoint
	// stale says that the map may hold clients of endpoints that are not in the list any more, and losing that it
	// has been so since the last commit only.
	stale, losing bool
}

func (p *affinityPort) mapName(list affinityList) string { return affinityMapPrefixes[list] + p.name }

func (f *family) addAffinitySets() {
	f.affinityIPs = f.draft.AddSet(&nft.Set{Name: "affinity-ips", Key: f.key(false), Verdicts: true})
	f.affinityNodePorts = f.draft.AddSet(&nft.Set{Name: "affinity-nodeports", Key: f.key(true), Verdicts: true})
}

// affinitySet returns the map of a port's clients for one list.
func (f *family) affinitySet(name string) *nft.Set {
	return &nft.Set{
		Name: name, Key: nft.Concat{f.nft.Saddr()}, Data: nft.Concat{f.nft.Daddr(), nft.ThDport}, Dynamic: true, Size: affinitySize,
	}
}

// returning sends a client to the endpoint that it was sent to before. The protocol is there for nft, which cannot
// show a translation to a port without it.
func (f *family) returning(b balancer) nft.Rule {
	return nft.NewRule(isProtocol(b.affinity.protocol), nft.DNAT{Family: f.nft, Key: nft.Concat{f.nft.Saddr()}, Map: affinityMapPrefixes[b.affinity.list] + b.affinity.port})
}

// afterTranslation is what becomes of a packet of a new connection once its destination was translated.
func (f *family) afterTranslation() nft.Verdict {
	if len(f.affinityFrontends) > 0 {
		return nft.Goto(chainAffinity)
	}
	return nft.Verdict{Kind: nft.Accept}
}

func (f *family) putAffinityCheck() {
	if len(f.affinityFrontends) > 0 {
		f.draft.PutChain(&nft.Chain{Name: chainAffinity, Rules: f.affinityRules()})
	} else {
		f.draft.RemoveChain(chainAffinity)
	}
}

// affinityRules run after the destination was translated. They find the frontend that was dialed in
// what conntrack remembers, and with it the chain that notes where its client went. Each protocol has rules of its own,
// since nft can show a port that conntrack remembers only where the rule names the protocol first.
func (f *family) affinityRules() []nft.Rule {
	var rules []nft.Rule
	for _, nodePort := range []bool{false, true} {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
			// The exceptions to node ports are found by address.
			if f.affinityFrontends[affinityRule{protocol, true}] > 0 || !nodePort && f.affinityFrontends[affinityRule{protocol, false}] > 0 {
				rules = append(rules, f.affinityRulesOf(protocol, nodePort)...)
			}
		}
	}
	return rules
}

// affinityRulesOf looks for frontends of one kind. A node port is known by its number alone, and other programs translate
// destinations too. So the address that was dialed has to be one on which node ports answer, or, where these are whole
// networks, at least no ClusterIP. External addresses may have a node port's number as well: see putAffinityExceptions.
func (f *family) affinityRulesOf(protocol model.Protocol, nodePort bool) (rules []nft.Rule) {
	daddr, isOf := f.nft.OriginalDaddr(), isProtocol(uint8(protocol))
	if !nodePort {
		return []nft.Rule{nft.NewRule(isOf, nft.Vmap{Key: nft.Concat{daddr, nft.MetaL4proto, nft.CTOriginalProtoDst}, Map: f.affinityIPs.Name})}
	}
	find := nft.Vmap{Key: nft.Concat{nft.MetaL4proto, nft.CTOriginalProtoDst}, Map: f.affinityNodePorts.Name}
	networks := false
	for _, p := range f.nodePortPrefixes() {
		if p.IsSingleIP() {
			rules = append(rules, nft.NewRule(isOf, nft.Match{Field: daddr, Value: nft.AddrData(p.Addr())}, find))
		}
		networks = networks || !p.IsSingleIP()
	}
	if networks {
		rules = append(rules, nft.NewRule(isOf, nft.InSet{Key: nft.Concat{daddr}, Op: nft.NotEqual, Set: f.clusterIPs.Name}, find))
	}
	return rules
}

// affinityRule identifies a rule of affinityRules.
type affinityRule struct {
	protocol model.Protocol
	nodePort bool
}

func isProtocol(protocol uint8) nft.Statement {
	return nft.Match{Field: nft.MetaL4proto, Value: nft.ProtoData(protocol)}
}

// affinityUpdate builds the chain that notes where a client goes. A client that is known keeps its endpoint, and its
// time starts anew.
func (f *family) affinityUpdate(p *affinityPort, list affinityList) *nft.Chain {
	return &nft.Chain{Name: affinityChainPrefixes[list] + p.name, Rules: []nft.Rule{nft.NewRule(
		isProtocol(uint8(p.id.Protocol)),
		nft.Update{
			Map:     p.mapName(list),
			Key:     nft.Concat{f.nft.Saddr()},
			Data:    nft.Concat{f.nft.Daddr(), nft.CTReplyProtoSrc},
			Timeout: p.timeout,
		})}}
}

// affinityShortCircuit builds the chain for policy Local: clients of the cluster and of the node were sent to
// an endpoint of the Cluster list, all others to one of the Local list.
func (f *family) affinityShortCircuit(p *affinityPort) *nft.Chain {
	c := &nft.Chain{Name: affinityShortCircuitPrefix + p.name}
	if p.has(listCluster) {
		update := nft.Goto(affinityChainPrefixes[listCluster] + p.name)
		for _, match := range append(f.localClients(), isLocalAddress(nft.FibSaddrType)) {
			c.Rules = append(c.Rules, nft.NewRule(match, update))
		}
	}
	if p.has(listLocal) {
		c.Rules = append(c.Rules, nft.NewRule(nft.Goto(affinityChainPrefixes[listLocal]+p.name)))
	}
	return c
}

// putAffinity updates the maps and chains of affinity after a frontend changed.
func (f *family) putAffinity(fe frontend, have, want plan) {
	set := f.affinityIPs
	if fe.isNodePort() {
		set = f.affinityNodePorts
	}
	key := nft.Data(fe.appendKey(nil))
	if want.affinity != nil {
		f.draft.Put(set, nft.Element{Key: key, Verdict: nft.Goto(f.useAffinity(want)), Comment: want.comment})
	} else {
		f.draft.Remove(set, key)
	}
	f.putAffinityExceptions(fe, want)
	if have.affinity != nil {
		f.releaseAffinity(have)
	}
	f.countAffinity(affinityRule{fe.protocol, fe.isNodePort()}, have, want)
}

// portNumber is a port of a protocol, whatever the address.
type portNumber struct {
	protocol model.Protocol
	port     uint16
}

// putAffinityExceptions keeps connections to external addresses without affinity from being taken for
// connections to a node port with the same number that has affinity. Such addresses get an element that ends the search.
func (f *family) putAffinityExceptions(fe frontend, want plan) {
	number := portNumber{fe.protocol, fe.port}
	if fe.isNodePort() {
		if want.affinity != nil {
			f.affinityNumbers[number] = true
		} else {
			delete(f.affinityNumbers, number)
		}
		for external, comment := range f.externals[number] {
			f.putAffinityException(external, comment)
		}
		return
	}
	delete(f.externals[number], fe)
	if want.external && want.kind != "" && want.affinity == nil {
		if f.externals[number] == nil {
			f.externals[number] = map[frontend]string{}
		}
		f.externals[number][fe] = want.comment
		f.putAffinityException(fe, want.comment)
	} else if len(f.externals[number]) == 0 {
		delete(f.externals, number)
	}
}

func (f *family) putAffinityException(fe frontend, comment string) {
	key := nft.Data(fe.appendKey(nil))
	if f.affinityNumbers[portNumber{fe.protocol, fe.port}] {
		f.draft.Put(f.affinityIPs, nft.Element{Key: key, Verdict: nft.Verdict{Kind: nft.Accept}, Comment: comment})
	} else {
		f.draft.Remove(f.affinityIPs, key)
	}
}

// countAffinity counts the frontends with affinity. The rules that look for them are there only as long as there are any.
func (f *family) countAffinity(rule affinityRule, have, want plan) {
	switch {
	case have.affinity == nil && want.affinity != nil:
		f.affinityFrontends[rule]++
		if f.affinityFrontends[rule] == 1 {
			f.putFixedChains()
		}
	case have.affinity != nil && want.affinity == nil:
		f.affinityFrontends[rule]--
		if f.affinityFrontends[rule] == 0 {
			delete(f.affinityFrontends, rule)
			f.putFixedChains()
		}
	}
}

// useAffinity counts one more frontend with the plan, and returns the chain that notes where its clients go.
func (f *family) useAffinity(want plan) (chain string) {
	p := f.affinityPorts[want.affinity.name]
	if p == nil {
		p = &affinityPort{id: want.affinity.id, name: want.affinity.name}
		f.affinityPorts[p.name] = p
	}
	p.timeout = want.affinity.timeout
	lists := want.lists()
	for _, list := range lists {
		f.useAffinityList(p, list.list, list.endpoints)
	}
	chain = affinityChainPrefixes[lists[0].list] + p.name
	if want.kind == kindLocal {
		p.shortCircuits++
		chain = affinityShortCircuitPrefix + p.name
	}
	f.putAffinityShortCircuit(p)
	return chain
}

// putAffinityShortCircuit writes the chain that tells the lists of a port apart, if a frontend needs it.
func (f *family) putAffinityShortCircuit(p *affinityPort) {
	if p.shortCircuits > 0 {
		f.draft.PutChain(f.affinityShortCircuit(p))
	} else {
		f.draft.RemoveChain(affinityShortCircuitPrefix + p.name)
	}
}

func (f *family) useAffinityList(p *affinityPort, list affinityList, endpoints []model.Endpoint) {
	use := &p.lists[list]
	if use.frontends == 0 {
		f.draft.PutSet(f.affinitySet(p.mapName(list)))
		// The kernel may have a map of that name with what another process, or another Service of that name, left in it.
		_, new := f.draft.SetBefore(p.mapName(list))
		*use = affinityUse{stale: !new, losing: !new}
		f.noteMove(p)
	}
	use.frontends++
	if lost(use.endpoints, endpoints) {
		use.stale, use.losing = true, true
	}
	use.endpoints = endpoints
	if use.losing {
		f.affinityLosing[p] = true
	}
	if use.stale {
		f.affinityStale[p] = true
	}
	f.draft.PutChain(f.affinityUpdate(p, list))
}

func (f *family) releaseAffinity(have plan) {
	p := f.affinityPorts[have.affinity.name]
	if have.kind == kindLocal {
		p.shortCircuits--
	}
	for _, list := range have.lists() {
		f.releaseAffinityList(p, list.list)
	}
	f.putAffinityShortCircuit(p)
	if !p.has(listCluster) && !p.has(listLocal) {
		delete(f.affinityPorts, p.name)
		delete(f.affinityStale, p)
		delete(f.affinityLosing, p)
	}
}

func (f *family) releaseAffinityList(p *affinityPort, list affinityList) {
	use := &p.lists[list]
	use.frontends--
	if use.frontends > 0 {
		return
	}
	*use = affinityUse{}
	f.draft.RemoveChain(affinityChainPrefixes[list] + p.name)
	f.draft.RemoveSet(p.mapName(list))
	f.noteMove(p)
}

// noteMove notes that a map of a port came or went since the last commit, and so that its clients may have to move to the other one.
func (f *family) noteMove(p *affinityPort) {
	if f.draft.HasCommitted() {
		f.affinityMoves[p.name] = true
	}
}

// lost reports whether an endpoint of have is not in want. Both are sorted.
func lost(have, want []model.Endpoint) bool {
	return slices.ContainsFunc(have, func(e model.Endpoint) bool { return !hasEndpoint(want, e.AddrPort) })
}

func hasEndpoint(list []model.Endpoint, addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(list, addr, func(e model.Endpoint, addr netip.AddrPort) int { return e.AddrPort.Compare(addr) })
	return found
}

// refreshAffinity rewrites the chains that depend on who is a client of the cluster.
func (f *family) refreshAffinity() {
	for _, p := range f.affinityPorts {
		f.putAffinityShortCircuit(p)
	}
}

// isLocalClient reports whether policy Local does not bind a client, and whether that can be told by its address.
func (f *family) isLocalClient(client netip.Addr) (local, known bool) {
	if slices.Contains(f.node.IPs, client) || slices.ContainsFunc(f.localCIDRs(), func(p netip.Prefix) bool { return p.Contains(client) }) {
		return true, true
	}
	return false, f.config.DetectLocal.Interface == ""
}
