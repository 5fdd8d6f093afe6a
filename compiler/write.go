package compiler

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// The functions here are the only writers of elements, except for the moves of endpointChains. Each brings the draft from one
// state of a frontend or of a Service port to another state, and writes only the difference.
//
// They do not read the draft. They compare two plans, because plans are small and do not change: an
// element of an old plan has the same key, verdict and set whenever it is computed again. So a change of one endpoint
// of 5,000 compares 5,000 addresses, and makes the key of one element. Two things do not follow from the plan of a
// frontend alone, and are settled when all plans are written: putExceptions, and the addresses that ports share.

// decision is the element of a kind for a frontend, without its key; set is nil for none.
type decision struct {
	set     *nft.Set
	verdict nft.Verdict
	comment string
}

func (f *family) decision(kind elementKind, p *plan) (d decision) {
	decide := elementRows[kind].decide
	if p == nil || decide == nil {
		return decision{}
	}
	if d.verdict, d.set = decide(f, p, f.sets.get(kind, p.isNodePort())); d.set != nil {
		d.comment = p.port.comment
	}
	return d
}

// writeDecisions writes the elements that say where packets of a touched frontend go, and the elements that count them.
func (f *family) writeDecisions(s *frontendState) {
	want := s.plan()
	var key nft.Data // the same for all kinds
	for kind := range elementKinds {
		from, to := f.decision(kind, s.applied), f.decision(kind, want)
		if from == to {
			continue
		}
		if key == "" {
			var buf [maxFrontendKey]byte
			key = f.keys.data(s.frontend.appendKey(buf[:0]))
		}
		if from.set != nil && from.set != to.set {
			f.draft.Remove(from.set, key)
		}
		if to.set != nil {
			f.draft.Put(to.set, nft.Element{Key: key, Verdict: to.verdict, Comment: to.comment})
		}
	}
	f.writeSources(s)
}

// writeSources writes the prefixes that may dial a load balancer IP. They depend on the node's addresses too.
func (f *family) writeSources(s *frontendState) {
	want := s.plan()
	if want.sourceRanges() == nil && s.sources == nil {
		return
	}
	// It removes first: another prefix may begin with the same address, and so have the same key.
	sources := f.program.sourcesFor(s.frontend, want.sourceRanges())
	set := f.sets.get(sourceElement, false)
	var buf [2 * maxFrontendKey]byte
	for _, source := range s.sources {
		if !slices.Contains(sources, source) {
			f.draft.Remove(set, nft.Data(nft.AppendAddr(s.frontend.appendKey(buf[:0]), source.Addr())))
		}
	}
	for _, source := range sources {
		e := nft.Element{Comment: want.port.comment}
		begin := s.frontend.appendKey(buf[:0])
		e.Key = nft.Data(nft.AppendAddr(begin, source.Addr()))
		e.KeyEnd = nft.Data(nft.AppendAddr(begin, nft.LastAddr(source)))
		f.draft.Put(set, e)
	}
	s.sources = sources
}

// writeEndpoints writes the endpoints of a touched frontend into its slots.
func (f *family) writeEndpoints(s *frontendState) {
	nodePort := s.frontend.isNodePort()
	have, haveLocal := s.applied.slots()
	want, wantLocal := s.plan().slots()
	f.writeSlots(f.sets.get(endpointElement, nodePort), s.frontend, have, want)
	f.writeSlots(f.sets.get(localEndpointElement, nodePort), s.frontend, haveLocal, wantLocal)
}

func (f *family) writeSlots(set *nft.Set, fe frontend, have, want []model.Endpoint) {
	var buf [maxElement]byte
	for slot := range max(len(have), len(want)) {
		element := nft.AppendInteger(fe.appendKey(buf[:0]), uint32(slot))
		length := len(element)
		switch {
		case slot >= len(want):
			f.draft.Remove(set, nft.Data(element))
		case slot >= len(have) || have[slot].AddrPort != want[slot].AddrPort:
			addr := want[slot].AddrPort
			both := f.addresses.keys.data(nft.AppendPort(nft.AppendAddr(element, addr.Addr()), addr.Port()))
			f.draft.Put(set, nft.Element{Key: both[:length], Value: both[length:]})
		}
	}
}

// putExceptions settles which external addresses without affinity have a recorderElement. The rules that look for a
// recorder find a node port by its number alone, for any address. So an external address with the number of a
// node port needs an element that ends the search, while the node port has affinity. If a node port got or lost
// affinity, this concerns frontends that were not touched. Nearly always there is no such node port.
func (f *family) putExceptions(touched []*frontendState) {
	switch {
	case f.clientMaps.nodePortsChanged:
		f.clientMaps.nodePortsChanged = false
		touched = slices.AppendSeq(touched, maps.Values(f.claims.frontends))
	case f.clientMaps.frontends[1] == [len(protocols)]int{}:
		return
	}
	set := f.sets.get(recorderElement, false)
	for _, s := range touched {
		p := s.applied
		if s.frontend.isNodePort() || p.isSticky() {
			continue
		}
		key, nodePort := s.frontend.key(), frontend{port: s.frontend.port, protocol: s.frontend.protocol}
		if p != nil && p.kind.isExternal() && f.claims.applied(nodePort).isSticky() {
			f.draft.Put(set, nft.Element{Key: key, Verdict: nft.Accept, Comment: p.port.comment})
		} else {
			f.draft.Remove(set, key)
		}
	}
}

// sharedAddresses writes the addresses that several Service ports may need, also ports that own no frontend: ClusterIPs,
// and the endpoints in the set hairpin. An element stays for as long as a Service port needs it.
type sharedAddresses struct {
	draft                *nft.Draft
	clusterIPs, hairpins *nft.Set
	// users counts the Service ports that need an address, if there are several. The keys are of two lengths: ClusterIPs
	// and pairs.
	users map[nft.Data]int
	// contested has, for the ClusterIPs that several Services claim, the number of Service ports of each, by comment. The
	// element has the first comment, so that the past does not count.
	contested map[nft.Data]map[string]int
	// have, want and keys are reused.
	have, want []netip.Addr
	keys       byteBlock
}

func newSharedAddresses(draft *nft.Draft, s *sets) sharedAddresses {
	return sharedAddresses{
		draft: draft, clusterIPs: s.get(clusterIPElement, false), hairpins: s.get(hairpinElement, false),
		users: map[nft.Data]int{}, contested: map[nft.Data]map[string]int{},
	}
}

// replace replaces the addresses for one state of a Service port by the addresses for another state. Either may be nil.
func (a *sharedAddresses) replace(have, want *model.ServicePort) {
	moved := have == nil || want == nil || have.ClusterIP != want.ClusterIP
	if moved && want != nil && want.ClusterIP.IsValid() {
		a.add(a.clusterIPs, a.key(want.ClusterIP, 1), a.serviceComment(want))
	}
	if moved && have != nil && have.ClusterIP.IsValid() {
		a.remove(a.clusterIPs, a.key(have.ClusterIP, 1), a.serviceComment(have))
	}
	a.have, a.want = appendHairpins(a.have[:0], have), appendHairpins(a.want[:0], want)
	for _, addr := range a.want {
		if _, both := slices.BinarySearchFunc(a.have, addr, netip.Addr.Compare); !both {
			a.add(a.hairpins, a.key(addr, 2), "")
		}
	}
	for _, addr := range a.have {
		if _, both := slices.BinarySearchFunc(a.want, addr, netip.Addr.Compare); !both {
			a.remove(a.hairpins, a.key(addr, 2), "")
		}
	}
}

// key returns an address, repeated.
func (a *sharedAddresses) key(addr netip.Addr, times int) nft.Data {
	var buf [2 * 16]byte
	key := buf[:0]
	for range times {
		key = nft.AppendAddr(key, addr)
	}
	return a.keys.data(key)
}

func (a *sharedAddresses) add(set *nft.Set, key nft.Data, comment string) {
	have, has := set.Element(key)
	if !has {
		a.draft.Put(set, nft.Element{Key: key, Comment: comment})
		return
	}
	n := max(a.users[key], 1)
	a.users[key] = n + 1
	if a.contested[key] == nil && have.Comment != comment {
		a.contested[key] = map[string]int{have.Comment: n}
	}
	a.contest(set, key, comment, 1)
}

func (a *sharedAddresses) remove(set *nft.Set, key nft.Data, comment string) {
	a.contest(set, key, comment, -1)
	switch n := a.users[key]; n {
	case 0:
		a.draft.Remove(set, key)
	case 2:
		delete(a.users, key)
	default:
		a.users[key] = n - 1
	}
}

// contest counts one Service port more or less that claims a contested ClusterIP, and brings the comment in line.
func (a *sharedAddresses) contest(set *nft.Set, key nft.Data, comment string, more int) {
	ports := a.contested[key]
	if ports == nil {
		return
	}
	if ports[comment] += more; ports[comment] == 0 {
		delete(ports, comment)
	}
	if len(ports) == 1 {
		delete(a.contested, key)
	}
	a.draft.Put(set, nft.Element{Key: key, Comment: slices.Min(slices.Collect(maps.Keys(ports)))})
}

// serviceComment names the Service, if the set of ClusterIPs counts: packets to ports that the Service does not have.
func (a *sharedAddresses) serviceComment(p *model.ServicePort) string {
	if !a.clusterIPs.Counter {
		return ""
	}
	return nft.TruncateComment(p.ID.Namespace + "/" + p.ID.Service)
}

// appendHairpins appends the endpoints to which this node may send their own packets back, if it masquerades them for no
// other reason: the endpoints of this node; and under policy Local all endpoints, because pods of other nodes can dial a
// node port here. The result is sorted, without duplicates.
func appendHairpins(to []netip.Addr, p *model.ServicePort) []netip.Addr {
	if p == nil {
		return to
	}
	for _, list := range [...][]model.Endpoint{p.Cluster, p.Local} {
		for i := range list {
			if !list[i].Remote || p.ExternalPolicy == model.PolicyLocal {
				to = append(to, list[i].AddrPort.Addr())
			}
		}
	}
	slices.SortFunc(to, netip.Addr.Compare)
	return slices.Compact(to)
}

// maxElement is the size of the key and the value of the largest element: an IPv6 frontend, a slot and an endpoint.
const maxElement = maxFrontendKey + 4 + 16 + 4

// byteBlock gives keys and values a share of a larger allocation. It is small, because one element that stays keeps the
// memory of all.
type byteBlock struct{ b strings.Builder }

const byteBlockSize = 16 * maxElement

func (b *byteBlock) data(key []byte) nft.Data {
	if b.b.Cap()-b.b.Len() < len(key) {
		b.b.Reset()
		b.b.Grow(byteBlockSize)
	}
	from := b.b.Len()
	b.b.Write(key)
	return nft.Data(b.b.String()[from:])
}
