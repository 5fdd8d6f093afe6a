package compiler

import (
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// elementKind is a kind of element. Kinds are in the order of their sets in the table.
type elementKind uint8

const (
	// serviceElement leads a frontend to its endpoint chain.
	serviceElement elementKind = iota
	// endpointElement is the endpoint in a slot of a frontend.
	endpointElement
	// shortCircuitElement leads clients that policy Local does not bind to the chain that draws among endpointElements.
	shortCircuitElement
	// localEndpointElement is the endpoint in a slot for clients that policy Local binds.
	localEndpointElement
	// noEndpointElement is the fate of new connections that are sent to no endpoint.
	noEndpointElement
	// clusterIPElement is a ClusterIP.
	clusterIPElement
	// guardedElement is a load balancer IP that only the prefixes of its sourceElements may dial.
	guardedElement
	// sourceElement is a prefix that may dial a load balancer IP.
	sourceElement
	// recorderElement leads a connection that was translated to the chain that records its client. It also ends the search
	// for some addresses without affinity: see family.putExceptions.
	recorderElement
	// knownElement leads clients to the chain that sends known clients to their endpoint.
	knownElement
	// connectionsElement counts the connections of a frontend, and trafficElement the packets of these connections.
	connectionsElement
	trafficElement
	// refusedSourceElement counts what a guardedElement refuses.
	refusedSourceElement
	// hairpinElement is an endpoint to which this node may send its own packets back.
	hairpinElement
	// elementKinds is the number of kinds.
	elementKinds
)

// counting says what the elements of a set count; 0 for nothing.
type counting uint8

const (
	countsRefused counting = iota + 1 // Config.CountRefused
	countsServed                      // Config.CountServices
)

func (c *Config) counts(what counting) bool {
	return what == countsRefused && c.CountRefused || what == countsServed && c.CountServices
}

const (
	guardSet   = "guarded-ips"
	hairpinSet = "hairpin"
	// unassignedSet has protocols, whose elements count the packets to addresses that no Service holds.
	unassignedSet = "unassigned-addresses"
)

// elementRows says everything about each kind: its sets, and which plans need an element in them. readOrder says how
// elements are read.
var elementRows = [elementKinds]struct {
	// names are the names of the set for addresses and of the set for node ports. Some kinds have no elements for node ports.
	names [2]string
	// typed completes the type of a set whose key is not a frontend.
	typed func(*nft.Set, nft.Family)
	// counts says what the elements count. A set that only counts exists only if counting is on.
	counts    counting
	onlyCount bool
	verdicts  bool
	// decide returns the verdict of the element that a plan needs, and the set, which nearly always is own; nil if the plan
	// needs none. Kinds without it are not for one frontend, or may have several elements for it: family.writeEndpoints,
	// family.writeSources and sharedAddresses write these.
	decide func(f *family, p *plan, own *nft.Set) (nft.Verdict, *nft.Set)
}{
	serviceElement:       {names: [2]string{ServiceIPs, "service-nodeports"}, verdicts: true, decide: decideService},
	endpointElement:      {names: [2]string{Endpoints, "nodeport-endpoints"}, typed: slotToEndpoint},
	shortCircuitElement:  {names: [2]string{"short-circuit-ips", "short-circuit-nodeports"}, verdicts: true, decide: decideShortCircuit},
	localEndpointElement: {names: [2]string{"local-endpoints", "local-nodeport-endpoints"}, typed: slotToEndpoint},
	noEndpointElement:    {names: [2]string{"no-endpoint-services", "no-endpoint-nodeports"}, verdicts: true, counts: countsRefused, decide: decideUnserved},
	clusterIPElement:     {names: [2]string{ClusterIPs}, typed: address, counts: countsRefused},
	guardedElement:       {names: [2]string{guardSet}, decide: decideGuard},
	sourceElement:        {names: [2]string{"allowed-sources"}, typed: sourceRange},
	recorderElement:      {names: [2]string{"affinity-ips", "affinity-nodeports"}, verdicts: true, decide: decideRecorder},
	knownElement:         {names: [2]string{"affinity-known-ips", "affinity-known-nodeports"}, verdicts: true, decide: decideKnown},
	connectionsElement:   {names: [2]string{"service-connections", "nodeport-connections"}, counts: countsServed, onlyCount: true, decide: decideCount},
	trafficElement:       {names: [2]string{"service-traffic", "nodeport-traffic"}, counts: countsServed, onlyCount: true, decide: decideCount},
	refusedSourceElement: {names: [2]string{"refused-sources"}, counts: countsRefused, onlyCount: true, decide: decideGuard},
	hairpinElement:       {names: [2]string{hairpinSet}, typed: addressTwice},
}

// decideService leads the frontend to its chain. If the chain has a set, the element is in the chain's set, without a
// verdict.
func decideService(f *family, p *plan, own *nft.Set) (v nft.Verdict, in *nft.Set) {
	chain, _ := p.chains(f.program.config)
	if chain.kind == kindNone {
		return v, nil
	}
	if set := f.chains.setOf(chain); set != nil {
		return v, set
	}
	return nft.Goto(f.chains.name(chain)), own
}

func decideShortCircuit(f *family, p *plan, own *nft.Set) (v nft.Verdict, in *nft.Set) {
	if _, chain := p.chains(f.program.config); chain.kind != kindNone {
		return nft.Goto(f.chains.name(chain)), own
	}
	return v, nil
}

func decideUnserved(_ *family, p *plan, own *nft.Set) (v nft.Verdict, in *nft.Set) {
	switch p.unserved {
	case unservedReject:
		return nft.Goto(chainReject), own
	case unservedDrop:
		return nft.Drop, own
	}
	return v, nil
}

func decideGuard(_ *family, p *plan, own *nft.Set) (v nft.Verdict, in *nft.Set) {
	if len(p.sourceRanges()) > 0 {
		return v, own
	}
	return v, nil
}

func decideRecorder(_ *family, p *plan, own *nft.Set) (v nft.Verdict, in *nft.Set) {
	if p.isSticky() {
		return nft.Goto(p.recorder()), own
	}
	return v, nil
}

func decideKnown(_ *family, p *plan, own *nft.Set) (v nft.Verdict, in *nft.Set) {
	if p.isSticky() {
		return nft.Jump(affinityKnownName(p.kind, p.port.affinityName)), own
	}
	return v, nil
}

func decideCount(_ *family, _ *plan, own *nft.Set) (nft.Verdict, *nft.Set) { return nft.Verdict{}, own }

func slotToEndpoint(s *nft.Set, f nft.Family) {
	s.Key, s.Data = append(s.Key, nft.Numgen{Mod: 2}), nft.Concat{f.Daddr(), nft.ThDport}
}

func sourceRange(s *nft.Set, f nft.Family) { s.Key, s.Interval = append(s.Key, f.Saddr()), true }

func address(s *nft.Set, f nft.Family) { s.Key = nft.Concat{f.Daddr()} }

func addressTwice(s *nft.Set, f nft.Family) { s.Key = nft.Concat{f.Saddr(), f.Daddr()} }

// setName returns the name of the set of a kind.
func (k elementKind) setName(nodePort bool) string { return elementRows[k].names[index(nodePort)] }

// index is 0 for addresses and 1 for node ports, in arrays that have something for both.
func index(nodePort bool) int {
	if nodePort {
		return 1
	}
	return 0
}

// sets holds the sets and maps that a table always has: first for addresses, then for node ports. A set that only counts
// is nil in a table that does not count. docs/ruleset.md explains each set.
type sets [elementKinds][2]*nft.Set

func (s *sets) get(kind elementKind, nodePort bool) *nft.Set { return s[kind][index(nodePort)] }

// addSets adds the sets to the draft, in the order in which the table has them.
func addSets(draft *nft.Draft, p *program) *sets {
	var s sets
	for kind, row := range elementRows {
		for i, name := range row.names {
			if name == "" || row.onlyCount && !p.config.counts(row.counts) {
				continue
			}
			set := &nft.Set{Name: name, Key: p.key(i == 1), Verdicts: row.verdicts, Counter: p.config.counts(row.counts)}
			if row.typed != nil {
				row.typed(set, p.family)
			}
			s[kind][i] = draft.AddSet(set)
		}
	}
	if p.config.CountRefused {
		unassigned := draft.AddSet(&nft.Set{Name: unassignedSet, Key: nft.Concat{nft.MetaL4proto}, Counter: true})
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
			draft.Put(unassigned, nft.Element{Key: nft.ProtoData(protocol)})
		}
	}
	return &s
}

// IsHairpinSet reports whether the set of that name holds the endpoints whose packets may be sent back to them.
func IsHairpinSet(set string) bool { return set == hairpinSet }
