package nft

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Fake is nf_tables in memory, for tests without privileges. Its zero value has no tables. A Conn of Dial with
// Config.Fake talks netlink to it, so all methods of Conn and Monitor work as they are; several connections share it.
//
// A transaction has its effect whole or not at all. Names that are missing, there already or in use are refused with
// the kernel's errno, as are full sets, loops of chains, tables with another owner and old generations. What the fake
// does not do: packets (elements that they would add can be added with a Timeout), checks of expressions against a
// chain's hook, interrupted listings, and whatever this package cannot write.
//
// TestFake holds it to the kernel.
type Fake struct {
	mu         sync.Mutex
	generation uint32
	handle     uint64
	port       uint32
	tables     map[identity]*fakeTable
	members    map[*fakeConn]bool
	// undo takes the transaction back, last first, and told are the messages that tell others of it.
	undo []func()
	told []fakeMessage
}

type fakeTable struct {
	identity
	handle   uint64
	flags    uint32
	userdata []byte
	owner    uint32
	chains   map[string]*fakeChain
	sets     map[string]*fakeSet
}

type fakeChain struct {
	name   string
	handle uint64
	// hook, kind and policy are the attributes of a base chain, nil for a regular one.
	hook, kind, policy, userdata []byte
	rules                        []*fakeRule
	// uses counts the rules and elements that lead here.
	uses int
}

type fakeRule struct {
	handle uint64
	attrs  []byte
	chains []string
	sets   []string
}

type fakeSet struct {
	name   string
	handle uint64
	attrs  []byte
	// kind has the attributes that cannot change.
	kind             string
	flags            uint32
	keyLen, valueLen uint32
	size             uint32
	// bounded says that the size was not given, but came with a rule that adds elements.
	bounded  bool
	counts   bool
	elements map[string]*fakeElement
	uses     int
}

type fakeElement struct {
	// attrs are those of the element, without its expiration.
	attrs      []byte
	key, end   string
	data       string
	chain      string
	expires    time.Time
	hasTimeout bool
}

// fakeMessage is a message from the fake: its type and its data.
type fakeMessage struct {
	typ  uint16
	data []byte
}

// fakeConn is a netlink socket to a Fake.
type fakeConn struct {
	fake *Fake
	port uint32
	// mu guards the fields below. changed is closed when one of them changes.
	mu       sync.Mutex
	changed  chan struct{}
	queue    [][]byte
	deadline time.Time
	closed   bool
	// filtered says that the socket takes no messages but those of generations.
	filtered bool
}

func (f *Fake) open() *fakeConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.port++
	return &fakeConn{fake: f, port: f.port, changed: make(chan struct{})}
}

func (c *fakeConn) update(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *fakeConn) SetReadDeadline(t time.Time) error {
	c.update(func() { c.deadline = t })
	return nil
}

func (c *fakeConn) SetWriteDeadline(time.Time) error { return nil }
func (c *fakeConn) SetWriteBuffer(int) error         { return nil }
func (c *fakeConn) WriteBuffer() (int, error)        { return 1 << 30, nil }

func (c *fakeConn) SetBPF([]bpf.RawInstruction) error {
	c.update(func() { c.filtered = true })
	return nil
}

func (c *fakeConn) SetsockoptInt(level, option, _ int) error {
	c.fake.mu.Lock()
	defer c.fake.mu.Unlock()
	switch {
	case level != unix.SOL_NETLINK:
	case option == unix.NETLINK_ADD_MEMBERSHIP:
		if c.fake.members == nil {
			c.fake.members = map[*fakeConn]bool{}
		}
		c.fake.members[c] = true
	case option == unix.NETLINK_DROP_MEMBERSHIP:
		delete(c.fake.members, c)
	}
	return nil
}

// Close closes the socket. Tables that it owns go, or become orphans.
func (c *fakeConn) Close() error {
	c.update(func() { c.closed = true })
	f := c.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.members, c)
	for id, t := range f.tables {
		switch {
		case t.owner != c.port:
		case t.flags&tablePersist != 0:
			t.owner, t.flags = 0, t.flags&^tableOwner
		default:
			delete(f.tables, id)
		}
	}
	return nil
}

// receive waits for the next datagram.
func (c *fakeConn) receive(buffer []byte) (n int, truncated bool, err error) {
	for {
		c.mu.Lock()
		changed, deadline := c.changed, c.deadline
		switch {
		case c.closed:
			err = net.ErrClosed
		case len(c.queue) > 0:
			n, c.queue = copy(buffer, c.queue[0]), c.queue[1:]
		case !deadline.IsZero() && !time.Now().Before(deadline):
			err = os.ErrDeadlineExceeded
		}
		c.mu.Unlock()
		if n > 0 || err != nil {
			return n, false, err
		}
		var timeout <-chan time.Time
		if !deadline.IsZero() {
			timeout = time.After(time.Until(deadline))
		}
		select {
		case <-changed:
		case <-timeout:
		}
	}
}

// answer queues a message of the fake for the socket.
func (c *fakeConn) answer(typ uint16, flags netlink.HeaderFlags, sequence uint32, data []byte) {
	s := socket{sequence: sequence - 1, port: c.port}
	b := s.appendMessage(nil, &netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: flags}, Data: data})
	c.update(func() { c.queue = append(c.queue, b) })
}

// refuse answers a message with an errno; 0 for success. at is the offset of the attribute that is to blame; 0 for none.
func (c *fakeConn) refuse(sequence uint32, err error, at int) {
	var errno unix.Errno
	errors.As(err, &errno)
	data := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
	data = append(data, make([]byte, unix.NLMSG_HDRLEN)...)
	flags := netlink.HeaderFlags(flagCapped)
	if at > 0 {
		flags |= flagAckTLVs
		data = append(data, 8, 0, unix.NLMSGERR_ATTR_OFFS, 0)
		data = binary.NativeEndian.AppendUint32(data, uint32(at))
	}
	c.answer(unix.NLMSG_ERROR, flags, sequence, data)
}

// send carries out a batch or answers a query.
func (c *fakeConn) send(b []byte) error {
	var requests []reply
	if err := eachMessage(slices.Clone(b), func(r reply) error {
		requests = append(requests, r)
		return nil
	}); err != nil {
		return err
	}
	c.fake.mu.Lock()
	defer c.fake.mu.Unlock()
	if len(requests) > 0 && requests[0].Type == unix.NFNL_MSG_BATCH_BEGIN {
		c.fake.batch(c, requests)
		return nil
	}
	for _, r := range requests {
		c.fake.query(c, r)
	}
	return nil
}

// batch carries out a batch.
func (f *Fake) batch(c *fakeConn, requests []reply) {
	begin := requests[0]
	requests = requests[1 : len(requests)-1]
	if condition, err := netlinkattr.Uint32(netlinkattr.Find(begin.Data[nfgenmsgLen:], nfnlBatchGenID)); err == nil && condition != f.generation {
		c.refuse(begin.Sequence, unix.ERESTART, 0)
		return
	}
	f.undo, f.told = nil, nil
	refused := false
	type outcome struct {
		sequence uint32
		err      error
		at       int
	}
	var outcomes []outcome
	for _, r := range requests {
		at, err := f.change(c.port, r)
		refused = refused || err != nil
		if err != nil || r.Flags&netlink.Acknowledge != 0 {
			outcomes = append(outcomes, outcome{r.Sequence, err, at})
		}
	}
	if !refused && !f.isShallow() {
		// The kernel blames the rule that closes the loop, which is the last one more often than not.
		blamed := begin
		for _, r := range requests {
			if r.Type&0xff == unix.NFT_MSG_NEWRULE {
				blamed = r
			}
		}
		refused, outcomes = true, []outcome{{blamed.Sequence, unix.EMLINK, 0}, {requests[len(requests)-1].Sequence, nil, 0}}
	}
	switch {
	case refused:
		for _, undo := range slices.Backward(f.undo) {
			undo()
		}
	case len(f.told) > 0:
		f.generation++
		f.tell()
		if requests[0].Flags&netlink.Echo != 0 {
			c.answer(newGeneration, 0, requests[0].Sequence, f.generationMessage())
		}
	}
	for _, o := range outcomes {
		c.refuse(o.sequence, o.err, o.at)
	}
}

// tell tells all members of the group of a commit.
func (f *Fake) tell() {
	f.told = append(f.told, fakeMessage{unix.NFT_MSG_NEWGEN, f.generationMessage()})
	for member := range f.members {
		for _, m := range f.told {
			if m.typ == unix.NFT_MSG_NEWGEN || !member.filtered {
				member.answer(unix.NFNL_SUBSYS_NFTABLES<<8|m.typ, 0, 0, m.data)
			}
		}
	}
}

func (f *Fake) generationMessage() []byte {
	a := f.start(0, "")
	a.Uint32(unix.NFTA_GEN_ID, f.generation)
	tid := uint32(unix.Gettid())
	a.Uint32(unix.NFTA_GEN_PROC_PID, tid)
	a.Text(unix.NFTA_GEN_PROC_NAME, commOf(tid))
	return a
}

// start begins a message with the generation.
func (f *Fake) start(family Family, table string) netlinkattr.List {
	a := start(family, table, 256)
	binary.BigEndian.PutUint16(a[2:], uint16(f.generation))
	return a
}

// changed notes a change, and how to take it back.
func (f *Fake) changed(typ uint16, data []byte, undo func()) {
	f.undo = append(f.undo, undo)
	f.told = append(f.told, fakeMessage{typ, data})
}

func (f *Fake) newHandle() uint64 {
	f.handle++
	return f.handle
}

// attrsOf returns the attributes of a message by type. The first four bytes of the message are no attribute.
func attrsOf(data []byte) map[uint16][]byte {
	attrs := map[uint16][]byte{}
	_ = netlinkattr.Each(data[nfgenmsgLen:], func(typ uint16, b []byte) error {
		attrs[typ] = b
		return nil
	})
	return attrs
}

// change carries out one message of a batch. at is the offset of the attribute that is to blame for an error.
func (f *Fake) change(port uint32, r reply) (at int, err error) {
	attrs := attrsOf(r.Data)
	id := identity{Family(r.Data[0]), netlinkattr.Text(attrs[attrTable])}
	t, typ := f.tables[id], r.Type&0xff
	switch {
	case t != nil && t.owner != 0 && t.owner != port:
		return 0, unix.EPERM
	case typ == unix.NFT_MSG_NEWTABLE:
		return 0, f.addTable(port, id, t, attrs)
	case t == nil && typ == nftMsgDestroyTable:
		return 0, nil
	case t == nil:
		return 0, unix.ENOENT
	}
	switch typ {
	case unix.NFT_MSG_DELTABLE, nftMsgDestroyTable:
		f.deleteTable(t)
	case unix.NFT_MSG_NEWCHAIN:
		return 0, f.addChain(t, attrs)
	case unix.NFT_MSG_DELCHAIN:
		return 0, f.deleteChain(t, netlinkattr.Text(attrs[unix.NFTA_CHAIN_NAME]))
	case unix.NFT_MSG_NEWRULE:
		return 0, f.addRule(t, attrs, r.Data)
	case unix.NFT_MSG_DELRULE:
		return 0, f.deleteRules(t, attrs)
	case unix.NFT_MSG_NEWSET:
		return 0, f.addSet(t, attrs, r.Data)
	case unix.NFT_MSG_DELSET:
		return 0, f.deleteSet(t, netlinkattr.Text(attrs[unix.NFTA_SET_NAME]))
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		return f.changeElements(t, typ, attrs, r.Data)
	default:
		return 0, unix.ENOENT // an object
	}
	return 0, nil
}

func (f *Fake) addTable(port uint32, id identity, t *fakeTable, attrs map[uint16][]byte) error {
	flags, hasFlags := uint32(0), attrs[unix.NFTA_TABLE_FLAGS] != nil
	if hasFlags {
		flags, _ = netlinkattr.Uint32(attrs[unix.NFTA_TABLE_FLAGS])
	}
	if t != nil {
		return f.updateTable(port, t, flags, hasFlags)
	}
	t = &fakeTable{identity: id, handle: f.newHandle(), flags: flags, userdata: attrs[nftaTableUserdata], chains: map[string]*fakeChain{}, sets: map[string]*fakeSet{}}
	if flags&tableOwner != 0 {
		t.owner = port
	}
	if f.tables == nil {
		f.tables = map[identity]*fakeTable{}
	}
	f.tables[id] = t
	f.changed(unix.NFT_MSG_NEWTABLE, f.tableMessage(t), func() { delete(f.tables, id) })
	return nil
}

func (f *Fake) updateTable(port uint32, t *fakeTable, flags uint32, hasFlags bool) error {
	had, owner := t.flags, t.owner
	orphan := had&(tableOwner|tablePersist) == tablePersist
	switch {
	case !hasFlags || flags == had:
		return nil
	case had&tableOwner != 0 && flags&tableOwner == 0, flags&tableOwner != 0 && had&tableOwner == 0 && !orphan, (flags^had)&tablePersist != 0:
		return unix.EOPNOTSUPP
	}
	t.flags = flags
	if flags&tableOwner != 0 {
		t.owner = port
	}
	f.changed(unix.NFT_MSG_NEWTABLE, f.tableMessage(t), func() { t.flags, t.owner = had, owner })
	return nil
}

func (f *Fake) deleteTable(t *fakeTable) {
	for _, c := range t.chains {
		f.removeRules(t, c, c.rules)
	}
	for _, s := range t.sets {
		f.removeSet(t, s)
	}
	for _, c := range t.chains {
		f.removeChain(t, c)
	}
	delete(f.tables, t.identity)
	f.changed(unix.NFT_MSG_DELTABLE, f.tableMessage(t), func() { f.tables[t.identity] = t })
}

func (f *Fake) addChain(t *fakeTable, attrs map[uint16][]byte) error {
	name, hook := netlinkattr.Text(attrs[unix.NFTA_CHAIN_NAME]), attrs[unix.NFTA_CHAIN_HOOK]
	c := t.chains[name]
	if c != nil {
		if hook != nil && (string(hook) != string(c.hook) || string(c.kind) != string(attrs[unix.NFTA_CHAIN_TYPE])) {
			return unix.EOPNOTSUPP
		}
		before := c.policy
		c.policy = attrs[unix.NFTA_CHAIN_POLICY]
		f.changed(unix.NFT_MSG_NEWCHAIN, f.chainMessage(t, c), func() { c.policy = before })
		return nil
	}
	c = &fakeChain{
		name: name, handle: f.newHandle(), hook: hook,
		kind: attrs[unix.NFTA_CHAIN_TYPE], policy: attrs[unix.NFTA_CHAIN_POLICY], userdata: attrs[nftaChainUserdata],
	}
	t.chains[name] = c
	f.changed(unix.NFT_MSG_NEWCHAIN, f.chainMessage(t, c), func() { delete(t.chains, name) })
	return nil
}

func (f *Fake) deleteChain(t *fakeTable, name string) error {
	c := t.chains[name]
	if c == nil {
		return unix.ENOENT
	}
	f.removeRules(t, c, c.rules)
	if c.uses > 0 {
		return unix.EBUSY
	}
	f.removeChain(t, c)
	return nil
}

func (f *Fake) removeChain(t *fakeTable, c *fakeChain) {
	delete(t.chains, c.name)
	f.changed(unix.NFT_MSG_DELCHAIN, f.chainMessage(t, c), func() { t.chains[c.name] = c })
}

// use counts n more uses of the chains and sets of a rule.
func (t *fakeTable) use(r *fakeRule, n int) {
	for _, name := range r.chains {
		t.chains[name].uses += n
	}
	for _, name := range r.sets {
		t.sets[name].uses += n
	}
}

func (f *Fake) addRule(t *fakeTable, attrs map[uint16][]byte, data []byte) error {
	c := t.chains[netlinkattr.Text(attrs[unix.NFTA_RULE_CHAIN])]
	if c == nil {
		return unix.ENOENT
	}
	decoded, err := decodeRule(data)
	if err != nil {
		return unix.EINVAL
	}
	r := &fakeRule{handle: f.newHandle(), attrs: data[nfgenmsgLen:]}
	for _, e := range decoded.exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			if e.Chain != "" {
				r.chains = append(r.chains, e.Chain)
			}
		case *expr.Lookup:
			r.sets = append(r.sets, e.SetName)
		case *expr.Dynset:
			r.sets = append(r.sets, e.SetName)
		}
	}
	for _, name := range r.chains {
		if t.chains[name] == nil {
			return unix.ENOENT
		}
	}
	for _, name := range r.sets {
		if t.sets[name] == nil {
			return unix.ENOENT
		}
	}
	t.use(r, 1)
	for _, e := range decoded.exprs {
		if e, ok := e.(*expr.Dynset); ok && t.sets[e.SetName].size == 0 {
			t.sets[e.SetName].size, t.sets[e.SetName].bounded = DefaultSize, true
		}
	}
	c.rules = append(c.rules, r)
	f.changed(unix.NFT_MSG_NEWRULE, f.ruleMessage(t, r), func() {
		c.rules = c.rules[:len(c.rules)-1]
		t.use(r, -1)
	})
	return nil
}

func (f *Fake) deleteRules(t *fakeTable, attrs map[uint16][]byte) error {
	c := t.chains[netlinkattr.Text(attrs[unix.NFTA_RULE_CHAIN])]
	if c == nil {
		return unix.ENOENT
	}
	rules := c.rules
	if b := attrs[unix.NFTA_RULE_HANDLE]; b != nil {
		handle, _ := netlinkattr.Uint64(b)
		i := slices.IndexFunc(rules, func(r *fakeRule) bool { return r.handle == handle })
		if i < 0 {
			return unix.ENOENT
		}
		rules = rules[i : i+1]
	}
	f.removeRules(t, c, rules)
	return nil
}

func (f *Fake) removeRules(t *fakeTable, c *fakeChain, rules []*fakeRule) {
	gone := slices.Clone(rules)
	for _, r := range gone {
		before := c.rules
		t.use(r, -1)
		c.rules = slices.DeleteFunc(slices.Clone(c.rules), func(o *fakeRule) bool { return o == r })
		f.changed(unix.NFT_MSG_DELRULE, f.ruleMessage(t, r), func() {
			c.rules = before
			t.use(r, 1)
		})
	}
}

func (f *Fake) addSet(t *fakeTable, attrs map[uint16][]byte, data []byte) error {
	s := &fakeSet{name: netlinkattr.Text(attrs[unix.NFTA_SET_NAME]), elements: map[string]*fakeElement{}, counts: attrs[nftaSetExpr] != nil}
	for attr, v := range map[uint16]*uint32{unix.NFTA_SET_FLAGS: &s.flags, unix.NFTA_SET_KEY_LEN: &s.keyLen, unix.NFTA_SET_DATA_LEN: &s.valueLen} {
		*v, _ = netlinkattr.Uint32(attrs[attr])
	}
	for _, attr := range []uint16{unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DATA_TYPE, unix.NFTA_SET_DATA_LEN, unix.NFTA_SET_DESC, nftaSetExpr} {
		s.kind += string(attrs[attr]) + "\x00"
	}
	s.size, _ = netlinkattr.Uint32(netlinkattr.Find(attrs[unix.NFTA_SET_DESC], unix.NFTA_SET_DESC_SIZE))
	if have := t.sets[s.name]; have != nil {
		if have.kind != s.kind {
			return unix.EEXIST
		}
		f.changed(unix.NFT_MSG_NEWSET, f.setMessage(t, have), func() {})
		return nil
	}
	s.attrs, s.handle = data[nfgenmsgLen:], f.newHandle()
	t.sets[s.name] = s
	f.changed(unix.NFT_MSG_NEWSET, f.setMessage(t, s), func() { delete(t.sets, s.name) })
	return nil
}

func (f *Fake) deleteSet(t *fakeTable, name string) error {
	s := t.sets[name]
	switch {
	case s == nil:
		return unix.ENOENT
	case s.uses > 0:
		return unix.EBUSY
	}
	f.removeSet(t, s)
	return nil
}

func (f *Fake) removeSet(t *fakeTable, s *fakeSet) {
	useAll := func(n int) {
		for _, e := range s.elements {
			t.useOf(e, n)
		}
	}
	useAll(-1)
	delete(t.sets, s.name)
	gone := f.start(t.family, t.name) // and no more, as the kernel
	gone.Text(unix.NFTA_SET_NAME, s.name)
	f.changed(unix.NFT_MSG_DELSET, gone, func() {
		t.sets[s.name] = s
		useAll(1)
	})
}

// useOf counts n more uses of the chain that an element leads to, if any.
func (t *fakeTable) useOf(e *fakeElement, n int) {
	if e.chain != "" {
		t.chains[e.chain].uses += n
	}
}

func (f *Fake) changeElements(t *fakeTable, typ uint16, attrs map[uint16][]byte, data []byte) (at int, err error) {
	s := t.sets[netlinkattr.Text(attrs[unix.NFTA_SET_ELEM_LIST_SET])]
	if s == nil {
		return 0, unix.ENOENT
	}
	s.expire(t)
	err = netlinkattr.Each(attrs[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(_ uint16, b []byte) error {
		e, err := s.decode(b)
		if err == nil && typ == unix.NFT_MSG_DELSETELEM {
			err = f.deleteElement(t, s, e.key)
		} else if err == nil {
			err = f.addElement(t, s, e)
		}
		if err != nil {
			at = unix.NLMSG_HDRLEN + cap(data) - cap(b) // b is a part of data
		}
		return err
	})
	return at, err
}

// decode decodes an element.
func (s *fakeSet) decode(b []byte) (*fakeElement, error) {
	var raw rawElement
	if err := netlinkattr.Each(b, raw.take); err != nil {
		return nil, unix.EINVAL
	}
	e := &fakeElement{key: string(raw.key), end: string(raw.keyEnd), data: string(raw.value), chain: netlinkattr.Text(raw.chain)}
	if raw.catchAll() {
		e.key = "catch-all" // longer or shorter than any other key of the set, which are padded
	} else if len(raw.key) != int(s.keyLen) {
		return nil, unix.EINVAL
	}
	if raw.hasVerdict {
		e.data = string(binary.NativeEndian.AppendUint32(nil, raw.verdict)) + e.chain
	}
	if raw.timeout > 0 {
		left := cmp.Or(raw.expires, raw.timeout)
		e.hasTimeout, e.expires = true, time.Now().Add(time.Duration(left)*time.Millisecond)
	}
	var list netlinkattr.List
	_ = netlinkattr.Each(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_SET_ELEM_EXPIRATION:
		case unix.NFTA_SET_ELEM_KEY, nftaSetElemKeyEnd, unix.NFTA_SET_ELEM_DATA, unix.NFTA_SET_ELEM_EXPR:
			list.Bytes(typ|unix.NLA_F_NESTED, b)
		default:
			list.Bytes(typ, b)
		}
		return nil
	})
	if s.counts {
		counter := list.Begin(unix.NFTA_SET_ELEM_EXPR)
		list.Text(unix.NFTA_EXPR_NAME, counterName)
		data := list.Begin(unix.NFTA_EXPR_DATA)
		list.Uint64(unix.NFTA_COUNTER_BYTES, 0)
		list.Uint64(unix.NFTA_COUNTER_PACKETS, 0)
		list.End(data)
		list.End(counter)
	}
	e.attrs = list
	return e, nil
}

func (f *Fake) addElement(t *fakeTable, s *fakeSet, e *fakeElement) error {
	if e.chain != "" && t.chains[e.chain] == nil {
		return unix.ENOENT
	}
	if have := s.elements[e.key]; have != nil && have.end == e.end {
		if have.data != e.data {
			return unix.EEXIST
		}
		return nil
	}
	if s.flags&unix.NFT_SET_INTERVAL != 0 {
		for _, o := range s.elements {
			if e.key <= o.end && o.key <= e.end {
				return unix.EEXIST
			}
		}
	}
	if s.size > 0 && len(s.elements) >= int(s.size) {
		return unix.ENFILE
	}
	s.elements[e.key] = e
	t.useOf(e, 1)
	f.changed(unix.NFT_MSG_NEWSETELEM, f.elementMessage(t, s, e), func() {
		t.useOf(e, -1)
		delete(s.elements, e.key)
	})
	return nil
}

func (f *Fake) deleteElement(t *fakeTable, s *fakeSet, key string) error {
	e := s.elements[key]
	if e == nil {
		return unix.ENOENT
	}
	delete(s.elements, key)
	t.useOf(e, -1)
	f.changed(unix.NFT_MSG_DELSETELEM, f.elementMessage(t, s, e), func() {
		s.elements[key] = e
		t.useOf(e, 1)
	})
	return nil
}

// expire removes elements whose time is over.
func (s *fakeSet) expire(t *fakeTable) {
	for key, e := range s.elements {
		if e.hasTimeout && !time.Now().Before(e.expires) {
			t.useOf(e, -1)
			delete(s.elements, key)
		}
	}
}

// maxDepth is how deep chains may call each other (NFT_JUMP_STACK_SIZE).
const maxDepth = 16

// isShallow reports whether no chains call each other in a loop or too deep.
func (f *Fake) isShallow() bool {
	for _, t := range f.tables {
		for _, c := range t.chains {
			if c.hook != nil && !t.isShallow(c, 0, map[*fakeChain]int{}) {
				return false
			}
		}
	}
	return true
}

// isShallow reports whether a chain that is called at a depth calls none too deep. reached has the greatest depth of
// each chain so far.
func (t *fakeTable) isShallow(c *fakeChain, depth int, reached map[*fakeChain]int) bool {
	if depth >= maxDepth {
		return false
	}
	if at, ok := reached[c]; ok && at >= depth {
		return true
	}
	reached[c] = depth
	for _, r := range c.rules {
		for _, name := range r.chains {
			if !t.isShallow(t.chains[name], depth+1, reached) {
				return false
			}
		}
		for _, name := range r.sets {
			for _, e := range t.sets[name].elements {
				if e.chain != "" && !t.isShallow(t.chains[e.chain], depth+1, reached) {
					return false
				}
			}
		}
	}
	return true
}

// query answers a request for information.
func (f *Fake) query(c *fakeConn, r reply) {
	attrs := attrsOf(r.Data)
	t := f.tables[identity{Family(r.Data[0]), netlinkattr.Text(attrs[attrTable])}]
	out, err := f.look(t, r, attrs)
	if err != nil {
		c.refuse(r.Sequence, err, 0)
		return
	}
	flags := netlink.HeaderFlags(0)
	if r.Flags&netlink.Dump == netlink.Dump {
		flags = netlink.Multi
	}
	for _, m := range out {
		c.answer(unix.NFNL_SUBSYS_NFTABLES<<8|m.typ, flags, r.Sequence, m.data)
	}
	if flags != 0 {
		c.answer(unix.NLMSG_DONE, flags, r.Sequence, make([]byte, 4))
	}
}

// look returns the answer to a request about a table, which is nil if there is none.
func (f *Fake) look(t *fakeTable, r reply, attrs map[uint16][]byte) (out []fakeMessage, err error) {
	typ := r.Type & 0xff
	all := r.Flags&netlink.Dump == netlink.Dump
	switch {
	case typ == unix.NFT_MSG_GETGEN:
		return []fakeMessage{{unix.NFT_MSG_NEWGEN, f.generationMessage()}}, nil
	case t == nil && all && typ != unix.NFT_MSG_GETSETELEM:
		return nil, nil
	case t == nil:
		return nil, unix.ENOENT
	}
	switch typ {
	case unix.NFT_MSG_GETTABLE:
		return []fakeMessage{{unix.NFT_MSG_NEWTABLE, f.tableMessage(t)}}, nil
	case unix.NFT_MSG_GETCHAIN:
		for _, c := range byHandle(t.chains, func(c *fakeChain) uint64 { return c.handle }) {
			out = append(out, fakeMessage{unix.NFT_MSG_NEWCHAIN, f.chainMessage(t, c)})
		}
	case unix.NFT_MSG_GETRULE:
		for _, c := range byHandle(t.chains, func(c *fakeChain) uint64 { return c.handle }) {
			for _, r := range c.rules {
				out = append(out, fakeMessage{unix.NFT_MSG_NEWRULE, f.ruleMessage(t, r)})
			}
		}
	case unix.NFT_MSG_GETSET:
		name, named := attrs[unix.NFTA_SET_NAME]
		for _, s := range byHandle(t.sets, func(s *fakeSet) uint64 { return s.handle }) {
			if !named || s.name == netlinkattr.Text(name) {
				out = append(out, fakeMessage{unix.NFT_MSG_NEWSET, f.setMessage(t, s)})
			}
		}
		if named && len(out) == 0 {
			return nil, unix.ENOENT
		}
	case unix.NFT_MSG_GETSETELEM:
		return f.lookForElements(t, attrs, all)
	}
	return out, nil
}

func (f *Fake) lookForElements(t *fakeTable, attrs map[uint16][]byte, all bool) (out []fakeMessage, err error) {
	s := t.sets[netlinkattr.Text(attrs[unix.NFTA_SET_ELEM_LIST_SET])]
	if s == nil {
		return nil, unix.ENOENT
	}
	s.expire(t)
	if all {
		for _, key := range slices.Sorted(maps.Keys(s.elements)) {
			out = append(out, fakeMessage{unix.NFT_MSG_NEWSETELEM, f.elementMessage(t, s, s.elements[key])})
		}
		return out, nil
	}
	err = netlinkattr.Each(attrs[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(_ uint16, b []byte) error {
		wanted, err := s.decode(b)
		if err != nil {
			return err
		}
		e := s.elements[wanted.key]
		if e == nil {
			return unix.ENOENT
		}
		out = append(out, fakeMessage{unix.NFT_MSG_NEWSETELEM, f.elementMessage(t, s, e)})
		return nil
	})
	return out, err
}

// byHandle returns the values in the order in which they were added.
func byHandle[T any](m map[string]T, handle func(T) uint64) []T {
	return slices.SortedFunc(maps.Values(m), func(a, b T) int { return cmp.Compare(handle(a), handle(b)) })
}

func (f *Fake) tableMessage(t *fakeTable) []byte {
	a := f.start(t.family, t.name)
	a.Uint32(unix.NFTA_TABLE_FLAGS, t.flags)
	if t.owner != 0 {
		a.Uint32(nftaTableOwner, t.owner)
	}
	if t.userdata != nil {
		a.Bytes(nftaTableUserdata, t.userdata)
	}
	return a
}

func (f *Fake) chainMessage(t *fakeTable, c *fakeChain) []byte {
	a := f.start(t.family, t.name)
	a.Text(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook != nil {
		a.Bytes(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, c.hook)
		a.Bytes(unix.NFTA_CHAIN_POLICY, c.policy)
		a.Bytes(unix.NFTA_CHAIN_TYPE, c.kind)
	}
	if c.userdata != nil {
		a.Bytes(nftaChainUserdata, c.userdata)
	}
	return a
}

func (f *Fake) ruleMessage(t *fakeTable, r *fakeRule) []byte {
	a := append(f.start(t.family, ""), r.attrs...)
	a.Uint64(unix.NFTA_RULE_HANDLE, r.handle)
	return a
}

func (f *Fake) setMessage(t *fakeTable, s *fakeSet) []byte {
	a := append(f.start(t.family, ""), s.attrs...)
	if s.bounded {
		desc := a.Begin(unix.NFTA_SET_DESC)
		a.Uint32(unix.NFTA_SET_DESC_SIZE, s.size)
		a.End(desc)
	}
	counted := len(s.elements)
	if s.elements["catch-all"] != nil {
		counted--
	}
	a.Uint32(nftaSetCount, uint32(counted))
	return a
}

func (f *Fake) elementMessage(t *fakeTable, s *fakeSet, e *fakeElement) []byte {
	a := f.start(t.family, t.name)
	a.Text(unix.NFTA_SET_ELEM_LIST_SET, s.name)
	list := a.Begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	element := a.Begin(unix.NFTA_LIST_ELEM)
	a = append(a, e.attrs...)
	if e.hasTimeout {
		a.Uint64(unix.NFTA_SET_ELEM_EXPIRATION, uint64(max(time.Until(e.expires).Milliseconds(), 1)))
	}
	a.End(element)
	a.End(list)
	return a
}
