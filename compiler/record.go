package compiler

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// record is one thing that a frontend or a Service port needs in the table: an element, or the maps and chains of its
// session affinity. The functions append…Records say which they need. A store merges those of two states into the draft.
type record struct {
	kind     recordKind
	frontend frontend
	// list is the list of endpoints that an affinity map is for, or with which an affinity chain begins.
	list endpointList
	// slot is the slot of an endpoint, or the length of the prefix of a source.
	slot int
	// addr is an endpoint, or an address without a port.
	addr netip.AddrPort
	// chain is the endpoint chain to which an element leads. In records of affinity it has a kind only.
	chain    endpointChain
	unserved unserved
	// affinity is affinityName of the Service port; empty for no affinity.
	affinity string
	comment  string
	// port is set for affinityMapRecord and affinityKnownRecord only.
	port *portPlans
}

// recordKind is the kind of a record. Kinds are in the order of their sets in the table, and of a plan's records.
type recordKind uint8

const (
	// serviceRecord leads a frontend to its endpoint chain.
	serviceRecord recordKind = iota
	// endpointRecord is an endpoint in its slot, shortCircuitRecord leads clients that policy Local does not bind to the
	// chain that draws among these. localEndpointRecord is one for the clients that policy Local binds.
	endpointRecord
	shortCircuitRecord
	localEndpointRecord
	// noEndpointRecord is the fate of connections that are sent to no endpoint.
	noEndpointRecord
	// clusterIPRecord is needed by each Service port with the ClusterIP.
	clusterIPRecord
	// guardedRecord is a load balancer IP that only the sources of its sourceRecords may dial.
	guardedRecord
	sourceRecord
	// affinityRecord leads a connection that was translated to the chain that records its client. An external address
	// without affinity has one while the node port of the same number has affinity: see store.putAffinity.
	affinityRecord
	// knownRecord leads clients to the chain of affinityKnownRecord.
	knownRecord
	// connectionsRecord and trafficRecord count. refusedSourceRecord counts what a guardedRecord refuses.
	connectionsRecord
	trafficRecord
	refusedSourceRecord
	// hairpinRecord is needed by each Service port with the endpoint.
	hairpinRecord
	// elementKinds is the number of kinds above, which are elements of sets that a table always has.
	elementKinds

	// affinityMapRecord is the map for a list of a Service port, and the chain that fills it.
	affinityMapRecord = elementKinds
	// affinityKnownRecord is the chain that sends known clients of a Service port to their endpoint.
	affinityKnownRecord = elementKinds + 1
)

type keyShape uint8

const (
	// keyFrontend is a frontend; keySlot is one and a slot; keySource is one and the range of a prefix.
	keyFrontend keyShape = iota
	keySlot
	keySource
	// keyAddress is an address; keyPair is one twice.
	keyAddress
	keyPair
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

var recordSets = [elementKinds]struct {
	// names are those of the sets for addresses and for node ports.
	names    [2]string
	key      keyShape
	verdicts bool
	// counts says what the elements count. Sets that only count do not exist without that.
	counts counting
	only   bool
}{
	serviceRecord:       {names: [2]string{ServiceIPs, "service-nodeports"}, verdicts: true},
	endpointRecord:      {names: [2]string{Endpoints, "nodeport-endpoints"}, key: keySlot},
	shortCircuitRecord:  {names: [2]string{"short-circuit-ips", "short-circuit-nodeports"}, verdicts: true},
	localEndpointRecord: {names: [2]string{"local-endpoints", "local-nodeport-endpoints"}, key: keySlot},
	noEndpointRecord:    {names: [2]string{"no-endpoint-services", "no-endpoint-nodeports"}, verdicts: true, counts: countsRefused},
	clusterIPRecord:     {names: [2]string{ClusterIPs}, key: keyAddress, counts: countsRefused},
	guardedRecord:       {names: [2]string{guardSet}},
	sourceRecord:        {names: [2]string{"allowed-sources"}, key: keySource},
	affinityRecord:      {names: [2]string{"affinity-ips", "affinity-nodeports"}, verdicts: true},
	knownRecord:         {names: [2]string{"affinity-known-ips", "affinity-known-nodeports"}, verdicts: true},
	connectionsRecord:   {names: [2]string{"service-connections", "nodeport-connections"}, counts: countsServed, only: true},
	trafficRecord:       {names: [2]string{"service-traffic", "nodeport-traffic"}, counts: countsServed, only: true},
	refusedSourceRecord: {names: [2]string{"refused-sources"}, counts: countsRefused, only: true},
	hairpinRecord:       {names: [2]string{hairpinSet}, key: keyPair},
}

func (k recordKind) set(nodePort bool) string { return recordSets[k].names[index(nodePort)] }

// index returns the index of what is there for addresses, and for node ports.
func index(nodePort bool) int {
	if nodePort {
		return 1
	}
	return 0
}

// sets holds the sets and maps that a table always has. docs/ruleset.md explains each.
type sets [elementKinds][2]*nft.Set

func (s *sets) of(kind recordKind, nodePort bool) *nft.Set { return s[kind][index(nodePort)] }

// addSets adds the sets to the draft, in the order in which the table has them.
func addSets(draft *nft.Draft, p *program) *sets {
	var s sets
	for kind, as := range recordSets {
		for i, name := range as.names {
			switch {
			case as.only && !p.config.counts(as.counts):
				continue
			case name == "": // node ports have no such records, and records without a frontend look like theirs
				s[kind][i] = s[kind][0]
				continue
			}
			set := &nft.Set{Name: name, Key: p.key(i == 1), Verdicts: as.verdicts, Counter: p.config.counts(as.counts)}
			switch as.key {
			case keySlot:
				set.Key, set.Data = append(set.Key, nft.Numgen{Mod: 2}), nft.Concat{p.family.Daddr(), nft.ThDport}
			case keySource:
				set.Key, set.Interval = append(set.Key, p.family.Saddr()), true
			case keyAddress:
				set.Key = nft.Concat{p.family.Daddr()}
			case keyPair:
				set.Key = nft.Concat{p.family.Saddr(), p.family.Daddr()}
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

const (
	guardSet   = "guarded-ips"
	hairpinSet = "hairpin"
	// unassignedSet has protocols, whose elements count the packets to addresses that no Service holds.
	unassignedSet = "unassigned-addresses"
)

// IsHairpinSet reports whether the set of that name holds the endpoints whose packets may be sent back to them.
func IsHairpinSet(set string) bool { return set == hairpinSet }

// appendPortRecords appends the addresses that a Service port needs, whoever owns its frontends.
//
// Hairpins are the endpoints whose own packets this node may send back to them without masquerading them for another
// reason: those of this node, and with a node port under policy Local, which pods of other nodes can dial here, all.
func appendPortRecords(to []record, p *model.ServicePort, config *Config) []record {
	if p == nil {
		return to
	}
	if p.ClusterIP.IsValid() {
		ip := record{kind: clusterIPRecord, addr: netip.AddrPortFrom(p.ClusterIP, 0)}
		if config.CountRefused { // it counts packets to ports that the Service does not have
			ip.comment = nft.TruncateComment(p.ID.Namespace + "/" + p.ID.Service)
		}
		to = append(to, ip)
	}
	for list, endpoints := range [...][]model.Endpoint{listCluster: p.Cluster, listLocal: p.Local} {
		for i := range endpoints {
			if !endpoints[i].Remote || p.ExternalPolicy == model.PolicyLocal {
				to = append(to, record{kind: hairpinRecord, list: endpointList(list), addr: endpoints[i].AddrPort})
			}
		}
	}
	return to
}

// appendAffinityRecords appends the maps and chains of a Service port's session affinity, whoever owns its frontends.
func appendAffinityRecords(to []record, p *portPlans) []record {
	if p == nil || p.affinity == "" {
		return to
	}
	internal, external := p.of(rankClusterIP), p.of(rankNodePort)
	if !p.ClusterIP.IsValid() {
		internal = plan{}
	}
	if p.NodePort == 0 && externalAddresses(p.ServicePort) == 0 {
		external = plan{}
	}
	for _, list := range endpointLists {
		if len(internal.listOf(list)) > 0 || len(external.listOf(list)) > 0 {
			to = append(to, record{kind: affinityMapRecord, list: list, port: p})
		}
	}
	for _, kind := range []chainKind{internal.kind, external.kind} {
		if kind != kindNone {
			to = append(to, record{kind: affinityKnownRecord, chain: endpointChain{kind: kind}, port: p})
		}
	}
	return to
}

func appendListRecords(to []record, p plan, fe frontend) []record {
	all := p.listOf(p.list)
	for slot := range all {
		to = append(to, record{kind: endpointRecord, frontend: fe, slot: slot, addr: all[slot].AddrPort})
	}
	if p.kind == kindLocal {
		for slot := range p.port.Local {
			to = append(to, record{kind: localEndpointRecord, frontend: fe, slot: slot, addr: p.port.Local[slot].AddrPort})
		}
	}
	return to
}

// appendRecords appends all else that a frontend needs, in the order of compareRecords.
func appendRecords(to []record, p plan, fe frontend, config *Config) []record {
	if p.port == nil {
		return to
	}
	add := func(r record) {
		r.frontend, r.comment = fe, p.port.comment
		to = append(to, r)
	}
	first, shortCircuit := p.chains(fe, config)
	if first.kind != kindNone {
		add(record{kind: serviceRecord, chain: first})
	}
	if shortCircuit.kind != kindNone {
		add(record{kind: shortCircuitRecord, chain: shortCircuit})
	}
	if p.unserved != unservedNothing {
		add(record{kind: noEndpointRecord, unserved: p.unserved})
	}
	if len(p.sources) > 0 {
		add(record{kind: guardedRecord})
	}
	for _, source := range p.sources {
		add(record{kind: sourceRecord, addr: netip.AddrPortFrom(source.Addr(), 0), slot: source.Bits()})
	}
	switch name := p.affinity(); {
	case name != "":
		recorder := record{kind: affinityRecord, list: p.list, affinity: name}
		if p.kind == kindLocal {
			recorder.chain.kind = kindLocal
		}
		add(recorder)
		add(record{kind: knownRecord, chain: endpointChain{kind: p.kind}, affinity: name})
	case p.kind.isExternal() && !fe.isNodePort():
		add(record{kind: affinityRecord})
	}
	if config.CountServices {
		add(record{kind: connectionsRecord})
		add(record{kind: trafficRecord})
	}
	if config.CountRefused && len(p.sources) > 0 {
		add(record{kind: refusedSourceRecord})
	}
	return to
}

// compareRecords orders the records of one frontend or Service port. Equal ones are two states of one record.
func compareRecords(a, b *record) int {
	if a.kind != b.kind || a.list != b.list && a.kind != affinityRecord {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.list, b.list))
	}
	switch a.kind {
	case endpointRecord, localEndpointRecord:
		return cmp.Compare(a.slot, b.slot)
	case hairpinRecord:
		return a.addr.Compare(b.addr)
	case clusterIPRecord, sourceRecord:
		return a.addr.Addr().Compare(b.addr.Addr())
	case affinityKnownRecord:
		return cmp.Compare(a.chain.kind, b.chain.kind)
	}
	return 0
}

// maxElement is the size of the key and the value of the largest element: an IPv6 frontend, a slot and an endpoint.
const maxElement = maxFrontendKey + 4 + 16 + 4

// element returns the element for a record that is one. Chains returns the name of an endpoint chain.
func (r *record) element(bytes *byteBlock, chains func(endpointChain) string) nft.Element {
	var buf [maxElement]byte
	key, e := buf[:0], nft.Element{Comment: r.comment}
	switch recordSets[r.kind].key {
	case keyAddress:
		return nft.Element{Key: bytes.data(nft.AppendAddr(key, r.addr.Addr())), Comment: r.comment}
	case keyPair:
		return nft.Element{Key: bytes.data(nft.AppendAddr(nft.AppendAddr(key, r.addr.Addr()), r.addr.Addr()))}
	case keySlot:
		key = nft.AppendInteger(r.frontend.appendKey(key), uint32(r.slot))
		length := len(key)
		key = nft.AppendPort(nft.AppendAddr(key, r.addr.Addr()), r.addr.Port())
		both := bytes.data(key)
		return nft.Element{Key: both[:length], Value: both[length:]}
	case keySource:
		key = r.frontend.appendKey(key)
		e.KeyEnd = nft.Data(nft.AppendAddr(key, nft.LastAddr(netip.PrefixFrom(r.addr.Addr(), r.slot))))
		key = nft.AppendAddr(key, r.addr.Addr())
	default:
		key = r.frontend.appendKey(key)
	}
	e.Key = bytes.data(key)
	switch r.kind {
	case serviceRecord, shortCircuitRecord:
		e.Verdict = nft.Goto(chains(r.chain))
	case noEndpointRecord:
		e.Verdict = nft.Goto(chainReject)
		if r.unserved == unservedDrop {
			e.Verdict = nft.Drop
		}
	case affinityRecord:
		e.Verdict = nft.Accept
		if r.affinity != "" {
			e.Verdict = nft.Goto(r.recorder())
		}
	case knownRecord:
		e.Verdict = nft.Jump(affinityKnownName(r.chain.kind, r.affinity))
	}
	return e
}

// readRecord is the inverse of element. It returns false for an element whose key the compiler does not write. A verdict
// that it does not write gives a record without a chain.
func readRecord(kind recordKind, e nft.Element) (r record, ok bool) {
	r = record{kind: kind, comment: e.Comment}
	key := e.Key
	switch shape := recordSets[kind].key; shape {
	case keyAddress, keyPair:
		if shape == keyPair {
			key = key[:len(key)/2]
		}
		addr, ok := netip.AddrFromSlice([]byte(key))
		r.addr = netip.AddrPortFrom(addr, 0)
		return r, ok
	case keySlot:
		at := len(key) - 4
		if r.addr, ok = ParseEndpoint(e.Value); !ok || at < 0 {
			return r, false
		}
		r.slot, key = int(binary.NativeEndian.Uint32([]byte(key[at:]))), key[:at]
	case keySource:
		at := (len(key) + 8) / 2
		if at > len(key) || len(e.KeyEnd) != len(key) {
			return r, false
		}
		source := prefixBetween(key[at:], e.KeyEnd[at:])
		r.addr, r.slot, key = netip.AddrPortFrom(source.Addr(), 0), source.Bits(), key[:at]
	}
	switch kind {
	case serviceRecord, shortCircuitRecord:
		if e.Verdict.Kind == nft.VerdictGoto {
			r.chain, _ = parseEndpointChain(e.Verdict.Chain)
		}
	case noEndpointRecord:
		if r.unserved = unservedReject; e.Verdict == nft.Drop {
			r.unserved = unservedDrop
		}
	case affinityRecord:
		r.readRecorder(e.Verdict.Chain)
	case knownRecord:
		known, _ := strings.CutPrefix(e.Verdict.Chain, affinityKnownPrefix)
		kind, port, _ := strings.Cut(known, ".")
		r.chain.kind, r.affinity = parseChainKind(kind), port
	}
	r.frontend, ok = parseKey(key)
	return r, ok
}
