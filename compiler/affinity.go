package compiler

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Session affinity (sessionAffinity ClientIP) is code, not data: each Service port with affinity has maps and chains of
// its own. All frontends of the port share them, so a client has one endpoint whichever address it dials, and a flood
// of clients at one Service fills that Service's map only.
//
// Clients that are not in the map go to a random endpoint, as in kube-proxy, or with Config.AffinityHash to the
// one that the hash of their address chooses.

type affinityState struct {
	draft   *nft.Draft
	program *program
	// maps holds the Service port of each map, and size is the size of all.
	maps map[affinityKey]*portPlans
	size uint32
	// frontends counts the frontends with affinity for each rule that looks for them.
	frontends map[affinityRule]int
	// externals counts, by the node port of their number, the external addresses without affinity.
	externals map[frontend]int
	// nodePorts holds the node ports that got or lost affinity since family.putExceptions.
	nodePorts map[frontend]bool
	// stale holds the maps that may have clients of endpoints that went: true for those that went since the last commit.
	stale map[affinityKey]bool
	// moves holds the maps to which clients may have to move, since they came or their other map went.
	moves map[affinityKey]bool
}

type affinityKey struct {
	port string // affinityName
	list endpointList
}

func (k affinityKey) mapName() string { return affinityMapPrefixes[k.list] + k.port }

func (k affinityKey) other() affinityKey { return affinityKey{k.port, listLocal - k.list} }

func (k affinityKey) updateName() string { return affinityChainPrefixes[k.list] + k.port }

func newAffinityState(draft *nft.Draft, program *program) *affinityState {
	return &affinityState{
		draft: draft, program: program,
		maps:      map[affinityKey]*portPlans{},
		size:      affinitySize(0),
		frontends: map[affinityRule]int{},
		externals: map[frontend]int{},
		nodePorts: map[frontend]bool{},
		stale:     map[affinityKey]bool{},
		moves:     map[affinityKey]bool{},
	}
}

// affinityRule identifies a rule that looks for frontends with affinity.
type affinityRule struct {
	protocol model.Protocol
	nodePort bool
}

// move counts a frontend whose plan changes.
func (a *affinityState) move(fe frontend, have, want plan) {
	rule := affinityRule{fe.protocol, fe.isNodePort()}
	if have.affinity() != "" {
		a.frontends[rule]--
	}
	if want.affinity() != "" {
		a.frontends[rule]++
	}
	nodePort := frontend{port: fe.port, protocol: fe.protocol}
	if isException(fe, have) {
		if a.externals[nodePort]--; a.externals[nodePort] == 0 {
			delete(a.externals, nodePort)
		}
	}
	if isException(fe, want) {
		a.externals[nodePort]++
	}
}

// isException reports whether a frontend is an external address without affinity: see store.putAffinity.
func isException(fe frontend, p plan) bool {
	return !fe.isNodePort() && p.kind.isExternal() && p.affinity() == ""
}

func (a *affinityState) putMap(want *portPlans, list endpointList) {
	key := affinityKey{want.affinity, list}
	have := a.maps[key]
	a.maps[key] = want
	if have == nil {
		a.updateSize()
		a.draft.PutSet(a.program.affinityMap(key, a.size))
		if a.draft.HasCommitted() {
			a.moves[key] = true
		}
	}
	// Unless the next commit adds the map, the kernel may have one of that name, with clients of an earlier process or of
	// an earlier Service of that name.
	_, new := a.draft.SetBefore(key.mapName())
	if have == nil && !new || have != nil && lost(have.list(list), want.list(list)) {
		a.stale[key] = true
	}
	a.draft.PutChain(a.program.affinityUpdate(want, list))
}

func (a *affinityState) removeMap(have *portPlans, list endpointList) {
	key := affinityKey{have.affinity, list}
	delete(a.maps, key)
	delete(a.stale, key)
	a.updateSize()
	a.draft.RemoveChain(key.updateName())
	a.draft.RemoveSet(key.mapName())
	a.moves[key.other()] = true
}

// putKnown puts the chains for known clients of a Service port's frontends whose plan is of a kind.
func (a *affinityState) putKnown(want *portPlans, kind chainKind) {
	a.draft.PutChain(a.program.affinityKnown(want, kind))
	if kind == kindLocal {
		a.draft.PutChain(a.program.affinityShortCircuit(want))
	}
}

func (a *affinityState) removeKnown(have *portPlans, kind chainKind) {
	a.draft.RemoveChain(affinityKnownName(kind, have.affinity))
	if kind == kindLocal {
		a.draft.RemoveChain(affinityShortCircuitPrefix + have.affinity)
	}
}

func (a *affinityState) committed() {
	clear(a.moves)
	for key := range a.stale {
		a.stale[key] = false
	}
}

// affinitySize returns how many clients each map holds, where an IP family has so many maps: a flood can fill all of
// them. Further clients are served without affinity. The kernel keeps the size that a map was made with, so at most 64
// have the largest one, whatever came and went.
func affinitySize(maps int) uint32 {
	switch {
	case maps <= 64:
		return nft.DefaultSize
	case maps <= 512:
		return 1<<14 - 1
	case maps <= 4096:
		return 1<<12 - 1
	}
	return 1<<8 - 1
}

// updateSize gives all maps the size for their number. The kernel's keep their size and their clients.
func (a *affinityState) updateSize() {
	size := affinitySize(len(a.maps))
	if size == a.size {
		return
	}
	a.size = size
	for key := range a.maps {
		a.draft.PutSet(a.program.affinityMap(key, size))
	}
}

// lost reports whether an endpoint of have is not in want. Both are sorted.
func lost(have, want []model.Endpoint) bool {
	return slices.ContainsFunc(have, func(e model.Endpoint) bool { return !hasEndpoint(want, e.AddrPort) })
}

// The names of maps, and of the chains that fill them, begin like this, by endpointList.
var (
	affinityMapPrefixes   = [...]string{listCluster: "affinity.", listLocal: "affinity-local."}
	affinityChainPrefixes = [...]string{listCluster: "affinity-update.", listLocal: "affinity-update-local."}
)

const (
	// affinityShortCircuitPrefix begins the names of chains that decide, under policy Local, which map gets a client.
	affinityShortCircuitPrefix = "affinity-update-short-circuit."
	// affinityKnownPrefix begins the names of chains that send known clients to their endpoint.
	affinityKnownPrefix = "affinity-known-"
)

func affinityKnownName(kind chainKind, port string) string {
	return affinityKnownPrefix + kind.String() + "." + port
}

func (r *record) recorder() string {
	if r.chain.kind == kindLocal {
		return affinityShortCircuitPrefix + r.affinity
	}
	return affinityKey{r.affinity, r.list}.updateName()
}

func (r *record) readRecorder(chain string) {
	if port, ok := strings.CutPrefix(chain, affinityShortCircuitPrefix); ok {
		r.chain.kind, r.affinity = kindLocal, port
		return
	}
	for list, prefix := range affinityChainPrefixes {
		if port, ok := strings.CutPrefix(chain, prefix); ok {
			r.list, r.affinity = endpointList(list), port
		}
	}
}

// IsAffinityMap reports whether the set of that name is a map from clients to endpoints.
func IsAffinityMap(name string) bool {
	return slices.ContainsFunc(affinityMapPrefixes[:], func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// IsLocalAffinityMap reports whether the set of that name is the affinity map for clients that policy Local binds.
func IsLocalAffinityMap(name string) bool {
	return strings.HasPrefix(name, affinityMapPrefixes[listLocal])
}

// maxAffinityName leaves room for prefixes: the kernel takes names of up to 255 bytes (NFT_NAME_MAXLEN).
const maxAffinityName = 200

// affinityName returns the end of the names of a Service port's maps and chains: "namespace.service.tcp.port", without
// ".port" if the port has no name. It has no slash, because kube-proxy deletes chains with one as its own. A hash
// replaces names that Kubernetes does not allow, which can come from a manifest: nft could not list them.
func affinityName(id model.PortID) string {
	parts := []string{id.Namespace, id.Service, strings.ToLower(id.Protocol.String())}
	if id.Port != "" {
		parts = append(parts, id.Port)
	}
	name := strings.Join(parts, ".")
	for _, part := range parts {
		if !isName(part) || len(name) > maxAffinityName {
			sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts)) // quoted, because such parts may have dots
			return "_" + hex.EncodeToString(sum[:16])
		}
	}
	return name
}

// isName reports whether Kubernetes allows all characters in the names of namespaces, Services and ports.
func isName(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}
