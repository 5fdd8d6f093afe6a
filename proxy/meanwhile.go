package proxy

import "github.com/nftproxy/nftproxy/nft"

// meanwhile records the objects and elements that were committed while a comparison with the kernel ran. Differences in
// them are ignored: the comparison may have read them before the commit or after it. A nil *meanwhile records nothing.
type meanwhile struct {
	elements map[elementID]bool
	// objects holds chains and sets.
	objects map[objectID]bool
	// all says that a table was replaced, or that more than maxMeanwhile elements were changed.
	all bool
}

type objectID struct {
	family nft.Family
	kind   string
	name   string
}

type elementID struct {
	family nft.Family
	set    string
	key    nft.Data
}

// maxMeanwhile bounds how many elements are noted.
const maxMeanwhile = 100_000

func newMeanwhile() *meanwhile {
	return &meanwhile{elements: map[elementID]bool{}, objects: map[objectID]bool{}}
}

func (m *meanwhile) note(tx nft.Transaction) {
	if m == nil {
		return
	}
	for _, s := range tx.Steps {
		switch {
		case s.Chain != nil || s.Set != nil && s.Len() == 0:
			m.objects[objectOf(s)] = true
		case s.Set != nil:
			m.noteElements(s)
		default:
			m.all = true
		}
	}
}

func (m *meanwhile) noteElements(s nft.Step) {
	if len(m.elements)+s.Len() > maxMeanwhile {
		m.all = true
		return
	}
	for e := range s.EachElement() {
		m.elements[elementID{s.Table.Family, s.Set.Name, e.Key}] = true
	}
}

func objectOf(s nft.Step) objectID {
	if s.Chain != nil {
		return objectID{s.Table.Family, "chain", s.Chain.Name}
	}
	return objectID{s.Table.Family, "set", s.Set.Name}
}

// without returns a transaction without the steps and elements on objects and elements that were noted.
func (m *meanwhile) without(tx nft.Transaction) (rest nft.Transaction) {
	for _, s := range tx.Steps {
		if (s.Chain != nil || s.Set != nil) && m.objects[objectOf(s)] {
			continue
		}
		if s.Len() > 0 {
			var elements []nft.Element
			for e := range s.EachElement() {
				if !m.elements[elementID{s.Table.Family, s.Set.Name, e.Key}] {
					elements = append(elements, e)
				}
			}
			if len(elements) == 0 {
				continue
			}
			s.Elements, s.All = elements, false
		}
		rest.Steps = append(rest.Steps, s)
	}
	return rest
}
