package compiler

import (
	"maps"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// store is the only writer of elements and affinity. It keeps a record in the draft for as long as somebody needs it.
type store struct {
	draft *nft.Draft
	sets  *sets
	// more counts, of the addresses that several Service ports need, all ports but the first. The keys are of two lengths:
	// ClusterIPs and pairs.
	more map[nft.Data]int
	// contested has, of the ClusterIPs that several Services claim, the Service ports of each. The element names the Service
	// that comes first, so that the past does not count.
	contested map[nft.Data]map[string]int
	chains    *endpointChains
	affinity  *affinityState
	// have, want and bytes are reused.
	have, want []record
	bytes      byteBlock
}

// replace brings the table from the records in have, those of a frontend or a Service port, to those in want, and empties
// both. Records in both cost nothing. It adds before it removes, so what stays with another user never goes in between.
func (s *store) replace() {
	have, want := s.have, s.want
	gone, i := have[:0], 0
	for w := range want {
		for i < len(have) && compareRecords(&have[i], &want[w]) < 0 {
			gone = append(gone, have[i])
			i++
		}
		if i == len(have) || compareRecords(&have[i], &want[w]) > 0 {
			s.add(&want[w])
			continue
		}
		if have[i] != want[w] {
			if want[w].kind == serviceRecord && s.set(&have[i]) != s.set(&want[w]) {
				s.take(&have[i])
			}
			s.add(&want[w])
		}
		i++
	}
	gone = append(gone, have[i:]...)
	for i := range gone {
		s.remove(&gone[i])
	}
	s.have, s.want = have[:0], want[:0]
}

func (s *store) replaceLists(fe frontend, have, want plan) {
	s.have, s.want = appendListRecords(s.have, have, fe), appendListRecords(s.want, want, fe)
	s.replace()
}

// replaceDecisions brings all other records of a frontend from one plan to another.
func (s *store) replaceDecisions(fe frontend, have, want plan, config *Config) {
	s.have, s.want = appendRecords(s.have, have, fe, config), appendRecords(s.want, want, fe, config)
	s.replace()
}

func (s *store) set(r *record) *nft.Set {
	if r.kind == serviceRecord {
		if set := s.chains.setOf(r.chain); set != nil {
			return set
		}
	}
	return s.sets.of(r.kind, r.frontend.isNodePort())
}

func (s *store) put(r *record) {
	e := r.element(&s.bytes, s.chains.name)
	set := s.set(r)
	if r.kind == serviceRecord && !set.Verdicts {
		e.Verdict = nft.Verdict{} // the set of a chain
	}
	s.draft.Put(set, e)
}

func (s *store) take(r *record) { s.draft.Remove(s.set(r), r.element(&s.bytes, s.chains.name).Key) }

// add puts a record, in the place of another state of it.
func (s *store) add(r *record) {
	switch r.kind {
	case clusterIPRecord, hairpinRecord:
		e := r.element(&s.bytes, nil)
		have, has := s.set(r).Element(e.Key)
		if !has {
			s.draft.Put(s.set(r), e)
			return
		}
		if s.contested[e.Key] == nil && have.Comment != e.Comment {
			s.contested[e.Key] = map[string]int{have.Comment: s.more[e.Key] + 1}
		}
		s.more[e.Key]++
		s.contest(r, e, 1)
	case affinityRecord:
		s.noteNodePort(r)
		s.putAffinity(r)
	case affinityMapRecord:
		s.affinity.putMap(r.port, r.list)
	case affinityKnownRecord:
		s.affinity.putKnown(r.port, r.chain.kind)
	default:
		s.put(r)
	}
}

func (s *store) remove(r *record) {
	switch r.kind {
	case clusterIPRecord, hairpinRecord:
		e := r.element(&s.bytes, nil)
		s.contest(r, e, -1)
		key := e.Key
		switch n := s.more[key]; n {
		case 0:
			s.draft.Remove(s.set(r), key)
		case 1:
			delete(s.more, key)
		default:
			s.more[key] = n - 1
		}
	case affinityRecord:
		s.noteNodePort(r)
		s.take(r)
	case affinityMapRecord:
		s.affinity.removeMap(r.port, r.list)
	case affinityKnownRecord:
		s.affinity.removeKnown(r.port, r.chain.kind)
	default:
		s.take(r)
	}
}

// contest counts one claim of a Service to a contested ClusterIP more or less, and brings the name in line.
func (s *store) contest(r *record, e nft.Element, more int) {
	names := s.contested[e.Key]
	if names == nil {
		return
	}
	if names[e.Comment] += more; names[e.Comment] == 0 {
		delete(names, e.Comment)
	}
	e.Comment = slices.Min(slices.Collect(maps.Keys(names)))
	if len(names) == 1 {
		delete(s.contested, e.Key)
	}
	if have, _ := s.set(r).Element(e.Key); have.Comment != e.Comment {
		s.draft.Put(s.set(r), e)
	}
}

// putAffinity puts the element of an affinityRecord. Rules find node ports by their number alone. So an external address
// without affinity has an element that ends the search, while the node port of that number has affinity: see
// family.putExceptions.
func (s *store) putAffinity(r *record) {
	nodePort := frontend{port: r.frontend.port, protocol: r.frontend.protocol}
	if _, has := s.sets.of(affinityRecord, true).Element(nodePort.key()); has || r.affinity != "" {
		s.put(r)
	} else {
		s.take(r)
	}
}

func (s *store) noteNodePort(r *record) {
	if r.frontend.isNodePort() {
		s.affinity.nodePorts[r.frontend] = true
	}
}

// byteBlock gives keys and values a share of a larger allocation. It is small, because one element that stays keeps the
// memory of all.
type byteBlock struct{ b strings.Builder }

const byteBlockSize = 16 * maxElement

func (b *byteBlock) data(bytes []byte) nft.Data {
	if b.b.Cap()-b.b.Len() < len(bytes) {
		b.b.Reset()
		b.b.Grow(byteBlockSize)
	}
	from := b.b.Len()
	b.b.Write(bytes)
	return nft.Data(b.b.String()[from:])
}
