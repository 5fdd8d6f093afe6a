package evaluator

import (
	"errors"
	"fmt"

	"github.com/nftproxy/nftproxy/nft"
)

// Added is an element that packets added to a dynamic map: to hold a client to its
// endpoint, for instance.
type Added struct {
	Family nft.Family
	// Table and Map are the names of the table and of the map in it.
	Table, Map string
	Element    nft.Element
}

func (l Added) isOf(r *ruleset, set *nft.Set) bool {
	return l.Family == r.Family && l.Table == r.Name && l.Map == set.Name
}

// addedElement returns the element that packets added last to a map under a key.
func (s *statements) addedElement(set *nft.Set, key nft.Data) (nft.Element, bool) {
	for i := len(s.added) - 1; i >= 0; i-- {
		if l := s.added[i]; l.isOf(s.ruleset, set) && l.Element.Key == key {
			return l.Element, true
		}
	}
	return nft.Element{}, false
}

// addedElements returns all elements that packets added to a map.
func (s *statements) addedElements(set *nft.Set) []nft.Element {
	var out []nft.Element
	for _, l := range s.added {
		if l.isOf(s.ruleset, set) {
			out = append(out, l.Element)
		}
	}
	return out
}

// update adds an element to a dynamic map. An element that is there keeps its data and starts its time
// anew. A full map takes no more, which ends the rule (net/netfilter/nft_dynset.c).
func (s *statements) update(u nft.Update) (matched bool, err error) {
	set := s.sets[u.Map]
	if set == nil || !set.Dynamic {
		return false, fmt.Errorf("there is no dynamic map %s", u.Map)
	}
	k, err := s.evaluate(u.Key)
	if err != nil {
		return false, err
	}
	data, err := s.evaluate(u.Data)
	if err != nil {
		return false, err
	}
	if len(k.data) != set.Key.Len() || len(data.data) != set.Data.Len() {
		return false, fmt.Errorf("%s does not map %s to %s", u.Map, u.Key, u.Data)
	}
	for _, unknown := range []string{k.unknown, data.unknown} {
		if unknown != "" {
			return false, errors.New(unknown)
		}
	}
	e, found := s.find(set, k)
	if !found {
		if s.full(set) {
			return false, nil
		}
		e = nft.Element{Key: k.data, Value: data.data}
	}
	e.Timeout, e.Expires = u.Timeout, u.Timeout
	added := Added{Family: s.Family, Table: s.Name, Map: u.Map, Element: e}
	s.added = append(s.added, added)
	s.fate.Added = append(s.fate.Added, added)
	s.elements = append(s.elements, set.FormatElement(e))
	return true, nil
}

// full reports whether a dynamic map has no room left.
func (s *statements) full(set *nft.Set) bool {
	size := int(set.Size)
	if size == 0 {
		size = 1<<16 - 1
	}
	keys := map[nft.Data]bool{}
	for _, e := range append(s.addedElements(set), set.Elements()...) {
		keys[e.Key] = true
	}
	return len(keys) >= size
}
