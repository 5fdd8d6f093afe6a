package nft

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// encodeElements returns the messages of a step on elements. setID is the number of the set if the transaction adds it,
// otherwise 0.
func encodeElements(s Step, setID uint32) (messages []message, err error) {
	typ, flags := uint16(unix.NFT_MSG_NEWSETELEM), netlink.Create
	if s.Op == DeleteElements {
		typ, flags = unix.NFT_MSG_DELSETELEM, 0
	}
	lengths := s.Set.lengths()
	var a netlinkattr.List
	var list int
	begin := func(left int) {
		a = start(s.Table.Family, s.Table.Name, min(maxMessage, 256+160*left))
		a.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Set.Name)
		if setID != 0 {
			a.Uint32(unix.NFTA_SET_ELEM_LIST_SET_ID, setID)
		}
		list = a.Begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	finish := func() {
		a.End(list)
		messages = append(messages, newMessage(s, typ, flags, a))
	}
	left := s.Len()
	for element := range s.EachElement() {
		if err := lengths.check(s.Set, &element, s.Op == AddElements); err != nil {
			return nil, fmt.Errorf("nft: %s %s %s %s: %w", s.Set.Kind(), s.Table.Family, s.Table.Name, s.Set.Name, err)
		}
		if a == nil {
			begin(left)
		}
		at := len(a)
		encodeElement(&a, s.Set, lengths, &element, s.Op == AddElements)
		if len(a)-list > maxList {
			last := a[at:]
			a = a[:at]
			finish()
			begin(left)
			a = append(a, last...)
		}
		left--
	}
	if a != nil {
		finish()
	}
	return messages, nil
}

// maxList bounds the element list of one message, with its header: the length of a netlink attribute has 16 bits, and
// maxMessage, which wastes no part of a page, has room for a header and one element more. The largest element takes less
// than 1,024 bytes: two keys of 64 bytes, a verdict with a chain's name, a comment, a timeout.
const (
	maxMessage = 1 << 16
	maxList    = maxMessage - 2048
)

// setLengths are the lengths of the keys and values of a set, as Data (key, value) and as the kernel is told (keyTold,
// valueTold: a field that stands alone is not padded).
type setLengths struct{ key, keyTold, value, valueTold int }

func (s *Set) lengths() setLengths {
	return setLengths{s.Key.Len(), s.Key.keyLen(), s.Data.Len(), s.Data.keyLen()}
}

// check refuses an element that the set cannot hold. The kernel would refuse it with nothing but an errno.
func (l setLengths) check(s *Set, e *Element, withValue bool) error {
	if err := l.checkKey(s, e); err != nil || !withValue {
		return err
	}
	switch {
	case s.Verdicts && !e.Verdict.Kind.known():
		return fmt.Errorf("element %s has no verdict", s.formatKey(*e))
	case len(e.Verdict.Chain) > maxName:
		return fmt.Errorf("element %s: %w", s.formatKey(*e), checkText("chain", e.Verdict.Chain, maxName))
	case len(e.Value) != l.value:
		return fmt.Errorf("element %s: value has %d bytes, want %d", s.formatKey(*e), len(e.Value), l.value)
	}
	return nil
}

func (l setLengths) checkKey(s *Set, e *Element) error {
	switch {
	case e.Key == CatchAll:
	case len(e.Key) != l.key:
		return fmt.Errorf("element key has %d bytes, want %d for %s", len(e.Key), l.key, s.Key)
	case s.Interval && len(e.KeyEnd) != len(e.Key):
		return fmt.Errorf("element %s: the end of its range has %d bytes, want %d",
			s.Key.Format(e.Key), len(e.KeyEnd), len(e.Key))
	}
	return nil
}

func encodeElement(a *netlinkattr.List, s *Set, l setLengths, e *Element, withValue bool) {
	elem := a.Begin(unix.NFTA_LIST_ELEM)
	if e.Key == CatchAll {
		a.Uint32(unix.NFTA_SET_ELEM_FLAGS, netlinkattr.SetElemFlagCatchAll)
	} else {
		encodeKey(a, s, l, e)
	}
	if withValue {
		encodeValue(a, s, l, e)
	}
	a.End(elem)
}

func encodeKey(a *netlinkattr.List, s *Set, l setLengths, e *Element) {
	key := a.Begin(unix.NFTA_SET_ELEM_KEY)
	a.ByteString(unix.NFTA_DATA_VALUE, string(e.Key)[:l.keyTold])
	a.End(key)
	if s.Interval {
		end := a.Begin(netlinkattr.SetElemKeyEnd)
		a.ByteString(unix.NFTA_DATA_VALUE, string(e.KeyEnd))
		a.End(end)
	}
}

func encodeValue(a *netlinkattr.List, s *Set, l setLengths, e *Element) {
	if s.IsMap() {
		data := a.Begin(unix.NFTA_SET_ELEM_DATA)
		if s.Verdicts {
			encodeVerdict(a, e.Verdict)
		} else {
			a.ByteString(unix.NFTA_DATA_VALUE, string(e.Value)[:l.valueTold])
		}
		a.End(data)
	}
	if e.Timeout > 0 {
		a.Uint64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(e.Timeout.Milliseconds()))
		a.Uint64(unix.NFTA_SET_ELEM_EXPIRATION, uint64(e.Expires.Milliseconds()))
	}
	if e.Comment != "" {
		at := a.BeginBytes(unix.NFTA_SET_ELEM_USERDATA)
		*a = appendUdataString(*a, udataComment, e.Comment)
		a.End(at)
	}
}

func encodeVerdict(a *netlinkattr.List, v Verdict) {
	nest := a.Begin(unix.NFTA_DATA_VERDICT)
	a.Uint32(unix.NFTA_VERDICT_CODE, uint32(v.Kind.kernel()))
	if v.Chain != "" {
		a.Text(unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	a.End(nest)
}
