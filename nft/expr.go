package nft

import (
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Expr is a value that the kernel computes for each packet: a Field of the packet or of its metadata, a Numgen or a
// JHash. It prints as nft writes it.
type Expr interface {
	// String returns the expression as nft writes it.
	String() string
	dataType() dataType
	// loadVia returns the kernel's expressions that put the value into a register. They may use scratch and the registers
	// after it for values in between.
	loadVia(register, scratch uint32) []expr.Any
}

// typePart is an Expr that can be part of a set's type. typeof appends the description that nft keeps in a set's
// userdata: nft prints "typeof" from it, and reads elements by it.
type typePart interface {
	Expr
	typeof(b []byte) []byte
}

// Field is a packet field or a piece of metadata.
type Field uint8

// The fields, named as in nft. Addresses, ports, L4proto, the mark and interface names can be in the Key and Data of a
// Set. The others can be in rules only, also in the key of a lookup: a set whose keys are "ct original ip daddr" has
// IPDaddr in its Key, which has the same type. Committing a set with one of them is ErrInvalid.
const (
	IPSaddr Field = iota + 1
	IPDaddr
	IP6Saddr
	IP6Daddr
	ThSport
	ThDport
	MetaL4proto
	MetaMark
	MetaIifname
	MetaOifname
	CTState
	CTStatus
	FibSaddrType
	FibDaddrType
	CTOriginalIPDaddr
	CTOriginalIP6Daddr
	CTOriginalProtoDst
	CTReplyProtoSrc
	// TCPFlags is for packets whose MetaL4proto the rule has compared with TCP.
	TCPFlags
	IPTTL
	IP6Hoplimit
	// ICMPType and ICMPv6Type are for packets whose MetaL4proto the rule has compared with ICMP, or with ICMPv6.
	ICMPType
	ICMPv6Type
	// The others are parts of the packet that an ICMP error quotes, of a packet without IP options or extension headers: nft
	// has no names for them, and takes them for integers. The protocol and the source port can be in the Key of a Set.
	IPQuotedDaddr
	IPQuotedProtocol
	IPQuotedSport
	IPQuotedDport
	IP6QuotedDaddr
	IP6QuotedProtocol
	IP6QuotedSport
	IP6QuotedDport
)

// Fields for rules of other programs. No set of this package has them in its type.
const (
	IPProtocol Field = IP6QuotedDport + 1 + iota
	IP6Nexthdr
	EtherSaddr
	EtherDaddr
	EtherType
	MetaNfproto
	MetaProtocol
	MetaIif
	MetaOif
	MetaPkttype
	MetaSkuid
	MetaSkgid
	MetaLength
	MetaCgroup
	MetaIiftype
	MetaPriority
	MetaNftrace
	CTMark
	CTDirection
	CTZone
	CTOriginalIPSaddr
	CTOriginalIP6Saddr
	CTReplyIPSaddr
	CTReplyIP6Saddr
	CTReplyProtoDst
	CTOriginalProtoSrc
)

type fieldSpec struct {
	name string
	typ  dataType
	load func(register uint32) expr.Any
	// nft's numbers for "typeof": the kind of the expression, then protocol description and template (payload) or the
	// key (meta). A kind of 0 means that the field cannot be in a set's type. Payload without a description is raw.
	kind, desc, key uint32
}

// InFamily reports whether packets of the family have the field. Offsets of fields of both families can coincide.
func (f Field) InFamily(family Family) bool {
	switch f {
	case IPSaddr, IPDaddr, IPTTL, IPProtocol, ICMPType, IPQuotedDaddr, IPQuotedProtocol, IPQuotedSport, IPQuotedDport:
		return family != FamilyIP6
	case IP6Saddr, IP6Daddr, IP6Hoplimit, IP6Nexthdr, ICMPv6Type, IP6QuotedDaddr, IP6QuotedProtocol, IP6QuotedSport, IP6QuotedDport:
		return family != FamilyIP
	}
	return true
}

// nft's enum expr_types and proto_desc_id, as stored in userdata since nft 0.9.4.
const (
	udataPayload = 7
	udataMeta    = 9
	udataConcat  = 13
	udataNumgen  = 23

	udataDescTH  = 11
	udataDescIP  = 12
	udataDescIP6 = 13

	udataBaseTransport = 3
)

func payload(base expr.PayloadBase, offset, length uint32) func(uint32) expr.Any {
	return func(register uint32) expr.Any {
		return &expr.Payload{OperationType: expr.PayloadLoad, Base: base, Offset: offset, Len: length, DestRegister: register}
	}
}

func meta(key expr.MetaKey) func(uint32) expr.Any {
	return func(register uint32) expr.Any { return &expr.Meta{Key: key, Register: register} }
}

func ct(key expr.CtKey) func(uint32) expr.Any { return ctOf(0, key) }

// ctOf loads part of the tuple that conntrack has for one direction of a connection (kernel 4.17).
func ctOf(direction uint32, key expr.CtKey) func(uint32) expr.Any {
	return func(register uint32) expr.Any { return &expr.Ct{Key: key, Direction: direction, Register: register} }
}

// fib loads the type of the source address, or else of the destination address.
func fib(source bool) func(uint32) expr.Any {
	return func(register uint32) expr.Any {
		return &expr.Fib{ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source, Register: register}
	}
}

var fields = [...]fieldSpec{
	IPSaddr:      {"ip saddr", typeIPv4, payload(expr.PayloadBaseNetworkHeader, 12, 4), udataPayload, udataDescIP, 11},
	IPDaddr:      {"ip daddr", typeIPv4, payload(expr.PayloadBaseNetworkHeader, 16, 4), udataPayload, udataDescIP, 12},
	IP6Saddr:     {"ip6 saddr", typeIPv6, payload(expr.PayloadBaseNetworkHeader, 8, 16), udataPayload, udataDescIP6, 8},
	IP6Daddr:     {"ip6 daddr", typeIPv6, payload(expr.PayloadBaseNetworkHeader, 24, 16), udataPayload, udataDescIP6, 9},
	ThSport:      {"th sport", typePort, payload(expr.PayloadBaseTransportHeader, 0, 2), udataPayload, udataDescTH, 1},
	ThDport:      {"th dport", typePort, payload(expr.PayloadBaseTransportHeader, 2, 2), udataPayload, udataDescTH, 2},
	MetaL4proto:  {"meta l4proto", typeProto, meta(expr.MetaKeyL4PROTO), udataMeta, 0, unix.NFT_META_L4PROTO},
	MetaMark:     {"meta mark", typeMark, meta(expr.MetaKeyMARK), udataMeta, 0, unix.NFT_META_MARK},
	MetaIifname:  {"iifname", typeIfname, meta(expr.MetaKeyIIFNAME), udataMeta, 0, unix.NFT_META_IIFNAME},
	MetaOifname:  {"oifname", typeIfname, meta(expr.MetaKeyOIFNAME), udataMeta, 0, unix.NFT_META_OIFNAME},
	CTState:      {"ct state", typeCTState, ct(expr.CtKeySTATE), 0, 0, 0},
	CTStatus:     {"ct status", typeCTStat, ct(expr.CtKeySTATUS), 0, 0, 0},
	FibSaddrType: {"fib saddr type", typeFib, fib(true), 0, 0, 0},
	FibDaddrType: {"fib daddr type", typeFib, fib(false), 0, 0, 0},

	CTOriginalIPDaddr:  {"ct original ip daddr", typeIPv4, ctOf(expr.CtDirOriginal, expr.CtKeyDSTIP), 0, 0, 0},
	CTOriginalIP6Daddr: {"ct original ip6 daddr", typeIPv6, ctOf(expr.CtDirOriginal, expr.CtKeyDSTIP6), 0, 0, 0},
	CTOriginalProtoDst: {"ct original proto-dst", typePort, ctOf(expr.CtDirOriginal, expr.CtKeyPROTODST), 0, 0, 0},
	CTReplyProtoSrc:    {"ct reply proto-src", typePort, ctOf(expr.CtDirReply, expr.CtKeyPROTOSRC), 0, 0, 0},

	TCPFlags:    {"tcp flags", typeTCPFlags, payload(expr.PayloadBaseTransportHeader, 13, 1), 0, 0, 0},
	IPTTL:       {"ip ttl", typeByte, payload(expr.PayloadBaseNetworkHeader, 8, 1), 0, 0, 0},
	IP6Hoplimit: {"ip6 hoplimit", typeByte, payload(expr.PayloadBaseNetworkHeader, 7, 1), 0, 0, 0},
	ICMPType:    {"icmp type", typeICMP, payload(expr.PayloadBaseTransportHeader, 0, 1), 0, 0, 0},
	ICMPv6Type:  {"icmpv6 type", typeICMPv6, payload(expr.PayloadBaseTransportHeader, 0, 1), 0, 0, 0},

	IPQuotedDaddr:     quoted(24, typeRaw(4), 0),
	IPQuotedProtocol:  quoted(17, typeRaw(1), udataPayload),
	IPQuotedSport:     quoted(28, typeRaw(2), udataPayload),
	IPQuotedDport:     quoted(30, typeRaw(2), 0),
	IP6QuotedDaddr:    quoted(32, typeRaw(16), 0),
	IP6QuotedProtocol: quoted(14, typeRaw(1), udataPayload),
	IP6QuotedSport:    quoted(48, typeRaw(2), udataPayload),
	IP6QuotedDport:    quoted(50, typeRaw(2), 0),

	IPProtocol:   {"ip protocol", typeProto, payload(expr.PayloadBaseNetworkHeader, 9, 1), 0, 0, 0},
	IP6Nexthdr:   {"ip6 nexthdr", typeProto, payload(expr.PayloadBaseNetworkHeader, 6, 1), 0, 0, 0},
	EtherDaddr:   {"ether daddr", typeEther, payload(expr.PayloadBaseLLHeader, 0, 6), 0, 0, 0},
	EtherSaddr:   {"ether saddr", typeEther, payload(expr.PayloadBaseLLHeader, 6, 6), 0, 0, 0},
	EtherType:    {"ether type", typeEtherType, payload(expr.PayloadBaseLLHeader, 12, 2), 0, 0, 0},
	MetaNfproto:  {"meta nfproto", typeNfproto, meta(expr.MetaKeyNFPROTO), 0, 0, 0},
	MetaProtocol: {"meta protocol", typeEtherType, meta(expr.MetaKeyPROTOCOL), 0, 0, 0},
	MetaIif:      {"iif", typeInteger, meta(expr.MetaKeyIIF), 0, 0, 0},
	MetaOif:      {"oif", typeInteger, meta(expr.MetaKeyOIF), 0, 0, 0},
	MetaPkttype:  {"meta pkttype", typeByte, meta(expr.MetaKeyPKTTYPE), 0, 0, 0},
	MetaSkuid:    {"meta skuid", typeInteger, meta(expr.MetaKeySKUID), 0, 0, 0},
	MetaSkgid:    {"meta skgid", typeInteger, meta(expr.MetaKeySKGID), 0, 0, 0},
	MetaLength:   {"meta length", typeInteger, meta(expr.MetaKeyLEN), 0, 0, 0},
	MetaCgroup:   {"meta cgroup", typeInteger, meta(expr.MetaKeyCGROUP), 0, 0, 0},
	MetaIiftype:  {"meta iiftype", typeRaw(2), meta(expr.MetaKeyIIFTYPE), 0, 0, 0},
	MetaPriority: {"meta priority", typeInteger, meta(expr.MetaKeyPRIORITY), 0, 0, 0},
	MetaNftrace:  {"meta nftrace", typeByte, meta(expr.MetaKeyNFTRACE), 0, 0, 0},

	CTMark:             {"ct mark", typeMark, ct(expr.CtKeyMARK), 0, 0, 0},
	CTDirection:        {"ct direction", typeByte, ct(expr.CtKeyDIRECTION), 0, 0, 0},
	CTZone:             {"ct zone", typeRaw(2), ct(expr.CtKeyZONE), 0, 0, 0},
	CTOriginalIPSaddr:  {"ct original ip saddr", typeIPv4, ctOf(expr.CtDirOriginal, expr.CtKeySRCIP), 0, 0, 0},
	CTOriginalIP6Saddr: {"ct original ip6 saddr", typeIPv6, ctOf(expr.CtDirOriginal, expr.CtKeySRCIP6), 0, 0, 0},
	CTReplyIPSaddr:     {"ct reply ip saddr", typeIPv4, ctOf(expr.CtDirReply, expr.CtKeySRCIP), 0, 0, 0},
	CTReplyIP6Saddr:    {"ct reply ip6 saddr", typeIPv6, ctOf(expr.CtDirReply, expr.CtKeySRCIP6), 0, 0, 0},
	CTReplyProtoDst:    {"ct reply proto-dst", typePort, ctOf(expr.CtDirReply, expr.CtKeyPROTODST), 0, 0, 0},
	CTOriginalProtoSrc: {"ct original proto-src", typePort, ctOf(expr.CtDirOriginal, expr.CtKeyPROTOSRC), 0, 0, 0},
}

// quoted is part of an ICMP message, whose header of eight bytes the quoted packet follows.
func quoted(offset uint32, typ dataType, kind uint32) fieldSpec {
	name := fmt.Sprintf("@th,%d,%d", 8*offset, 8*typ.length)
	return fieldSpec{name, typ, payload(expr.PayloadBaseTransportHeader, offset, uint32(typ.length)), kind, 0, 0}
}

// String returns the field as nft writes it, such as "ip daddr".
func (f Field) String() string {
	if int(f) < len(fields) && f != 0 {
		return fields[f].name
	}
	return fmt.Sprintf("field-%d", uint8(f))
}

func (f Field) dataType() dataType { return fields[f].typ }

func (f Field) loadVia(register, _ uint32) []expr.Any { return []expr.Any{f.load(register)} }

// load returns the kernel's expression that puts the field into a register.
func (f Field) load(register uint32) expr.Any { return fields[f].load(register) }

func (f Field) typeof(b []byte) []byte {
	spec := fields[f]
	b = appendUdataU32(b, 0, spec.kind)
	switch raw, _ := f.load(0).(*expr.Payload); {
	case spec.kind == udataPayload && spec.desc == 0:
		return appendNested(b, 1, func(b []byte) []byte {
			for i, v := range []uint32{spec.desc, spec.key, udataBaseTransport, 8 * raw.Offset, 8 * raw.Len} {
				b = appendUdataU32(b, byte(i), v)
			}
			return b
		})
	case spec.kind == udataPayload:
		b = append(b, 1, 12)
		b = appendUdataU32(b, 0, spec.desc)
		return appendUdataU32(b, 1, spec.key)
	case spec.kind == udataMeta:
		b = append(b, 1, 6)
		return appendUdataU32(b, 0, spec.key)
	}
	return b // checkType refuses the field
}

// Numgen is "numgen random mod Mod": a number from 0 to Mod-1, drawn anew at each evaluation.
type Numgen struct {
	// Mod is the number of different results, at least 1. In a set's type its value has no meaning, but nft prints it.
	Mod uint32
	// Offset is added to the result.
	Offset uint32
	// Inc counts instead of drawing: "numgen inc".
	Inc bool
}

// String returns the expression as nft writes it.
func (n Numgen) String() string {
	kind := "random"
	if n.Inc {
		kind = "inc"
	}
	text := fmt.Sprintf("numgen %s mod %d", kind, n.Mod)
	if n.Offset > 0 {
		text += fmt.Sprintf(" offset %d", n.Offset)
	}
	return text
}

func (n Numgen) kind() uint32 {
	if n.Inc {
		return unix.NFT_NG_INCREMENTAL
	}
	return unix.NFT_NG_RANDOM
}

func (n Numgen) dataType() dataType { return typeInteger }

func (n Numgen) loadVia(register, _ uint32) []expr.Any {
	return []expr.Any{&expr.Numgen{Register: register, Modulus: n.Mod, Type: n.kind(), Offset: n.Offset}}
}

func (n Numgen) typeof(b []byte) []byte {
	b = appendUdataU32(b, 0, udataNumgen)
	b = append(b, 1, 18)
	b = appendUdataU32(b, 0, unix.NFT_NG_RANDOM)
	b = appendUdataU32(b, 1, n.Mod)
	return appendUdataU32(b, 2, 0)
}

// JHash is "jhash Field mod Mod seed Seed": a number from 0 to Mod-1 that depends on the value of the field, or of two,
// and on nothing else (the kernel's Jenkins hash, CONFIG_NFT_HASH). It cannot be part of a set's type; use Numgen
// there, which has the same type.
type JHash struct {
	// Field is hashed, and after it And, if that is not 0: "jhash Field . And mod Mod seed Seed".
	Field, And Field
	// Mod is the number of different results, at least 1. The same Seed gives the same results on every machine of one
	// byte order.
	Mod, Seed uint32
	// Offset is added to the result.
	Offset uint32
}

// String returns the expression as nft writes it.
func (h JHash) String() string {
	text := fmt.Sprintf("jhash %s mod %d seed 0x%x", h.Fields(), h.Mod, h.Seed)
	if h.Offset > 0 {
		text += fmt.Sprintf(" offset %d", h.Offset)
	}
	return text
}

// Fields returns the fields that are hashed.
func (h JHash) Fields() Concat {
	if h.And == 0 {
		return Concat{h.Field}
	}
	return Concat{h.Field, h.And}
}

func (h JHash) dataType() dataType { return typeInteger }

func (h JHash) loadVia(destination, scratch uint32) []expr.Any {
	loads := []expr.Any{h.Field.load(scratch)}
	if h.And != 0 {
		loads = append(loads, h.And.load(register(registerIndex(scratch)+netlinkattr.Padded(h.Field.dataType().length)/4)))
	}
	return append(loads, &expr.Hash{
		SourceRegister: scratch, DestRegister: destination, Length: uint32(h.Fields().keyLen()),
		Modulus: h.Mod, Seed: h.Seed, Offset: h.Offset, Type: expr.HashTypeJenkins,
	})
}

// Concat is one or more expressions side by side, nft's "a . b . c": the key of a lookup,
// or the type of a set's key or data.
type Concat []Expr

// String joins the parts with " . ", as nft does.
func (c Concat) String() string {
	parts := make([]string, len(c))
	for i, e := range c {
		parts[i] = e.String()
	}
	return strings.Join(parts, " . ")
}

// Len is the number of bytes of a value of the concatenation as Data, padding included.
func (c Concat) Len() int {
	n := 0
	for _, e := range c {
		n += netlinkattr.Padded(e.dataType().length)
	}
	return n
}

// typeID packs the data types of the parts six bits each, as nft does for concatenations.
func (c Concat) typeID() uint32 {
	var id uint32
	for _, e := range c {
		id = id<<6 | e.dataType().id
	}
	return id
}

// keyLen is the length that the kernel is told: the true one for a single field, the padded one for several.
func (c Concat) keyLen() int {
	if len(c) == 1 {
		return c[0].dataType().length
	}
	return c.Len()
}

// Format prints a value of the concatenation as nft writes it in an element, such as
// "10.96.0.10 . tcp . 80". Data of another length prints as hexadecimal.
func (c Concat) Format(d Data) string {
	var b strings.Builder
	c.appendFormat(&b, d)
	return b.String()
}

func (c Concat) appendFormat(b *strings.Builder, d Data) {
	if len(d) != c.Len() {
		fmt.Fprintf(b, "0x%x", string(d))
		return
	}
	for i, e := range c {
		if i > 0 {
			b.WriteString(" . ")
		}
		t := e.dataType()
		b.WriteString(t.format(string(d[:t.length])))
		d = d[netlinkattr.Padded(t.length):]
	}
}
