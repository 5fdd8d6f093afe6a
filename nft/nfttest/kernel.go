// Package nfttest has nf_tables in memory, for tests without privileges of programs that use package nft.
package nfttest

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// Kernel is nf_tables in memory. Its zero value has no tables. All methods of Conn and Monitor work with it as
// they are, and several connections share it:
//
//	kernel := &nfttest.Kernel{}
//	conn, err := nft.Dial(nft.Config{Open: kernel.Open})
//
// A transaction has its effect whole or not at all. The kernel's errno refuses names that are missing, there already
// or in use, full sets, loops of chains, tables with another owner, and old generations. Left out are packets
// (elements that they would add can be added with a Timeout), checks of expressions against a chain's hook,
// interrupted listings, and what package nft cannot write.
//
// TestFake of package nft compares it with the kernel.
type Kernel struct {
	mu         sync.Mutex
	generation uint32
	handle     uint64
	port       uint32
	tables     map[tableID]*table
	members    map[*socket]bool
	// undo takes the transaction back, last first, and told are the messages that tell others of it.
	undo []func()
	told []message
}

// tableID tells one table from others.
type tableID struct {
	family nft.Family
	name   string
}

type table struct {
	tableID
	handle   uint64
	flags    uint32
	userdata []byte
	owner    uint32
	chains   map[string]*chain
	sets     map[string]*set
}

type chain struct {
	name   string
	handle uint64
	// hook, kind and policy are the attributes of a base chain, nil for a regular one.
	hook, kind, policy, userdata []byte
	rules                        []*rule
	// uses counts the rules and elements that lead here.
	uses int
}

type rule struct {
	handle uint64
	attrs  []byte
	// chains and sets are those that the rule names, and fills the sets to which it adds elements.
	chains, sets, fills []string
}

type set struct {
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
	elements map[string]*element
	uses     int
}

type element struct {
	// attrs are those of the element, without its expiration.
	attrs      []byte
	key, end   string
	data       string
	chain      string
	expires    time.Time
	hasTimeout bool
}

// message is a message from the kernel: its type and its data.
type message struct {
	typ  uint16
	data []byte
}

// socket is a netlink socket to a Kernel.
type socket struct {
	kernel *Kernel
	port   uint32
	// mu guards the fields below. changed is closed when one of them changes.
	mu       sync.Mutex
	changed  chan struct{}
	queue    [][]byte
	deadline time.Time
	closed   bool
}

// Open opens a netlink socket. It is for Config.Open of package nft.
func (k *Kernel) Open() (nft.Socket, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.port++
	return &socket{kernel: k, port: k.port, changed: make(chan struct{})}, nil
}

func (c *socket) Port() uint32 { return c.port }

func (c *socket) update(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *socket) SetReadDeadline(t time.Time) error {
	c.update(func() { c.deadline = t })
	return nil
}

func (c *socket) SetWriteDeadline(time.Time) error { return nil }
func (c *socket) SetWriteBuffer(int) error         { return nil }
func (c *socket) WriteBuffer() (int, error)        { return 1 << 30, nil }

func (c *socket) SetsockoptInt(level, option, _ int) error {
	c.kernel.mu.Lock()
	defer c.kernel.mu.Unlock()
	if level == unix.SOL_NETLINK && option == unix.NETLINK_ADD_MEMBERSHIP {
		if c.kernel.members == nil {
			c.kernel.members = map[*socket]bool{}
		}
		c.kernel.members[c] = true
	}
	return nil
}

// Close closes the socket. Tables that it owns go, or become orphans.
func (c *socket) Close() error {
	c.update(func() { c.closed = true })
	k := c.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.members, c)
	for id, t := range k.tables {
		switch {
		case t.owner != c.port:
		case t.flags&netlinkattr.TableFlagPersist != 0:
			t.owner, t.flags = 0, t.flags&^netlinkattr.TableFlagOwner
		default:
			delete(k.tables, id)
		}
	}
	return nil
}

// Receive waits for the next datagram.
func (c *socket) Receive(buffer []byte) (n int, truncated bool, err error) {
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

// answer queues a message for the socket.
func (c *socket) answer(typ uint16, flags netlink.HeaderFlags, sequence uint32, data []byte) {
	b, err := netlink.Message{Data: data, Header: netlink.Header{
		Length: uint32(unix.NLMSG_HDRLEN + len(data)), Type: netlink.HeaderType(typ), Flags: flags, Sequence: sequence, PID: c.port,
	}}.MarshalBinary()
	if err != nil {
		panic(err)
	}
	c.update(func() { c.queue = append(c.queue, b) })
}

// refuse answers a message with an errno; 0 for success. at is the offset of the
// attribute that is to blame; 0 for none.
func (c *socket) refuse(sequence uint32, err error, at int) {
	var errno unix.Errno
	errors.As(err, &errno)
	data := make(netlinkattr.List, 4+unix.NLMSG_HDRLEN)
	binary.NativeEndian.PutUint32(data, uint32(-int32(errno)))
	flags := netlink.Capped
	if at > 0 {
		flags |= netlink.AcknowledgeTLVs
		data.Bytes(unix.NLMSGERR_ATTR_OFFS, binary.NativeEndian.AppendUint32(nil, uint32(at)))
	}
	c.answer(unix.NLMSG_ERROR, flags, sequence, data)
}

// Send carries out a batch or answers a query.
func (c *socket) Send(parts ...[]byte) error {
	requests, err := syscall.ParseNetlinkMessage(slices.Concat(parts...))
	if err != nil {
		return err
	}
	c.kernel.mu.Lock()
	defer c.kernel.mu.Unlock()
	if len(requests) > 0 && requests[0].Header.Type == unix.NFNL_MSG_BATCH_BEGIN {
		c.kernel.batch(c, requests)
		return nil
	}
	for _, r := range requests {
		c.kernel.query(c, r)
	}
	return nil
}

// batch carries out a batch.
func (k *Kernel) batch(c *socket, requests []syscall.NetlinkMessage) {
	begin := requests[0]
	requests = requests[1 : len(requests)-1]
	if condition, err := netlinkattr.Uint32(netlinkattr.Find(begin.Data[headerLen:], netlinkattr.BatchGenID)); err == nil && condition != k.generation {
		c.refuse(begin.Header.Seq, unix.ERESTART, 0)
		return
	}
	k.undo, k.told = nil, nil
	refused := false
	type outcome struct {
		sequence uint32
		err      error
		at       int
	}
	var outcomes []outcome
	for _, r := range requests {
		at, err := k.change(c.port, r)
		refused = refused || err != nil
		if err != nil || r.Header.Flags&uint16(netlink.Acknowledge) != 0 {
			outcomes = append(outcomes, outcome{r.Header.Seq, err, at})
		}
	}
	if !refused && !k.isShallow() {
		// The kernel blames the rule that closes the loop, which is the last one more often than not.
		blamed := begin
		for _, r := range requests {
			if r.Header.Type&0xff == unix.NFT_MSG_NEWRULE {
				blamed = r
			}
		}
		refused, outcomes = true, []outcome{{blamed.Header.Seq, unix.EMLINK, 0}, {requests[len(requests)-1].Header.Seq, nil, 0}}
	}
	switch {
	case refused:
		for _, undo := range slices.Backward(k.undo) {
			undo()
		}
	case len(k.told) > 0:
		k.generation++
		k.tell()
		if requests[0].Header.Flags&uint16(netlink.Echo) != 0 {
			c.answer(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN, 0, requests[0].Header.Seq, k.generationMessage())
		}
	}
	for _, o := range outcomes {
		c.refuse(o.sequence, o.err, o.at)
	}
}

// tell tells all members of the group of a commit.
func (k *Kernel) tell() {
	k.told = append(k.told, message{unix.NFT_MSG_NEWGEN, k.generationMessage()})
	for member := range k.members {
		for _, m := range k.told {
			member.answer(unix.NFNL_SUBSYS_NFTABLES<<8|m.typ, 0, 0, m.data)
		}
	}
}

func (k *Kernel) generationMessage() []byte {
	a := k.start(0, "")
	a.Uint32(unix.NFTA_GEN_ID, k.generation)
	tid := uint32(unix.Gettid())
	a.Uint32(unix.NFTA_GEN_PROC_PID, tid)
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	a.Text(unix.NFTA_GEN_PROC_NAME, strings.TrimSpace(string(name)))
	return a
}

// headerLen is the length of a message's nfgenmsg header: family, version and generation.
const headerLen = 4

// start begins a message with the header, and the name of the table if that is not empty.
func (k *Kernel) start(family nft.Family, table string) netlinkattr.List {
	a := netlinkattr.List{byte(family), unix.NFNETLINK_V0, byte(k.generation >> 8), byte(k.generation)}
	if table != "" {
		a.Text(unix.NFTA_TABLE_NAME, table)
	}
	return a
}

// changed notes a change, and how to take it back.
func (k *Kernel) changed(typ uint16, data []byte, undo func()) {
	k.undo = append(k.undo, undo)
	k.told = append(k.told, message{typ, data})
}

func (k *Kernel) newHandle() uint64 {
	k.handle++
	return k.handle
}

// attrsOf returns the attributes of a message by type. The first four bytes of the message are no attribute.
func attrsOf(data []byte) map[uint16][]byte {
	attrs := map[uint16][]byte{}
	_ = netlinkattr.Each(data[headerLen:], func(typ uint16, b []byte) error {
		attrs[typ] = b
		return nil
	})
	return attrs
}

// change carries out one message of a batch. at is the offset of the attribute that is to blame for an error.
func (k *Kernel) change(port uint32, r syscall.NetlinkMessage) (at int, err error) {
	attrs := attrsOf(r.Data)
	id := tableID{nft.Family(r.Data[0]), netlinkattr.Text(attrs[unix.NFTA_TABLE_NAME])}
	t, typ := k.tables[id], r.Header.Type&0xff
	switch {
	case t != nil && t.owner != 0 && t.owner != port:
		return 0, unix.EPERM
	case typ == unix.NFT_MSG_NEWTABLE:
		return 0, k.addTable(port, id, t, attrs)
	case t == nil && typ == netlinkattr.MsgDestroyTable:
		return 0, nil
	case t == nil:
		return 0, unix.ENOENT
	}
	switch typ {
	case unix.NFT_MSG_DELTABLE, netlinkattr.MsgDestroyTable:
		k.deleteTable(t)
	case unix.NFT_MSG_NEWCHAIN:
		return 0, k.addChain(t, attrs)
	case unix.NFT_MSG_DELCHAIN:
		return 0, k.deleteChain(t, netlinkattr.Text(attrs[unix.NFTA_CHAIN_NAME]))
	case unix.NFT_MSG_NEWRULE:
		return 0, k.addRule(t, attrs, r.Data)
	case unix.NFT_MSG_DELRULE:
		return 0, k.deleteRules(t, attrs)
	case unix.NFT_MSG_NEWSET:
		return 0, k.addSet(t, attrs, r.Data)
	case unix.NFT_MSG_DELSET:
		return 0, k.deleteSet(t, netlinkattr.Text(attrs[unix.NFTA_SET_NAME]))
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		return k.changeElements(t, typ, attrs, r.Data)
	default:
		return 0, unix.ENOENT // an object
	}
	return 0, nil
}

func (k *Kernel) addTable(port uint32, id tableID, t *table, attrs map[uint16][]byte) error {
	flags, hasFlags := uint32(0), attrs[unix.NFTA_TABLE_FLAGS] != nil
	if hasFlags {
		flags, _ = netlinkattr.Uint32(attrs[unix.NFTA_TABLE_FLAGS])
	}
	if t != nil {
		return k.updateTable(port, t, flags, hasFlags)
	}
	t = &table{tableID: id, handle: k.newHandle(), flags: flags, userdata: attrs[netlinkattr.TableUserdata], chains: map[string]*chain{}, sets: map[string]*set{}}
	if flags&netlinkattr.TableFlagOwner != 0 {
		t.owner = port
	}
	if k.tables == nil {
		k.tables = map[tableID]*table{}
	}
	k.tables[id] = t
	k.changed(unix.NFT_MSG_NEWTABLE, k.tableMessage(t), func() { delete(k.tables, id) })
	return nil
}

func (k *Kernel) updateTable(port uint32, t *table, flags uint32, hasFlags bool) error {
	had, owner := t.flags, t.owner
	orphan := had&(netlinkattr.TableFlagOwner|netlinkattr.TableFlagPersist) == netlinkattr.TableFlagPersist
	switch {
	case !hasFlags || flags == had:
		return nil
	case had&netlinkattr.TableFlagOwner != 0 && flags&netlinkattr.TableFlagOwner == 0, flags&netlinkattr.TableFlagOwner != 0 && had&netlinkattr.TableFlagOwner == 0 && !orphan, (flags^had)&netlinkattr.TableFlagPersist != 0:
		return unix.EOPNOTSUPP
	}
	t.flags = flags
	if flags&netlinkattr.TableFlagOwner != 0 {
		t.owner = port
	}
	k.changed(unix.NFT_MSG_NEWTABLE, k.tableMessage(t), func() { t.flags, t.owner = had, owner })
	return nil
}

func (k *Kernel) deleteTable(t *table) {
	for _, c := range t.chains {
		k.removeRules(t, c, c.rules)
	}
	for _, s := range t.sets {
		k.removeSet(t, s)
	}
	for _, c := range t.chains {
		k.removeChain(t, c)
	}
	delete(k.tables, t.tableID)
	k.changed(unix.NFT_MSG_DELTABLE, k.tableMessage(t), func() { k.tables[t.tableID] = t })
}

func (k *Kernel) addChain(t *table, attrs map[uint16][]byte) error {
	name, hook := netlinkattr.Text(attrs[unix.NFTA_CHAIN_NAME]), attrs[unix.NFTA_CHAIN_HOOK]
	c := t.chains[name]
	if c != nil {
		if hook != nil && (string(hook) != string(c.hook) || string(c.kind) != string(attrs[unix.NFTA_CHAIN_TYPE])) {
			return unix.EOPNOTSUPP
		}
		before := c.policy
		c.policy = attrs[unix.NFTA_CHAIN_POLICY]
		k.changed(unix.NFT_MSG_NEWCHAIN, k.chainMessage(t, c), func() { c.policy = before })
		return nil
	}
	c = &chain{
		name: name, handle: k.newHandle(), hook: hook,
		kind: attrs[unix.NFTA_CHAIN_TYPE], policy: attrs[unix.NFTA_CHAIN_POLICY], userdata: attrs[netlinkattr.ChainUserdata],
	}
	t.chains[name] = c
	k.changed(unix.NFT_MSG_NEWCHAIN, k.chainMessage(t, c), func() { delete(t.chains, name) })
	return nil
}

func (k *Kernel) deleteChain(t *table, name string) error {
	c := t.chains[name]
	if c == nil {
		return unix.ENOENT
	}
	k.removeRules(t, c, c.rules)
	if c.uses > 0 {
		return unix.EBUSY
	}
	k.removeChain(t, c)
	return nil
}

func (k *Kernel) removeChain(t *table, c *chain) {
	delete(t.chains, c.name)
	k.changed(unix.NFT_MSG_DELCHAIN, k.chainMessage(t, c), func() { t.chains[c.name] = c })
}

// use counts n more uses of the chains and sets of a rule.
func (t *table) use(r *rule, n int) {
	for _, name := range r.chains {
		t.chains[name].uses += n
	}
	for _, name := range r.sets {
		t.sets[name].uses += n
	}
}

func (k *Kernel) addRule(t *table, attrs map[uint16][]byte, data []byte) error {
	c := t.chains[netlinkattr.Text(attrs[unix.NFTA_RULE_CHAIN])]
	if c == nil {
		return unix.ENOENT
	}
	r := &rule{handle: k.newHandle(), attrs: data[headerLen:]}
	_ = netlinkattr.Each(attrs[unix.NFTA_RULE_EXPRESSIONS], func(_ uint16, b []byte) error {
		r.refer(b)
		return nil
	})
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
	for _, name := range r.fills {
		if s := t.sets[name]; s.size == 0 {
			s.size, s.bounded = nft.DefaultSize, true
		}
	}
	c.rules = append(c.rules, r)
	k.changed(unix.NFT_MSG_NEWRULE, k.ruleMessage(t, r), func() {
		c.rules = c.rules[:len(c.rules)-1]
		t.use(r, -1)
	})
	return nil
}

// refer notes which chain or set an expression of the rule names.
func (r *rule) refer(expression []byte) {
	data := netlinkattr.Find(expression, unix.NFTA_EXPR_DATA)
	switch netlinkattr.Text(netlinkattr.Find(expression, unix.NFTA_EXPR_NAME)) {
	case "immediate":
		verdict := netlinkattr.Find(netlinkattr.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
		if chain := netlinkattr.Find(verdict, unix.NFTA_VERDICT_CHAIN); chain != nil {
			r.chains = append(r.chains, netlinkattr.Text(chain))
		}
	case "lookup":
		r.sets = append(r.sets, netlinkattr.Text(netlinkattr.Find(data, unix.NFTA_LOOKUP_SET)))
	case "dynset":
		name := netlinkattr.Text(netlinkattr.Find(data, unix.NFTA_DYNSET_SET_NAME))
		r.sets, r.fills = append(r.sets, name), append(r.fills, name)
	}
}

func (k *Kernel) deleteRules(t *table, attrs map[uint16][]byte) error {
	c := t.chains[netlinkattr.Text(attrs[unix.NFTA_RULE_CHAIN])]
	if c == nil {
		return unix.ENOENT
	}
	rules := c.rules
	if b := attrs[unix.NFTA_RULE_HANDLE]; b != nil {
		handle, _ := netlinkattr.Uint64(b)
		i := slices.IndexFunc(rules, func(r *rule) bool { return r.handle == handle })
		if i < 0 {
			return unix.ENOENT
		}
		rules = rules[i : i+1]
	}
	k.removeRules(t, c, rules)
	return nil
}

func (k *Kernel) removeRules(t *table, c *chain, rules []*rule) {
	gone := slices.Clone(rules)
	for _, r := range gone {
		before := c.rules
		t.use(r, -1)
		c.rules = slices.DeleteFunc(slices.Clone(c.rules), func(o *rule) bool { return o == r })
		k.changed(unix.NFT_MSG_DELRULE, k.ruleMessage(t, r), func() {
			c.rules = before
			t.use(r, 1)
		})
	}
}

func (k *Kernel) addSet(t *table, attrs map[uint16][]byte, data []byte) error {
	s := &set{name: netlinkattr.Text(attrs[unix.NFTA_SET_NAME]), elements: map[string]*element{}, counts: attrs[netlinkattr.SetExpr] != nil}
	for attr, v := range map[uint16]*uint32{unix.NFTA_SET_FLAGS: &s.flags, unix.NFTA_SET_KEY_LEN: &s.keyLen, unix.NFTA_SET_DATA_LEN: &s.valueLen} {
		*v, _ = netlinkattr.Uint32(attrs[attr])
	}
	for _, attr := range []uint16{unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DATA_TYPE, unix.NFTA_SET_DATA_LEN, unix.NFTA_SET_DESC, netlinkattr.SetExpr} {
		s.kind += string(attrs[attr]) + "\x00"
	}
	s.size, _ = netlinkattr.Uint32(netlinkattr.Find(attrs[unix.NFTA_SET_DESC], unix.NFTA_SET_DESC_SIZE))
	if have := t.sets[s.name]; have != nil {
		if have.kind != s.kind {
			return unix.EEXIST
		}
		k.changed(unix.NFT_MSG_NEWSET, k.setMessage(t, have), func() {})
		return nil
	}
	s.attrs, s.handle = data[headerLen:], k.newHandle()
	t.sets[s.name] = s
	k.changed(unix.NFT_MSG_NEWSET, k.setMessage(t, s), func() { delete(t.sets, s.name) })
	return nil
}

func (k *Kernel) deleteSet(t *table, name string) error {
	s := t.sets[name]
	switch {
	case s == nil:
		return unix.ENOENT
	case s.uses > 0:
		return unix.EBUSY
	}
	k.removeSet(t, s)
	return nil
}

func (k *Kernel) removeSet(t *table, s *set) {
	useAll := func(n int) {
		for _, e := range s.elements {
			t.useOf(e, n)
		}
	}
	useAll(-1)
	delete(t.sets, s.name)
	gone := k.start(t.family, t.name) // and no more, as the kernel
	gone.Text(unix.NFTA_SET_NAME, s.name)
	k.changed(unix.NFT_MSG_DELSET, gone, func() {
		t.sets[s.name] = s
		useAll(1)
	})
}

// useOf counts n more uses of the chain that an element leads to, if any.
func (t *table) useOf(e *element, n int) {
	if e.chain != "" {
		t.chains[e.chain].uses += n
	}
}

func (k *Kernel) changeElements(t *table, typ uint16, attrs map[uint16][]byte, data []byte) (at int, err error) {
	s := t.sets[netlinkattr.Text(attrs[unix.NFTA_SET_ELEM_LIST_SET])]
	if s == nil {
		return 0, unix.ENOENT
	}
	s.expire(t)
	if typ == unix.NFT_MSG_DELSETELEM && attrs[unix.NFTA_SET_ELEM_LIST_ELEMENTS] == nil {
		for key := range s.elements {
			err = cmp.Or(err, k.deleteElement(t, s, key))
		}
		return 0, err
	}
	err = netlinkattr.Each(attrs[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(_ uint16, b []byte) error {
		e, err := s.decode(b)
		if err == nil && typ == unix.NFT_MSG_DELSETELEM {
			err = k.deleteElement(t, s, e.key)
		} else if err == nil {
			err = k.addElement(t, s, e)
		}
		if err != nil {
			at = unix.NLMSG_HDRLEN + cap(data) - cap(b) // b is a part of data
		}
		return err
	})
	return at, err
}

// catchAll is the key of a catch-all: longer or shorter than any other key of the set, which are padded.
const catchAll = "catch-all"

// decode decodes an element.
func (s *set) decode(b []byte) (*element, error) {
	value := func(typ uint16) []byte { return netlinkattr.Find(netlinkattr.Find(b, typ), unix.NFTA_DATA_VALUE) }
	data := netlinkattr.Find(b, unix.NFTA_SET_ELEM_DATA)
	chain := netlinkattr.Find(netlinkattr.Find(data, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN)
	e := &element{key: string(value(unix.NFTA_SET_ELEM_KEY)), end: string(value(netlinkattr.SetElemKeyEnd)), data: string(data), chain: netlinkattr.Text(chain)}
	if flags, _ := netlinkattr.Uint32(netlinkattr.Find(b, unix.NFTA_SET_ELEM_FLAGS)); flags&netlinkattr.SetElemFlagCatchAll != 0 {
		e.key = catchAll
	} else if len(e.key) != int(s.keyLen) {
		return nil, unix.EINVAL
	}
	if timeout, _ := netlinkattr.Uint64(netlinkattr.Find(b, unix.NFTA_SET_ELEM_TIMEOUT)); timeout > 0 {
		left, _ := netlinkattr.Uint64(netlinkattr.Find(b, unix.NFTA_SET_ELEM_EXPIRATION))
		e.hasTimeout, e.expires = true, time.Now().Add(time.Duration(cmp.Or(left, timeout))*time.Millisecond)
	}
	var list netlinkattr.List
	_ = netlinkattr.Each(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_SET_ELEM_EXPIRATION:
		case unix.NFTA_SET_ELEM_KEY, netlinkattr.SetElemKeyEnd, unix.NFTA_SET_ELEM_DATA, unix.NFTA_SET_ELEM_EXPR:
			list.Bytes(typ|unix.NLA_F_NESTED, b)
		default:
			list.Bytes(typ, b)
		}
		return nil
	})
	if s.counts {
		counter := list.Begin(unix.NFTA_SET_ELEM_EXPR)
		list.Text(unix.NFTA_EXPR_NAME, "counter")
		data := list.Begin(unix.NFTA_EXPR_DATA)
		list.Uint64(unix.NFTA_COUNTER_BYTES, 0)
		list.Uint64(unix.NFTA_COUNTER_PACKETS, 0)
		list.End(data)
		list.End(counter)
	}
	e.attrs = list
	return e, nil
}

func (k *Kernel) addElement(t *table, s *set, e *element) error {
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
	k.changed(unix.NFT_MSG_NEWSETELEM, k.elementMessage(t, s, e), func() {
		t.useOf(e, -1)
		delete(s.elements, e.key)
	})
	return nil
}

func (k *Kernel) deleteElement(t *table, s *set, key string) error {
	e := s.elements[key]
	if e == nil {
		return unix.ENOENT
	}
	delete(s.elements, key)
	t.useOf(e, -1)
	k.changed(unix.NFT_MSG_DELSETELEM, k.elementMessage(t, s, e), func() {
		s.elements[key] = e
		t.useOf(e, 1)
	})
	return nil
}

// expire removes elements whose time is over.
func (s *set) expire(t *table) {
	for key, e := range s.elements {
		if e.hasTimeout && !time.Now().Before(e.expires) {
			t.useOf(e, -1)
			delete(s.elements, key)
		}
	}
}

// maxDepth bounds the depth to which chains call each other (NFT_JUMP_STACK_SIZE).
const maxDepth = 16

// isShallow reports whether no chains call each other in a loop or too deep.
func (k *Kernel) isShallow() bool {
	for _, t := range k.tables {
		for _, c := range t.chains {
			if c.hook != nil && !t.isShallow(c, 0, map[*chain]int{}) {
				return false
			}
		}
	}
	return true
}

// isShallow reports whether a chain that is called at a depth calls none too deep. reached has the greatest depth of
// each chain so far.
func (t *table) isShallow(c *chain, depth int, reached map[*chain]int) bool {
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
func (k *Kernel) query(c *socket, r syscall.NetlinkMessage) {
	attrs := attrsOf(r.Data)
	t := k.tables[tableID{nft.Family(r.Data[0]), netlinkattr.Text(attrs[unix.NFTA_TABLE_NAME])}]
	out, err := k.look(t, r, attrs)
	if _, named := attrs[unix.NFTA_TABLE_NAME]; !named && r.Header.Type&0xff == unix.NFT_MSG_GETCHAIN {
		out, err = k.chainMessages(nft.Family(r.Data[0])), nil
	}
	if err != nil {
		c.refuse(r.Header.Seq, err, 0)
		return
	}
	flags := netlink.HeaderFlags(0)
	if r.Header.Flags&uint16(netlink.Dump) == uint16(netlink.Dump) {
		flags = netlink.Multi
	}
	for _, m := range out {
		c.answer(unix.NFNL_SUBSYS_NFTABLES<<8|m.typ, flags, r.Header.Seq, m.data)
	}
	if flags != 0 {
		c.answer(unix.NLMSG_DONE, flags, r.Header.Seq, make([]byte, 4))
	}
}

// look returns the answer to a request about a table, which is nil if there is none.
func (k *Kernel) look(t *table, r syscall.NetlinkMessage, attrs map[uint16][]byte) (out []message, err error) {
	typ := r.Header.Type & 0xff
	all := r.Header.Flags&uint16(netlink.Dump) == uint16(netlink.Dump)
	switch {
	case typ == unix.NFT_MSG_GETGEN:
		return []message{{unix.NFT_MSG_NEWGEN, k.generationMessage()}}, nil
	case t == nil && all && typ != unix.NFT_MSG_GETSETELEM:
		return nil, nil
	case t == nil:
		return nil, unix.ENOENT
	}
	switch typ {
	case unix.NFT_MSG_GETTABLE:
		return []message{{unix.NFT_MSG_NEWTABLE, k.tableMessage(t)}}, nil
	case unix.NFT_MSG_GETCHAIN:
		name, named := attrs[unix.NFTA_CHAIN_NAME]
		for _, c := range inOrder(t.chains) {
			if !named || c.name == netlinkattr.Text(name) {
				out = append(out, message{unix.NFT_MSG_NEWCHAIN, k.chainMessage(t, c)})
			}
		}
		if named && len(out) == 0 {
			return nil, unix.ENOENT
		}
	case unix.NFT_MSG_GETRULE:
		name, named := attrs[unix.NFTA_RULE_CHAIN]
		for _, c := range inOrder(t.chains) {
			for _, r := range c.rules {
				if !named || c.name == netlinkattr.Text(name) {
					out = append(out, message{unix.NFT_MSG_NEWRULE, k.ruleMessage(t, r)})
				}
			}
		}
	case unix.NFT_MSG_GETSET:
		name, named := attrs[unix.NFTA_SET_NAME]
		for _, s := range byHandle(t.sets, func(s *set) uint64 { return s.handle }) {
			if !named || s.name == netlinkattr.Text(name) {
				out = append(out, message{unix.NFT_MSG_NEWSET, k.setMessage(t, s)})
			}
		}
		if named && len(out) == 0 {
			return nil, unix.ENOENT
		}
	case unix.NFT_MSG_GETSETELEM:
		return k.lookForElements(t, attrs, all)
	}
	return out, nil
}

// inOrder returns chains in the order in which they were made.
func inOrder(chains map[string]*chain) []*chain {
	return byHandle(chains, func(c *chain) uint64 { return c.handle })
}

// chainMessages describe the chains of all tables of a family.
func (k *Kernel) chainMessages(family nft.Family) (out []message) {
	for _, t := range byHandle(k.tables, func(t *table) uint64 { return t.handle }) {
		if t.family != family {
			continue
		}
		for _, c := range inOrder(t.chains) {
			out = append(out, message{unix.NFT_MSG_NEWCHAIN, k.chainMessage(t, c)})
		}
	}
	return out
}

func (k *Kernel) lookForElements(t *table, attrs map[uint16][]byte, all bool) (out []message, err error) {
	s := t.sets[netlinkattr.Text(attrs[unix.NFTA_SET_ELEM_LIST_SET])]
	if s == nil {
		return nil, unix.ENOENT
	}
	s.expire(t)
	if all {
		for _, key := range slices.Sorted(maps.Keys(s.elements)) {
			out = append(out, message{unix.NFT_MSG_NEWSETELEM, k.elementMessage(t, s, s.elements[key])})
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
		out = append(out, message{unix.NFT_MSG_NEWSETELEM, k.elementMessage(t, s, e)})
		return nil
	})
	return out, err
}

// byHandle returns the values in the order in which they were added.
func byHandle[K comparable, T any](m map[K]T, handle func(T) uint64) []T {
	return slices.SortedFunc(maps.Values(m), func(a, b T) int { return cmp.Compare(handle(a), handle(b)) })
}

func (k *Kernel) tableMessage(t *table) []byte {
	a := k.start(t.family, t.name)
	a.Uint32(unix.NFTA_TABLE_FLAGS, t.flags)
	if t.owner != 0 {
		a.Uint32(netlinkattr.TableOwner, t.owner)
	}
	if t.userdata != nil {
		a.Bytes(netlinkattr.TableUserdata, t.userdata)
	}
	return a
}

func (k *Kernel) chainMessage(t *table, c *chain) []byte {
	a := k.start(t.family, t.name)
	a.Text(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook != nil {
		a.Bytes(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, c.hook)
		a.Bytes(unix.NFTA_CHAIN_POLICY, c.policy)
		a.Bytes(unix.NFTA_CHAIN_TYPE, c.kind)
	}
	if c.userdata != nil {
		a.Bytes(netlinkattr.ChainUserdata, c.userdata)
	}
	return a
}

func (k *Kernel) ruleMessage(t *table, r *rule) []byte {
	a := append(k.start(t.family, ""), r.attrs...)
	a.Uint64(unix.NFTA_RULE_HANDLE, r.handle)
	return a
}

func (k *Kernel) setMessage(t *table, s *set) []byte {
	a := append(k.start(t.family, ""), s.attrs...)
	if s.bounded {
		desc := a.Begin(unix.NFTA_SET_DESC)
		a.Uint32(unix.NFTA_SET_DESC_SIZE, s.size)
		a.End(desc)
	}
	counted := len(s.elements)
	if s.elements[catchAll] != nil {
		counted--
	}
	a.Uint32(netlinkattr.SetCount, uint32(counted))
	return a
}

func (k *Kernel) elementMessage(t *table, s *set, e *element) []byte {
	a := k.start(t.family, t.name)
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
