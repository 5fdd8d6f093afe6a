package evaluator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// Added is an element that a packet added to a dynamic map, such as a client and its endpoint in a map of session
// affinity.
type Added struct {
	// Family is that of the table.
	Family nft.Family
	// Table and Map are the names of the table and of the map in it.
	Table, Map string
	// Element has the key, the value and the timeout.
	Element nft.Element
}

func (a Added) isOf(t *nft.Table, set *nft.Set) bool {
	return a.Family == t.Family && a.Table == t.Name && a.Map == set.Name
}

// addedElement returns the element with the key that packets added last to a map.
func (s *statements) addedElement(set *nft.Set, key nft.Data) (nft.Element, bool) {
	for _, e := range slices.Backward(s.addedElements(set)) {
		if e.Key == key {
			return e, true
		}
	}
	return nft.Element{}, false
}

// addedElements returns all elements that packets added to a map.
func (s *statements) addedElements(set *nft.Set) []nft.Element {
	var out []nft.Element
	for _, a := range s.added {
		if a.isOf(s.Table, set) {
			out = append(out, a.Element)
		}
	}
	return out
}

// update adds an element to a dynamic map or set. If it has the key, the element keeps its data, and its timeout starts
// anew. If the map is full, nothing is added, and the rule ends (net/netfilter/nft_dynset.c).
func (s *statements) update(u nft.Update) (matched bool, err error) {
	set, e, err := s.element(u.Map, u.Key, u.Data)
	if err != nil {
		return false, err
	}
	if there, found := s.find(set, key{data: e.Key}); found {
		e = there
	} else if s.full(set) {
		return false, nil
	}
	e.Timeout, e.Expires = u.Timeout, u.Timeout
	added := Added{Family: s.Family, Table: s.Name, Map: u.Map, Element: e}
	s.added = append(s.added, added)
	s.fate.Added = append(s.fate.Added, added)
	s.elements = append(s.elements, set.FormatElement(e))
	return true, nil
}

// deleteAdded removes an element that a packet added to a dynamic set. One that was there before stays: the next packet
// may be another one.
func (s *statements) deleteAdded(d nft.Delete) error {
	set, e, err := s.element(d.Set, d.Key, nil)
	if err != nil {
		return err
	}
	isIt := func(a Added) bool { return a.isOf(s.Table, set) && a.Element.Key == e.Key }
	s.added = slices.DeleteFunc(slices.Clone(s.added), isIt)
	return nil
}

// element returns a dynamic map or set, and an element of it with the packet's key and data, nil for a set.
func (s *statements) element(name string, key, data nft.Concat) (set *nft.Set, e nft.Element, err error) {
	if set = s.Set(name); set == nil || !set.Dynamic {
		return nil, e, fmt.Errorf("there is no dynamic map or set %s", name)
	}
	k, keyErr := s.evaluate(key)
	d, dataErr := s.evaluate(data)
	switch err, unknown := errors.Join(keyErr, dataErr), cmp.Or(k.unknown, d.unknown); {
	case err != nil:
		return nil, e, err
	case len(k.data) != set.Key.Len() || len(d.data) != set.Data.Len():
		return nil, e, fmt.Errorf("%s does not map %s to %s", name, key, data)
	case unknown != "":
		return nil, e, errors.New(unknown)
	}
	return set, nft.Element{Key: k.data, Value: d.data}, nil
}

// full reports whether a dynamic map has no room left.
func (s *statements) full(set *nft.Set) bool {
	keys := map[nft.Data]bool{}
	for _, e := range append(s.addedElements(set), set.Elements()...) {
		keys[e.Key] = true
	}
	return len(keys) >= int(cmp.Or(set.Size, nft.DefaultSize))
}
