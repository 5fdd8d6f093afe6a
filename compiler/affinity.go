package compiler

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// AffinityMap is the name of the map in which packets leave where their client's connections to a frontend
// go: sessionAffinity ClientIP. One map serves all Services. Its elements expire, and stay when the
// proxy restarts.
const AffinityMap = "affinity"

// affinitySize is how many pairs of client and frontend the kernel remembers for each IP family. Beyond it new
// clients are served without affinity. The memory, about 100 bytes each, is used only as clients come.
const affinitySize = 1 << 20

const chainAffinity = "affinity-check"

// affinityProtocols are the protocols that Services have. Each has rules of its own, since nft can
// show a port that conntrack remembers only where the rule names the protocol first.
var affinityProtocols = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP}

func (f *family) addAffinitySets() {
	f.affinity = f.draft.AddSet(&nft.Set{
		Name: AffinityMap, Key: f.clientKey(), Data: nft.Concat{f.nft.Daddr(), nft.ThDport}, Dynamic: true, Size: affinitySize,
	})
	f.affinityIPs = f.draft.AddSet(&nft.Set{Name: "affinity-ips", Key: f.key(false), Verdicts: true})
	f.affinityNodePorts = f.draft.AddSet(&nft.Set{Name: "affinity-nodeports", Key: f.key(true), Verdicts: true})
}

// clientKey is what the affinity map knows a client of a frontend by. A node port is known by the node's
// address that was dialed too.
func (f *family) clientKey() nft.Concat { return append(nft.Concat{f.nft.Saddr()}, f.key(false)...) }

// returning sends a client to the endpoint that it was sent to before.
func (f *family) returning() nft.Rule {
	return nft.NewRule(nft.DNAT{Family: f.nft, Key: f.clientKey(), Map: AffinityMap})
}

// affinityRules run after the destination was translated. They find the frontend that was dialed in
// what conntrack remembers, and whether it has affinity.
func (f *family) affinityRules() []nft.Rule {
	var rules []nft.Rule
	for _, m := range []struct {
		key nft.Concat
		set *nft.Set
	}{
		{nft.Concat{f.nft.OriginalDaddr(), nft.MetaL4proto, nft.CTOriginalProtoDst}, f.affinityIPs},
		{nft.Concat{nft.MetaL4proto, nft.CTOriginalProtoDst}, f.affinityNodePorts},
	} {
		for _, protocol := range affinityProtocols {
			rules = append(rules, nft.NewRule(isProtocol(protocol), nft.Vmap{Key: m.key, Map: m.set.Name}))
		}
	}
	return rules
}

func isProtocol(protocol uint8) nft.Statement {
	return nft.Match{Field: nft.MetaL4proto, Value: nft.ProtoData(protocol)}
}

func learnerName(timeout time.Duration) string {
	return fmt.Sprintf("learn-%ds", timeout/time.Second)
}

// learner builds the chain that notes where the packet goes, for the timeout: nft has no way to take it from a map.
func (f *family) learner(timeout time.Duration) *nft.Chain {
	c := &nft.Chain{Name: learnerName(timeout)}
	for _, protocol := range affinityProtocols {
		c.Rules = append(c.Rules, nft.NewRule(isProtocol(protocol), nft.Update{
			Map:     AffinityMap,
			Key:     nft.Concat{f.nft.Saddr(), f.nft.OriginalDaddr(), nft.MetaL4proto, nft.CTOriginalProtoDst},
			Data:    nft.Concat{f.nft.Daddr(), nft.CTReplyProtoSrc},
			Timeout: timeout,
		}))
	}
	return c
}

// putAffinity brings the maps that say which frontends have affinity in line, and notes what clients may have
// learnt that does not hold any more.
func (f *family) putAffinity(fe frontend, have, want plan) {
	set := f.affinityIPs
	if fe.isNodePort() {
		set = f.affinityNodePorts
	}
	key := nft.Data(fe.appendKey(nil))
	if want.affinity > 0 {
		f.useLearner(want.affinity)
		f.draft.Put(set, nft.Element{Key: key, Verdict: nft.Goto(learnerName(want.affinity)), Comment: want.comment})
	} else {
		f.draft.Remove(set, key)
	}
	f.releaseLearner(have.affinity)
	if have.affinity == 0 {
		return
	}
	if have.kind != want.kind || have.affinity != want.affinity {
		f.forgotten[fe] = true
	}
	if f.forgotten[fe] || lost(have.main, want.main) || lost(have.local, want.local) {
		f.affinityStale = true
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

func (f *family) useLearner(timeout time.Duration) {
	f.learners[timeout]++
	if f.learners[timeout] == 1 {
		f.draft.PutChain(f.learner(timeout))
	}
}

func (f *family) releaseLearner(timeout time.Duration) {
	if timeout == 0 {
		return
	}
	f.learners[timeout]--
	if f.learners[timeout] == 0 {
		delete(f.learners, timeout)
		f.draft.RemoveChain(learnerName(timeout))
	}
}

// AffinityStale reports whether elements of the affinity maps may lead to endpoints that do not serve their
// frontend any more. It does from New until AffinitySettled, and after a change that took an endpoint away.
func (c *Compiler) AffinityStale() bool {
	return c.families[0].affinityStale || c.families[1].affinityStale
}

// AffinitySettled says that the affinity maps have no stale elements any more.
func (c *Compiler) AffinitySettled() {
	for _, f := range c.families {
		f.affinityStale = false
		clear(f.forgotten)
	}
}

// StaleAffinity reports whether an element of a family's affinity map must go: its frontend has no affinity
// any more, or another kind of traffic policy, or the endpoint does not serve it.
func (c *Compiler) StaleAffinity(family nft.Family, e nft.Element) bool {
	f := c.families[0]
	if family == nft.FamilyIP6 {
		f = c.families[1]
	}
	client, dialed, ok := f.decodeClient(e.Key)
	return !ok || f.staysFor(client, dialed, decodeEndpoint(e.Value)) == 0
}

// staysFor returns how long a client that dialed an address stays with an endpoint; 0 when it does not.
func (f *family) staysFor(client netip.Addr, dialed frontend, endpoint netip.AddrPort) time.Duration {
	if _, ok := f.programmed[dialed]; !ok {
		dialed.addr = netip.Addr{} // a node port, if anything
	}
	p := f.programmed[dialed]
	if f.forgotten[dialed] || !f.mayServe(p, client, endpoint) {
		return 0
	}
	return p.affinity
}

// AffinityProtocols returns the protocols of frontends with affinity in a family, in no order.
func (c *Compiler) AffinityProtocols(family model.Family) []model.Protocol {
	protocols := map[model.Protocol]bool{}
	for fe, p := range c.families[familyIndex(family)].programmed {
		if p.affinity > 0 {
			protocols[fe.protocol] = true
		}
	}
	return slices.Collect(maps.Keys(protocols))
}

// AffinityElement returns what a client's packet leaves in the affinity map when it dials a frontend and is
// sent to the endpoint. There is none for a frontend without affinity, or when the endpoint does not serve it.
func (c *Compiler) AffinityElement(protocol model.Protocol, client netip.Addr, dialed, endpoint netip.AddrPort) (e nft.Element, ok bool) {
	f := c.families[familyIndex(model.FamilyOf(dialed.Addr()))]
	fe := frontend{dialed.Addr(), dialed.Port(), protocol}
	stays := f.staysFor(client, fe, endpoint)
	return nft.Element{
		Key:     nft.AddrData(client) + nft.Data(fe.appendKey(nil)),
		Value:   nft.AddrData(endpoint.Addr()) + nft.PortData(endpoint.Port()),
		Timeout: stays, Expires: stays,
	}, stays > 0
}

// mayServe reports whether a client may be sent to the endpoint. Under policy Local only clients of the
// cluster may go to another node; where they are told by their interface, any may be one.
func (f *family) mayServe(p plan, client netip.Addr, endpoint netip.AddrPort) bool {
	switch {
	case p.kind != kindLocal:
		return hasEndpoint(p.main, endpoint)
	case hasEndpoint(p.local, endpoint):
		return true
	}
	return hasEndpoint(p.main, endpoint) && f.mayBeLocalClient(client)
}

func (f *family) mayBeLocalClient(client netip.Addr) bool {
	contains := func(p netip.Prefix) bool { return p.Contains(client) }
	return f.config.DetectLocal.Interface != "" || slices.ContainsFunc(f.localCIDRs(), contains) || slices.Contains(f.node.IPs, client)
}

// decodeClient takes a key of the affinity map apart.
func (f *family) decodeClient(key nft.Data) (client netip.Addr, fe frontend, ok bool) {
	n := nft.Concat{f.nft.Saddr()}.Len()
	if len(key) != 2*n+8 {
		return client, fe, false
	}
	client, _ = netip.AddrFromSlice([]byte(key[:n]))
	fe.addr, _ = netip.AddrFromSlice([]byte(key[n : 2*n]))
	fe.protocol = model.Protocol(key[2*n])
	fe.port = uint16(key[2*n+4])<<8 | uint16(key[2*n+5])
	return client, fe, true
}

func decodeEndpoint(value nft.Data) netip.AddrPort {
	n := len(value) - 4
	if n < 0 {
		return netip.AddrPort{}
	}
	addr, _ := netip.AddrFromSlice([]byte(value[:n]))
	return netip.AddrPortFrom(addr, uint16(value[n])<<8|uint16(value[n+1]))
}
