package nft

import (
	"fmt"
	"strings"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// describe prints the step of a message, reduced to its rule, or to the element at the offset that an extended
// acknowledgement names. If it names none, the first element stands for all of the step.
func (m *message) describe(offset int) string {
	s := m.step
	switch s.Op {
	case DestroyTable:
		s.Op = DeleteTable
	case AddRules:
		chain := *s.Chain
		chain.Rules = chain.Rules[m.rule : m.rule+1]
		s.Chain = &chain
	case AddElements, DeleteElements:
		if e, ok := m.elementAt(offset - unix.NLMSG_HDRLEN); ok {
			return s.elementLine(e, "")
		}
		more := ""
		if s.Len() > 1 {
			more = ", …"
		}
		return s.elementLine(s.first(), more)
	}
	return s.String()
}

func (s Step) elementLine(e Element, more string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s %s { ", stepNames[s.Op], s.Table.Family, s.Table.Name, s.Set.Name)
	s.appendElement(&b, e)
	return b.String() + more + " }"
}

// first returns the first element in the order of keys.
func (s Step) first() (first Element) {
	none := true
	for e := range s.EachElement() {
		if none || compareElements(e, first) < 0 {
			first, none = e, false
		}
	}
	return first
}

// elementAt finds the element whose attributes cover the offset in the message's data.
func (m *message) elementAt(offset int) (Element, bool) {
	list, inside, ok := netlinkattr.At(m.Data[nfgenmsgLen:], offset-nfgenmsgLen)
	if !ok {
		return Element{}, false
	}
	element, _, ok := netlinkattr.At(list, inside)
	if !ok {
		return Element{}, false
	}
	e, err := decodeElement(element)
	return e, err == nil
}
