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

// clientMaps holds the maps and chains of session affinity in the draft.
type clientMaps struct {
	draft   *nft.Draft
	program *program
	// maps holds the Service port of each map, and size is the size of all.
	maps map[mapKey]*portPlans
	size uint32
	// frontends counts the frontends with affinity: first addresses, then node ports, by the index in protocols.
	frontends [2][len(protocols)]int
	// nodePortsChanged says that a node port got or lost affinity since family.putExceptions.
	nodePortsChanged bool
	// stale holds the maps that may have clients of endpoints that are gone. The value is true until the commit that takes
	// the endpoint out of the rules: before it, packets still add clients of the endpoint, so a map that is cleaned
	// before the commit stays stale.
	stale map[mapKey]bool
	// moves holds, since the last commit, new maps and maps whose counterpart for the other list was removed. Frontends that
	// used the counterpart find no client in such a map unless the clients are copied: see Affinity.Moves.
	moves map[mapKey]bool
}

// mapKey identifies a map from clients to endpoints.
type mapKey struct {
	port string // affinityName
	list endpointList
}

func (k mapKey) mapName() string { return affinityMapPrefixes[k.list] + k.port }

// other returns the key of the map for the other list of the Service port.
func (k mapKey) other() mapKey { return mapKey{k.port, listLocal - k.list} }

func (k mapKey) updateName() string { return affinityChainPrefixes[k.list] + k.port }

func newClientMaps(draft *nft.Draft, program *program) *clientMaps {
	return &clientMaps{
		draft: draft, program: program,
		maps:  map[mapKey]*portPlans{},
		size:  affinitySize(0),
		stale: map[mapKey]bool{},
		moves: map[mapKey]bool{},
	}
}

// move counts a frontend whose plan changes.
func (a *clientMaps) move(fe frontend, have, want *plan) {
	was, is := have.isSticky(), want.isSticky()
	if was == is {
		return
	}
	n := &a.frontends[index(fe.isNodePort())][slices.Index(protocols[:], fe.protocol)]
	if is {
		*n++
	} else {
		*n--
	}
	a.nodePortsChanged = a.nodePortsChanged || fe.isNodePort()
}

// replace replaces the maps and chains for one state of a Service port by the maps and chains for another state. Either state
// may be nil. The owner of the port's frontends does not matter.
func (a *clientMaps) replace(have, want *portPlans) {
	for _, list := range endpointLists {
		if want.recordsIn(list) {
			a.putMap(want, list)
		} else if have.recordsIn(list) {
			a.removeMap(have, list)
		}
	}
	needed := map[string]bool{}
	for _, c := range a.program.affinityChains(want) {
		needed[c.Name] = true
		a.draft.PutChain(c)
	}
	for _, c := range a.program.affinityChains(have) {
		if !needed[c.Name] {
			a.draft.RemoveChain(c.Name)
		}
	}
}

func (p *portPlans) isSticky() bool { return p != nil && p.affinityName != "" }

// recordsIn reports whether clients of some frontend go to an endpoint of the list, and so into its map.
func (p *portPlans) recordsIn(list endpointList) bool {
	return p.isSticky() && slices.ContainsFunc(p.plans[:], func(pl plan) bool { return len(pl.endpoints(list)) > 0 })
}

func (a *clientMaps) putMap(want *portPlans, list endpointList) {
	key := mapKey{want.affinityName, list}
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
	_, added := a.draft.SetBefore(key.mapName())
	if have == nil && !added || have != nil && lost(have.list(list), want.list(list)) {
		a.stale[key] = true
	}
}

func (a *clientMaps) removeMap(have *portPlans, list endpointList) {
	key := mapKey{have.affinityName, list}
	delete(a.maps, key)
	delete(a.stale, key)
	a.updateSize()
	a.draft.RemoveSet(key.mapName())
	a.moves[key.other()] = true
}

func (a *clientMaps) committed() {
	clear(a.moves)
	for key := range a.stale {
		a.stale[key] = false
	}
}

// affinitySize returns how many clients each map holds if an IP family has so many maps, because a flood can fill all maps.
// Further clients are served without affinity. The kernel keeps the size with which a map was made, so at most 64 maps ever
// have the largest size.
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
func (a *clientMaps) updateSize() {
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

// recorder returns the name of the chain that records clients of a frontend with the plan.
func (p *plan) recorder() string {
	if p.kind == kindLocal {
		return affinityShortCircuitPrefix + p.port.affinityName
	}
	return mapKey{p.port.affinityName, p.list}.updateName()
}

// recordedIn returns the maps in which the chain of that name, if it is a recorder, records clients.
func recordedIn(chain string) (keys []mapKey) {
	for _, list := range endpointLists {
		for _, prefix := range []string{affinityChainPrefixes[list], affinityShortCircuitPrefix} {
			if port, ok := strings.CutPrefix(chain, prefix); ok {
				keys = append(keys, mapKey{port, list})
			}
		}
	}
	return keys
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
