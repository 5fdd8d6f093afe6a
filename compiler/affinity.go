package compiler

import "github.com/nftproxy/nftproxy/nft"

// Session affinity (sessionAffinity ClientIP) is code, not data: each Service port with affinity has maps and chains of
// its own. All frontends of the port share them, so a client has one endpoint whichever address it dials, and a flood
// of clients at one Service fills that Service's map only.
//
// A client that is in the map goes to its endpoint. Another one goes to a random endpoint, as in kube-proxy, or, with
// Config.AffinityHash, to the one that the hash of its address chooses.

// affinitySeed is the seed of the hash. It is the same on all nodes and in all versions, so that all choose alike.
const affinitySeed = 0x5eed

// The names of maps, and of the chains that fill them, begin like this, by endpointList.
var (
	affinityMapPrefixes   = [...]string{listCluster: "affinity.", listLocal: "affinity-local."}
	affinityChainPrefixes = [...]string{listCluster: "affinity-update.", listLocal: "affinity-update-local."}
)

const (
	chainAffinityCheck = "affinity-check"
	// affinityShortCircuitPrefix begins the name of the chain that decides, under policy Local, from which list a client's
	// endpoint came.
	affinityShortCircuitPrefix = "affinity-update-short-circuit."
	// affinityKnownPrefix begins the names of chains that send known clients to their endpoint.
	affinityKnownPrefix = "affinity-known-"
)

// affinityState is the session affinity in one IP family.
type affinityState struct {
	// ports holds the Service ports with affinity by affinityName.
	ports map[string]*affinityPort
	// size is the size of their maps.
	size uint32
	// frontends counts the frontends with affinity for each rule that looks for them.
	frontends map[affinityRule]int
	// externals holds, by the node port of the same number, the external addresses without affinity.
	externals map[frontend]map[frontend]bool
	// stale holds the maps that may have clients of endpoints that no longer serve them, and losing those that became
	// stale since the last commit.
	stale, losing map[portList]bool
	// moves holds, by affinityName, the ports of which a map came or went since the last commit.
	moves map[string]bool
}

func newAffinityState() affinityState {
	return affinityState{
		ports:     map[string]*affinityPort{},
		size:      affinitySize(0),
		frontends: map[affinityRule]int{},
		externals: map[frontend]map[frontend]bool{},
		stale:     map[portList]bool{},
		losing:    map[portList]bool{},
		moves:     map[string]bool{},
	}
}

// putAffinity updates the maps and chains of affinity after a frontend changed.
func (f *family) putAffinity(e frontendElements) {
	sets := f.sets.of(e.frontend.isNodePort())
	if e.want.affinity != nil {
		update, known := f.useAffinity(e.want)
		f.draft.Put(sets.affinity, nft.Element{Key: e.key, Verdict: nft.Goto(update), Comment: e.want.comment})
		f.draft.Put(sets.known, nft.Element{Key: e.key, Verdict: nft.Jump(known), Comment: e.want.comment})
	} else {
		f.draft.Remove(sets.affinity, e.key)
		f.draft.Remove(sets.known, e.key)
	}
	f.putAffinityExceptions(e.frontend, e.want)
	if e.have.affinity != nil {
		f.releaseAffinity(e.have)
	}
	f.countAffinity(e)
	f.updateSpareSets()
}

// countAffinity counts the frontends with affinity. The rules that look for them exist only while there are any.
func (f *family) countAffinity(e frontendElements) {
	rule := affinityRule{e.frontend.protocol, e.frontend.isNodePort()}
	frontends := f.affinity.frontends
	switch have, want := e.have.affinity != nil, e.want.affinity != nil; {
	case !have && want:
		if frontends[rule]++; frontends[rule] == 1 {
			f.putFixedChains()
		}
	case have && !want:
		if frontends[rule]--; frontends[rule] == 0 {
			delete(frontends, rule)
			f.putFixedChains()
		}
	}
}

// refreshAffinity rewrites the chains that depend on who is a client of the cluster.
func (f *family) refreshAffinity() {
	for _, p := range f.affinity.ports {
		f.putAffinityChoices(p)
	}
}
