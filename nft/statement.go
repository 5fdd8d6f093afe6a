package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Statement is one step of a rule: a match, which ends the rule when it fails, or an action.
// It prints as nft lists it.
type Statement interface {
	String() string
	// linearize appends the kernel's expressions for the statement.
	linearize(l *linearizer)
}

// Op compares the two sides of a match.
type Op uint8

// The operators of a match.
const (
	Equal Op = iota
	NotEqual
)

// infix returns the operator and a space, as nft lists it: equality is not written.
func (o Op) infix() string {
	if o == NotEqual {
		return "!= "
	}
	return ""
}

// Match compares a field with a value of the field's type, as in `meta l4proto tcp`.
type Match struct {
	Field Field
	Op    Op
	Value Data
}

func (m Match) String() string {
	return m.Field.String() + " " + m.Op.infix() + Concat{m.Field}.Format(m.Value)
}

// MatchPrefix compares an address field with a prefix, as in `ip saddr != 10.244.0.0/16`.
// A prefix with host bits set is masked.
type MatchPrefix struct {
	Field  Field
	Op     Op
	Prefix netip.Prefix
}

func (m MatchPrefix) String() string {
	p := m.Prefix.Masked()
	text := p.String()
	if p.IsSingleIP() {
		text = p.Addr().String()
	}
	return m.Field.String() + " " + m.Op.infix() + text
}

// MatchFlags holds when any of the bits is set, as in `ct state new`.
type MatchFlags struct {
	Field Field
	Bits  uint32
}

func (m MatchFlags) String() string {
	return m.Field.String() + " " + Concat{m.Field}.Format(IntegerData(m.Bits))
}

// MatchMark holds when the packet mark has all the bits, as in `meta mark & 0x00004000 == 0x00004000`.
type MatchMark struct {
	Bits uint32
}

func (m MatchMark) String() string {
	return fmt.Sprintf("meta mark & 0x%08x == 0x%08x", m.Bits, m.Bits)
}

// MatchIfname compares an interface name field; a Name that ends in "*" stands for every
// name that starts with what is before it, as in `iifname "veth*"`.
type MatchIfname struct {
	Field Field
	Op    Op
	Name  string
}

func (m MatchIfname) String() string {
	return m.Field.String() + " " + m.Op.infix() + quote(m.Name)
}

// InSet holds when the key is (or, with NotEqual, is not) an element of the named set.
type InSet struct {
	Key Concat
	Op  Op
	Set string
}

func (m InSet) String() string { return m.Key.String() + " " + m.Op.infix() + "@" + m.Set }

// Vmap looks the key up in the named map and applies the verdict. If the map lacks the key, the next rule runs.
type Vmap struct {
	Key Concat
	Map string
}

func (v Vmap) String() string { return v.Key.String() + " vmap @" + v.Map }

// SetMarkBits sets bits of the packet mark, as in `meta mark set meta mark | 0x00004000`.
type SetMarkBits struct {
	Bits uint32
}

func (s SetMarkBits) String() string { return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.Bits) }

// FlipMarkBits flips bits of the packet mark, as in `meta mark set meta mark ^ 0x00004000`.
type FlipMarkBits struct {
	Bits uint32
}

func (s FlipMarkBits) String() string { return fmt.Sprintf("meta mark set meta mark ^ 0x%08x", s.Bits) }

// DNAT translates the destination to the address and port that the named map has for the key. If the map lacks the key,
// the next rule runs.
type DNAT struct {
	Family Family
	Key    Concat
	Map    string
}

func (d DNAT) String() string {
	return fmt.Sprintf("dnat %s to %s map @%s", d.Family, d.Key, d.Map)
}

// Update adds an element to the named Dynamic map. Its key and value are those of Key and Data for the packet, and it
// expires after Timeout. If the map has the key already, the element keeps its value, and its timeout starts anew.
type Update struct {
	Map       string
	Key, Data Concat
	// Timeout is in whole milliseconds.
	Timeout time.Duration
}

func (u Update) String() string {
	return fmt.Sprintf("update @%s { %s timeout %s : %s }", u.Map, u.Key, formatDuration(u.Timeout), u.Data)
}

// Masquerade translates the source to an address of the outgoing interface, to a fully
// random port, so that connections from many clients do not collide.
type Masquerade struct{}

func (Masquerade) String() string { return "masquerade fully-random" }

// Reject drops the packet and answers with ICMP (or ICMPv6) port unreachable, which a
// client sees as "connection refused".
type Reject struct {
	Family Family
}

func (Reject) String() string { return "reject" }

// Counter counts packets and bytes. The counts are not part of the rule.
type Counter struct{}

func (Counter) String() string { return "counter" }

// Unknown is an expression in a rule of the kernel's that this package cannot express.
// It only ever comes from Conn.ReadTable.
type Unknown struct {
	// Name is the kernel's name for the expression.
	Name string
}

func (u Unknown) String() string { return "unknown-" + u.Name }

// Verdict decides on a packet. It is a Statement, and the value of an element of a verdict map.
type Verdict struct {
	Kind VerdictKind
	// Chain is where jump and goto go.
	Chain string
}

// VerdictKind is the kind of a verdict. The zero value is no verdict.
type VerdictKind uint8

// The kinds of verdicts.
const (
	VerdictAccept VerdictKind = iota + 1
	VerdictDrop
	VerdictReturn
	VerdictJump
	VerdictGoto
)

var verdictNames = [...]string{
	VerdictAccept: "accept", VerdictDrop: "drop", VerdictReturn: "return", VerdictJump: "jump", VerdictGoto: "goto",
}

// The verdicts that lead nowhere.
var (
	// Accept ends the base chain; the packet goes on to the next one.
	Accept = Verdict{Kind: VerdictAccept}
	// Drop drops the packet silently.
	Drop = Verdict{Kind: VerdictDrop}
	// Return goes back to the chain that jumped here. In a base chain its policy decides.
	Return = Verdict{Kind: VerdictReturn}
)

// Jump returns the verdict that runs a chain and comes back.
func Jump(chain string) Verdict { return Verdict{VerdictJump, chain} }

// Goto returns the verdict that runs a chain and does not come back.
func Goto(chain string) Verdict { return Verdict{VerdictGoto, chain} }

func (v Verdict) String() string {
	if int(v.Kind) >= len(verdictNames) || v.Kind == 0 {
		return fmt.Sprintf("verdict-%d", v.Kind)
	}
	return strings.TrimSpace(verdictNames[v.Kind] + " " + v.Chain)
}

// ifnameData returns the bytes to compare an interface name with: all sixteen for an
// exact name, only those before the "*" for a wildcard, as nft does.
func ifnameData(name string) []byte {
	if prefix, ok := strings.CutSuffix(name, "*"); ok {
		return []byte(prefix)
	}
	b := make([]byte, 16)
	copy(b, name)
	return b
}

func hostOrder(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
