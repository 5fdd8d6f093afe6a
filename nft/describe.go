package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// describe prints what a message asks for, reduced to the element at the offset that an
// extended acknowledgement names, if it names one.
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
			s.Elements, s.All = []Element{e}, false
			return s.elementLine()
		}
		if s.Len() > 1 {
			return s.elementsSummary()
		}
		return s.elementLine()
	}
	return s.String()
}

func (s Step) elementLine() string {
	where := stepNames[s.Op] + " " + s.Table.Family.String() + " " + s.Table.Name + " " + s.Set.Name
	if s.Op == DeleteElements {
		return where + " { " + s.Set.formatKey(s.first()) + " }"
	}
	return where + " { " + s.Set.FormatElement(s.first()) + " }"
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

func (s Step) elementsSummary() string {
	line := s.elementLine()
	return line[:len(line)-2] + ", … }"
}

// elementAt finds the element whose attributes cover the offset in the message's data.
func (m *message) elementAt(offset int) (e Element, ok bool) {
	data := m.Data
	at := nfgenmsgLen
	for at+attrHeader <= len(data) {
		length := int(binary.NativeEndian.Uint16(data[at:]))
		typ := binary.NativeEndian.Uint16(data[at+2:]) & attrTypeMask
		if length < attrHeader || at+length > len(data) {
			return e, false
		}
		if typ == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return elementIn(data[at+attrHeader:at+length], offset-at-attrHeader)
		}
		at += padded(length)
	}
	return e, false
}

func elementIn(list []byte, offset int) (e Element, ok bool) {
	if offset < 0 {
		return e, false
	}
	at := 0
	_ = eachAttribute(list, func(_ uint16, b []byte) error {
		if !ok && offset < at+attrHeader+len(b) {
			var err error
			e, err = decodeElement(b)
			ok = err == nil
		}
		at += padded(attrHeader + len(b))
		return nil
	})
	return e, ok
}
