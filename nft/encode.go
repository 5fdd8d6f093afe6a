package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// message is one netlink message of a batch with the step it comes from, for error reports.
type message struct {
	netlink.Message
	step Step
	// rule is the index of the rule in step.Chain, for AddRules.
	rule int
}

// encode returns the messages for the transaction, without the batch's begin and end, as all kernels understand them.
func (tx *Transaction) encode() ([]message, error) { return tx.encodeFor(false) }

// encodeFor encodes for kernels that can destroy tables, or for those that cannot.
func (tx *Transaction) encodeFor(canDestroy bool) ([]message, error) {
	e := encoder{setIDs: map[*Set]uint32{}, canDestroy: canDestroy}
	for _, s := range tx.Steps {
		if err := e.step(s); err != nil {
			return nil, err
		}
	}
	return e.out, nil
}

type encoder struct {
	out    []message
	setIDs map[*Set]uint32
	// canDestroy says that the kernel has NFT_MSG_DESTROYTABLE.
	canDestroy bool
}

// maxList bounds the element list of one message: the length of a netlink attribute is 16
// bits, and the largest element (two IPv6 addresses, ports, a slot and a full comment) stays below 512.
const maxList = 1<<16 - 1 - 512

func (e *encoder) message(s Step, typ uint16, flags netlink.HeaderFlags, data attributes) {
	e.out = append(e.out, message{step: s, Message: netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   data,
	}})
}

// start begins a message's data: the nfgenmsg header, which carries the family.
func start(t *Table, capacity int) attributes {
	a := make(attributes, 0, capacity)
	return append(a, uint8(t.Family), unix.NFNETLINK_V0, 0, 0)
}

func (e *encoder) step(s Step) error {
	if err := s.checkNames(); err != nil {
		return err
	}
	a := start(s.Table, 256)
	switch s.Op {
	case AddTable, AdoptTable:
		e.addTable(s, a)
	case DeleteTable:
		a.str(unix.NFTA_TABLE_NAME, s.Table.Name)
		e.message(s, unix.NFT_MSG_DELTABLE, 0, a)
	case DestroyTable:
		e.destroyTable(s, a)
	case AddSet:
		e.addSet(s, a)
	case DeleteSet:
		a.str(unix.NFTA_SET_TABLE, s.Table.Name)
		a.str(unix.NFTA_SET_NAME, s.Set.Name)
		e.message(s, unix.NFT_MSG_DELSET, 0, a)
	case AddChain:
		if s.Chain.Hook != "" && !slices.Contains(hookNumbers, s.Chain.Hook) {
			return fmt.Errorf("nft: chain %s %s %s: unknown hook %q", s.Table.Family, s.Table.Name, s.Chain.Name, s.Chain.Hook)
		}
		e.addChain(s, a)
	case DeleteChain:
		a.str(unix.NFTA_CHAIN_TABLE, s.Table.Name)
		a.str(unix.NFTA_CHAIN_NAME, s.Chain.Name)
		e.message(s, unix.NFT_MSG_DELCHAIN, 0, a)
	case FlushChain:
		a.str(unix.NFTA_RULE_TABLE, s.Table.Name)
		a.str(unix.NFTA_RULE_CHAIN, s.Chain.Name)
		e.message(s, unix.NFT_MSG_DELRULE, 0, a)
	case AddRules:
		return e.addRules(s)
	case AddElements, DeleteElements:
		return e.elements(s)
	case DeleteObject:
		e.deleteObject(s, a)
	}
	return nil
}

func (e *encoder) addTable(s Step, a attributes) {
	a.str(unix.NFTA_TABLE_NAME, s.Table.Name)
	a.u32(unix.NFTA_TABLE_FLAGS, s.Table.flags())
	if s.Table.Comment != "" {
		a.bytes(nftaTableUserdata, string(appendUdataString(nil, udataTableComment, s.Table.Comment)))
	}
	e.message(s, unix.NFT_MSG_NEWTABLE, netlink.Create, a)
}

// destroyTable deletes a table that may not be there. Kernels before 6.3 cannot say that; there, adding the table
// first makes the deletion succeed. On later ones that would fail if the table has flags that it is not added with.
func (e *encoder) destroyTable(s Step, a attributes) {
	a.str(unix.NFTA_TABLE_NAME, s.Table.Name)
	if e.canDestroy {
		e.message(s, nftMsgDestroyTable, 0, a)
		return
	}
	e.message(s, unix.NFT_MSG_NEWTABLE, netlink.Create, a)
	e.message(s, unix.NFT_MSG_DELTABLE, 0, a)
}

func (e *encoder) addSet(s Step, a attributes) {
	set := s.Set
	id := uint32(len(e.setIDs) + 1)
	e.setIDs[set] = id
	a.str(unix.NFTA_SET_TABLE, s.Table.Name)
	a.str(unix.NFTA_SET_NAME, set.Name)
	flags := uint32(0)
	if set.IsMap() {
		flags |= unix.NFT_SET_MAP
	}
	if set.Interval {
		flags |= intervalFlags
	}
	if set.Dynamic {
		flags |= dynamicFlags
	}
	a.u32(unix.NFTA_SET_FLAGS, flags)
	a.u32(unix.NFTA_SET_KEY_TYPE, set.Key.typeID())
	a.u32(unix.NFTA_SET_KEY_LEN, uint32(set.Key.keyLen()))
	switch {
	case set.Verdicts:
		a.u32(unix.NFTA_SET_DATA_TYPE, verdictType)
		a.u32(unix.NFTA_SET_DATA_LEN, 0)
	case set.Data != nil:
		a.u32(unix.NFTA_SET_DATA_TYPE, set.Data.typeID())
		a.u32(unix.NFTA_SET_DATA_LEN, uint32(set.Data.keyLen()))
	}
	a.description(set)
	a.u32(unix.NFTA_SET_ID, id)
	a.bytes(unix.NFTA_SET_USERDATA, string(set.userdata()))
	e.message(s, unix.NFT_MSG_NEWSET, netlink.Create, a)
}

// description tells the kernel the size of a set, if it has one, and where the fields of a key are, without which it
// cannot take a range in one of them.
func (a *attributes) description(set *Set) {
	size := set.Size
	if set.Dynamic && size == DefaultSize {
		size = 0 // what the kernel makes of 0, without the hash buckets for all of it
	}
	if !set.Interval && size == 0 {
		return
	}
	desc := a.begin(unix.NFTA_SET_DESC)
	if size > 0 {
		a.u32(unix.NFTA_SET_DESC_SIZE, size)
	}
	if set.Interval {
		concat := a.begin(nftaSetDescConcat)
		for _, e := range set.Key {
			field := a.begin(unix.NFTA_LIST_ELEM)
			a.u32(nftaSetFieldLen, uint32(e.dataType().length))
			a.end(field)
		}
		a.end(concat)
	}
	a.end(desc)
}

// intervalFlags are the flags of a set with Interval.
const intervalFlags = unix.NFT_SET_INTERVAL | nftSetConcat

// dynamicFlags are the flags of a Dynamic set.
const dynamicFlags = unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT

// NFTA_SET_DESC_CONCAT and NFTA_SET_FIELD_LEN (kernel 5.6), NFTA_SET_ELEM_KEY_END.
const (
	nftaSetDescConcat = 2
	nftaSetFieldLen   = 1
	nftaSetElemKeyEnd = 10
)

func (e *encoder) addChain(s Step, a attributes) {
	c := s.Chain
	a.str(unix.NFTA_CHAIN_TABLE, s.Table.Name)
	a.str(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != "" {
		nest := a.begin(unix.NFTA_CHAIN_HOOK)
		a.u32(unix.NFTA_HOOK_HOOKNUM, uint32(slices.Index(hookNumbers, c.Hook)))
		a.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
		a.end(nest)
		policy := uint32(nfAccept)
		if c.DropPolicy {
			policy = nfDrop
		}
		a.u32(unix.NFTA_CHAIN_POLICY, policy)
		a.str(unix.NFTA_CHAIN_TYPE, string(c.Type))
	}
	if c.Comment != "" {
		a.bytes(nftaChainUserdata, string(appendUdataString(nil, udataChainComment, c.Comment)))
	}
	e.message(s, unix.NFT_MSG_NEWCHAIN, netlink.Create, a)
}

// What x/sys/unix has no name for: NFTA_TABLE_USERDATA and NFTA_CHAIN_USERDATA (kernel 5.10), NFTA_TABLE_OWNER (kernel
// 5.12), NF_DROP and NF_ACCEPT, NFT_SET_CONCAT (kernel 5.6), NFT_MSG_DESTROYTABLE (kernel 6.3).
const (
	nftMsgDestroyTable = 26

	nftaTableUserdata = 6
	nftaTableOwner    = 7
	nftaChainUserdata = 12
	nfDrop            = 0
	nfAccept          = 1
	nftSetConcat      = 0x80
)

func (e *encoder) addRules(s Step) error {
	for i, r := range s.Chain.Rules {
		a := start(s.Table, 512)
		a.str(unix.NFTA_RULE_TABLE, s.Table.Name)
		a.str(unix.NFTA_RULE_CHAIN, s.Chain.Name)
		nest := a.begin(unix.NFTA_RULE_EXPRESSIONS)
		if err := a.expressions(s.Table.Family, r); err != nil {
			return fmt.Errorf("nft: rule %d of chain %s %s %s: %w", i+1, s.Table.Family, s.Table.Name, s.Chain.Name, err)
		}
		a.end(nest)
		if r.Comment != "" {
			a.bytes(unix.NFTA_RULE_USERDATA, string(appendUdataString(nil, udataRuleComment, r.Comment)))
		}
		e.message(s, unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, a)
		e.out[len(e.out)-1].rule = i
	}
	return nil
}

// expressions appends the kernel's expressions of a rule. The rules are few and their
// number does not grow with the cluster, so google/nftables encodes them.
func (a *attributes) expressions(family Family, r Rule) error {
	for _, s := range r.Statements {
		if u, ok := s.(Unknown); ok {
			return fmt.Errorf("%q was read from the kernel and cannot be written back", u)
		}
		if m, ok := s.(MatchIfname); ok {
			if err := m.check(); err != nil {
				return err
			}
		}
		if v, ok := s.(Verdict); ok && v.Kind == 0 {
			return errors.New("a verdict that says nothing")
		}
	}
	for _, x := range r.linearize() {
		b, err := expr.Marshal(byte(family), x)
		if err != nil {
			return err
		}
		a.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, string(b))
	}
	return nil
}

func (e *encoder) elements(s Step) error {
	typ, flags := uint16(unix.NFT_MSG_NEWSETELEM), netlink.Create
	if s.Op == DeleteElements {
		typ, flags = unix.NFT_MSG_DELSETELEM, 0
	}
	lengths := s.Set.lengths()
	var a attributes
	list := -1
	finish := func() {
		if list >= 0 {
			a.end(list)
			e.message(s, typ, flags, a)
			list = -1
		}
	}
	left := s.Len()
	for element := range s.EachElement() {
		if err := lengths.check(s.Set, &element, s.Op == AddElements); err != nil {
			return fmt.Errorf("nft: %s %s %s %s: %w", s.Set.Kind(), s.Table.Family, s.Table.Name, s.Set.Name, err)
		}
		if list >= 0 && len(a)-list > maxList {
			finish()
		}
		if list < 0 {
			a = start(s.Table, min(1<<16+256, 256+160*left))
			a.str(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
			a.str(unix.NFTA_SET_ELEM_LIST_SET, s.Set.Name)
			if id := e.setIDs[s.Set]; id != 0 {
				a.u32(unix.NFTA_SET_ELEM_LIST_SET_ID, id)
			}
			list = a.begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		}
		a.element(s.Set, lengths, &element, s.Op == AddElements)
		left--
	}
	finish()
	return nil
}

// setLengths is how long the keys and values of a set are, as Data and as the kernel is told.
type setLengths struct{ key, keyTold, value, valueTold int }

func (s *Set) lengths() setLengths {
	return setLengths{s.Key.Len(), s.Key.keyLen(), s.Data.Len(), s.Data.keyLen()}
}

// check refuses an element that the set cannot hold, before the kernel does with a mere number.
func (l setLengths) check(s *Set, e *Element, withValue bool) error {
	if err := l.checkKey(s, e); err != nil || !withValue {
		return err
	}
	switch {
	case s.Verdicts && e.Verdict.Kind == 0:
		return fmt.Errorf("element %s has no verdict", s.formatKey(*e))
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
		return fmt.Errorf("element %s: the end of its range has %d bytes, want %d", s.Key.Format(e.Key), len(e.KeyEnd), len(e.Key))
	}
	return nil
}

func (a *attributes) element(s *Set, l setLengths, e *Element, withValue bool) {
	elem := a.begin(unix.NFTA_LIST_ELEM)
	if e.Key == CatchAll {
		a.u32(unix.NFTA_SET_ELEM_FLAGS, elemCatchAll)
	} else {
		a.key(s, l, e)
	}
	if withValue {
		a.value(s, l, e)
	}
	a.end(elem)
}

func (a *attributes) key(s *Set, l setLengths, e *Element) {
	key := a.begin(unix.NFTA_SET_ELEM_KEY)
	a.bytes(unix.NFTA_DATA_VALUE, string(e.Key)[:l.keyTold])
	a.end(key)
	if s.Interval {
		end := a.begin(nftaSetElemKeyEnd)
		a.bytes(unix.NFTA_DATA_VALUE, string(e.KeyEnd))
		a.end(end)
	}
}

func (a *attributes) value(s *Set, l setLengths, e *Element) {
	if s.IsMap() {
		data := a.begin(unix.NFTA_SET_ELEM_DATA)
		if s.Verdicts {
			a.verdict(e.Verdict)
		} else {
			a.bytes(unix.NFTA_DATA_VALUE, string(e.Value)[:l.valueTold])
		}
		a.end(data)
	}
	if e.Timeout > 0 {
		a.milliseconds(unix.NFTA_SET_ELEM_TIMEOUT, e.Timeout)
		a.milliseconds(unix.NFTA_SET_ELEM_EXPIRATION, e.Expires)
	}
	if e.Comment != "" {
		at := len(*a)
		a.header(unix.NFTA_SET_ELEM_USERDATA, 0)
		*a = appendUdataString(*a, udataElementComment, e.Comment)
		a.end(at)
		a.pad()
	}
}

func (a *attributes) verdict(v Verdict) {
	nest := a.begin(unix.NFTA_DATA_VERDICT)
	a.u32(unix.NFTA_VERDICT_CODE, uint32(v.kernel()))
	if v.Chain != "" {
		a.str(unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	a.end(nest)
}

// userdata describes the set to nft, exactly as nft itself would when given the set's text.
func (s *Set) userdata() []byte {
	b := appendUdataU32(nil, udataSetKeyByteOrder, s.Key.byteOrder())
	if s.IsMap() {
		b = appendUdataU32(b, udataSetDataByteOrder, s.Data.byteOrder())
	}
	b = appendNested(b, udataSetKeyTypeof, s.Key.typeof)
	switch {
	case s.Verdicts:
		b = appendNested(b, udataSetDataTypeof, typeofVerdict)
	case s.Data != nil:
		b = appendNested(b, udataSetDataTypeof, s.Data.typeof)
	}
	if s.IsMap() {
		b = appendUdataU32(b, udataSetDataInterval, 0)
	}
	if s.Comment != "" {
		b = appendUdataString(b, udataSetComment, s.Comment)
	}
	return b
}

// typeofVerdict describes a verdict map's values: nft's expression kind 1, without data.
func typeofVerdict(b []byte) []byte {
	b = appendUdataU32(b, 0, 1)
	return append(b, 1, 0)
}

func (c Concat) byteOrder() uint32 {
	if len(c) == 1 {
		return c[0].dataType().order
	}
	return orderNone
}

func (c Concat) typeof(b []byte) []byte {
	if len(c) == 1 {
		return c[0].typeof(b)
	}
	b = appendUdataU32(b, 0, udataConcat)
	return appendNested(b, 1, func(b []byte) []byte {
		for i, e := range c {
			b = appendNested(b, byte(i), e.typeof)
		}
		return b
	})
}

func appendNested(b []byte, typ byte, f func([]byte) []byte) []byte {
	at := len(b)
	b = f(append(b, typ, 0))
	b[at+1] = byte(len(b) - at - 2)
	return b
}
