package nft

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// linearizer turns the statements of a rule into the kernel's register machine, with the
// same registers and shortcuts that the nft program uses, so that both list alike.
type linearizer struct {
	out []expr.Any
	err error
}

func (l *linearizer) add(e ...expr.Any) { l.out = append(l.out, e...) }

// refuse says that a statement has no expressions.
func (l *linearizer) refuse(err error) { l.err = cmp.Or(l.err, err) }

func (r Rule) linearize() ([]expr.Any, error) {
	var l linearizer
	for _, s := range r.Statements {
		s.linearize(&l)
	}
	return l.out, l.err
}

// register numbers the i-th 32-bit register as nft does: by the 128-bit register
// that starts there if one does, else by its own number.
func register(i int) uint32 {
	if i%4 == 0 {
		return uint32(unix.NFT_REG_1 + i/4)
	}
	return uint32(unix.NFT_REG32_00 + i)
}

func registerIndex(n uint32) int {
	if n >= unix.NFT_REG32_00 {
		return int(n - unix.NFT_REG32_00)
	}
	return 4 * int(n-unix.NFT_REG_1)
}

// load puts a concatenation into registers from the first one on.
func (l *linearizer) load(c Concat) { l.loadFrom(0, c) }

// loadFrom puts a concatenation into registers from the i-th one on. For values in between it uses the registers that
// nft uses, four after the concatenation.
func (l *linearizer) loadFrom(i int, c Concat) {
	scratch := register(i + c.Len()/4 + 4)
	for _, e := range c {
		l.loadVia(e, register(i), scratch)
		i += netlinkattr.Padded(e.dataType().length) / 4
	}
}

func (l *linearizer) loadVia(e Expr, register, scratch uint32) {
	if _, is := e.(Opaque); is { // nothing loads it, and comparing rules ignores the numbers of registers
		l.refuse(fmt.Errorf("%q cannot be written", e))
	}
	l.add(e.loadVia(register, scratch)...)
}

// mask appends "register 1 = (register 1 & mask) ^ xor".
func (l *linearizer) mask(mask, xor []byte) {
	l.add(&expr.Bitwise{
		SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: uint32(len(mask)), Mask: mask, Xor: xor,
	})
}

func (m InSet) linearize(l *linearizer) {
	l.load(m.Key)
	l.add(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: m.Set, Invert: m.Op == NotEqual})
}

func (v Vmap) linearize(l *linearizer) {
	l.load(v.Key)
	l.add(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: v.Map, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT})
}

func (n NAT) linearize(l *linearizer) {
	addr, mapped := n.Addr.(Mapped)
	port, both := n.Port.(Mapped)
	switch {
	case n == Masquerade:
		l.add(&expr.Masq{FullyRandom: true})
		return
	case n.Kind != SourceNAT && n.Kind != DestinationNAT, n.AddrEnd != nil, n.PortEnd != nil, n.Flags != "",
		both && !(mapped && port.String() == addr.String() && port.Offset == addr.port().Offset):
		l.refuse(fmt.Errorf("%q cannot be written", n))
		return
	}
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(n.Family)}
	if n.Kind == SourceNAT {
		nat.Type = expr.NATTypeSourceNAT
	}
	if n.Addr != nil {
		l.load(Concat{n.Addr})
		nat.RegAddrMin = unix.NFT_REG_1
	}
	switch {
	case both:
		nat.RegProtoMin = register(port.Offset / 4)
	case n.Port != nil:
		l.loadVia(n.Port, unix.NFT_REG_2, unix.NFT_REG_4)
		nat.RegProtoMin = unix.NFT_REG_2
	}
	l.add(nat)
}

func (a Assign) linearize(l *linearizer) {
	hops, _ := a.Value.(Constant)
	if (a.To == IPTTL || a.To == IP6Hoplimit) && len(hops) == 1 {
		l.setTTL(a.To == IP6Hoplimit, hops[0])
		return
	}
	l.load(Concat{a.Value})
	switch to := a.To.loadVia(unix.NFT_REG_1, unix.NFT_REG_4); x := slices.Concat(to, []expr.Any{nil})[0].(type) {
	case *expr.Meta:
		x.SourceRegister = true
		l.add(x)
	case *expr.Ct:
		x.SourceRegister = true
		l.add(x)
	default:
		l.refuse(fmt.Errorf("%q cannot be written", a))
	}
}

// The header checksum of IPv4 covers 16 bits at a time: the TTL and, after it, the protocol.
const (
	ttlWordOffset  = 8
	checksumOffset = 10
	hopLimitOffset = 7
	ttlWordLength  = 2
	hopLimitLength = 1
)

// setTTL writes the hop limit of IPv6. Of IPv4 it writes the word with the TTL, so that the kernel can mend the checksum.
func (l *linearizer) setTTL(ip6 bool, hops uint8) {
	write := &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader}
	if ip6 {
		write.Offset, write.Len = hopLimitOffset, hopLimitLength
		l.add(&expr.Immediate{Register: unix.NFT_REG_1, Data: []byte{hops}}, write)
		return
	}
	write.Offset, write.Len, write.CsumType, write.CsumOffset = ttlWordOffset, ttlWordLength, expr.CsumTypeInet, checksumOffset
	l.add(payload(write.Base, write.Offset, write.Len)(unix.NFT_REG_1))
	l.mask([]byte{0, 0xff}, []byte{hops, 0})
	l.add(write)
}

func (Notrack) linearize(l *linearizer) { l.add(&expr.Notrack{}) }

func (u UseObject) linearize(l *linearizer) { l.refuse(fmt.Errorf("%q cannot be written", u)) }

func (a AnyOf) linearize(l *linearizer) { l.refuse(fmt.Errorf("%q cannot be written", a)) }

func (d Dup) linearize(l *linearizer) {
	if d.Addr != "" {
		l.add(&expr.Immediate{Register: unix.NFT_REG_1, Data: []byte(d.Addr)}, &expr.Dup{RegAddr: unix.NFT_REG_1})
		return
	}
	l.load(d.Key)
	l.add(
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: d.Map, IsDestRegSet: true, DestRegister: unix.NFT_REG_1},
		&expr.Dup{RegAddr: unix.NFT_REG_1})
}

func (u Update) linearize(l *linearizer) {
	l.load(u.Key)
	if u.With != "" {
		l.refuse(fmt.Errorf("%q cannot be written", u))
	}
	update := &expr.Dynset{SrcRegKey: unix.NFT_REG_1, SetName: u.Map, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: u.Timeout}
	if u.Add {
		update.Operation = unix.NFT_DYNSET_OP_ADD
	}
	if u.Data != nil {
		data := u.Key.Len() / 4
		l.loadFrom(data, u.Data)
		update.SrcRegData = register(data)
	}
	l.add(update)
}

func (d Delete) linearize(l *linearizer) {
	l.load(d.Key)
	l.add(&expr.Dynset{SrcRegKey: unix.NFT_REG_1, SetName: d.Set, Operation: netlinkattr.DynsetDelete})
}

// ICMP codes for port unreachable: type 3 code 3 in IPv4 (RFC 792), type 1 code 4 in IPv6 (RFC 4443).
const (
	icmpPortUnreachable   = 3
	icmpv6PortUnreachable = 4
)

func (f Family) reject() *expr.Reject {
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: byFamily[uint8](f, icmpPortUnreachable, icmpv6PortUnreachable)}
}

func (r Reject) linearize(l *linearizer) {
	if r.With != "" {
		l.refuse(fmt.Errorf("%q cannot be written", r))
	}
	l.add(r.Family.reject())
}

func (Counter) linearize(l *linearizer) { l.add(&expr.Counter{}) }

func (u Unknown) linearize(l *linearizer) {
	l.refuse(fmt.Errorf("%q was read from the kernel and cannot be written back", u))
}

func (v Verdict) linearize(l *linearizer) {
	if !v.Kind.known() {
		l.refuse(errors.New("a verdict that says nothing"))
		return
	}
	l.add(&expr.Verdict{Kind: v.Kind.kernel(), Chain: v.Chain})
}
