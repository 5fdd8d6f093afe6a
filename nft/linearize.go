package nft

import (
	"net"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// linearizer turns the statements of a rule into the kernel's register machine, with the
// same registers and shortcuts that the nft program uses, so that both list alike.
type linearizer struct {
	out []expr.Any
}

func (l *linearizer) add(e ...expr.Any) { l.out = append(l.out, e...) }

// linearize returns the kernel's expressions for a rule.
func (r Rule) linearize() []expr.Any {
	var l linearizer
	for _, s := range r.Statements {
		s.linearize(&l)
	}
	return l.out
}

// register numbers the i-th 32-bit register as nft does: by the 128-bit register
// that starts there if one does, else by its own number.
func register(i int) uint32 {
	if i%4 == 0 {
		return uint32(unix.NFT_REG_1 + i/4)
	}
	return uint32(unix.NFT_REG32_00 + i)
}

// registerIndex is the inverse of register.
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
		l.add(e.loadVia(register(i), scratch)...)
		i += netlinkattr.Padded(e.dataType().length) / 4
	}
}

func (o Op) cmp() expr.CmpOp {
	if o == NotEqual {
		return expr.CmpOpNeq
	}
	return expr.CmpOpEq
}

func (m Match) linearize(l *linearizer) {
	l.load(Concat{m.Field})
	l.add(&expr.Cmp{Op: m.Op.cmp(), Register: unix.NFT_REG_1, Data: []byte(m.Value)[:m.Field.dataType().length]})
}

func (m MatchPrefix) linearize(l *linearizer) {
	addr := m.Prefix.Masked().Addr().AsSlice()
	load := m.Field.load(unix.NFT_REG_1).(*expr.Payload)
	bits := m.Prefix.Bits()
	if bits > 0 && bits%8 == 0 {
		load.Len = uint32(bits / 8)
		l.add(load, &expr.Cmp{Op: m.Op.cmp(), Register: unix.NFT_REG_1, Data: addr[:load.Len]})
		return
	}
	l.add(load,
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: load.Len, Mask: net.CIDRMask(bits, 8*len(addr)), Xor: make([]byte, len(addr))},
		&expr.Cmp{Op: m.Op.cmp(), Register: unix.NFT_REG_1, Data: addr})
}

// setMark appends "mark = (mark & mask) ^ xor".
func (l *linearizer) setMark(mask, xor uint32) {
	l.load(Concat{MetaMark})
	l.mask(mask, xor)
	l.add(&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1})
}

// mask appends "register 1 = (register 1 & mask) ^ xor".
func (l *linearizer) mask(mask, xor uint32) {
	l.add(&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: AppendInteger(nil, mask), Xor: AppendInteger(nil, xor)})
}

func (m MatchFlags) linearize(l *linearizer) {
	l.load(Concat{m.Field})
	l.mask(m.Bits, 0)
	l.add(&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: AppendInteger(nil, 0)})
}

func (m MatchMark) linearize(l *linearizer) {
	l.load(Concat{MetaMark})
	l.mask(m.Bits, 0)
	l.add(&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: AppendInteger(nil, m.Bits)})
}

func (m MatchIfname) linearize(l *linearizer) {
	l.load(Concat{m.Field})
	l.add(&expr.Cmp{Op: m.Op.cmp(), Register: unix.NFT_REG_1, Data: ifnameData(m.Name)})
}

func (m InSet) linearize(l *linearizer) {
	l.load(m.Key)
	l.add(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: m.Set, Invert: m.Op == NotEqual})
}

func (v Vmap) linearize(l *linearizer) {
	l.load(v.Key)
	l.add(&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: v.Map, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT})
}

func (s SetMarkBits) linearize(l *linearizer) { l.setMark(^s.Bits, s.Bits) }

func (s FlipMarkBits) linearize(l *linearizer) { l.setMark(^uint32(0), s.Bits) }

func (d DNAT) linearize(l *linearizer) {
	l.load(d.Key)
	port := netlinkattr.Padded(d.Family.Daddr().dataType().length) / 4
	l.add(
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: d.Map, IsDestRegSet: true, DestRegister: unix.NFT_REG_1},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(d.Family.nfproto()), RegAddrMin: unix.NFT_REG_1, RegProtoMin: register(port)})
}

func (u Update) linearize(l *linearizer) {
	l.load(u.Key)
	data := u.Key.Len() / 4
	l.loadFrom(data, u.Data)
	l.add(&expr.Dynset{SrcRegKey: unix.NFT_REG_1, SrcRegData: register(data), SetName: u.Map, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: u.Timeout})
}

func (Masquerade) linearize(l *linearizer) { l.add(&expr.Masq{FullyRandom: true}) }

// ICMP codes for port unreachable: type 3 code 3 in IPv4 (RFC 792), type 1 code 4 in IPv6 (RFC 4443).
const (
	icmpPortUnreachable   = 3
	icmpv6PortUnreachable = 4
)

func (r Reject) linearize(l *linearizer) {
	l.add(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: byFamily[uint8](r.Family, icmpPortUnreachable, icmpv6PortUnreachable)})
}

func (Counter) linearize(l *linearizer) { l.add(&expr.Counter{}) }

// linearize adds nothing: an unknown expression cannot be written. encodeExpressions refuses the rule before it calls
// this.
func (u Unknown) linearize(*linearizer) {}

func (v Verdict) linearize(l *linearizer) {
	l.add(&expr.Verdict{Kind: v.Kind.kernel(), Chain: v.Chain})
}
