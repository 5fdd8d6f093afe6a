package nft

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
)

// Statement is one step of a rule: a match, which ends the rule when it fails, or an action.
type Statement interface {
	// String returns the statement as nft lists it.
	String() string
	// linearize appends the kernel's expressions for the statement.
	linearize(l *linearizer)
}

// InSet holds when the key is (with NotEqual: is not) an element of the named set, as in `ip daddr @blocked`.
type InSet struct {
	// Key is of the type of the set's Key.
	Key Concat
	Op  Op
	// Set is the name of a set of the rule's table.
	Set string
}

// String returns the statement as nft lists it.
func (m InSet) String() string { return m.Key.String() + " " + m.Op.infix() + "@" + m.Set }

// Vmap looks the key up in the named map and applies the verdict, as in `ip daddr vmap @services`. If the map lacks the
// key, the next rule runs.
type Vmap struct {
	// Key is of the type of the map's Key.
	Key Concat
	// Map is the name of a verdict map of the rule's table.
	Map string
}

// String returns the statement as nft lists it.
func (v Vmap) String() string { return v.Key.String() + " vmap @" + v.Map }

// Dup looks the key up in the named map, and sends a copy of the packet, as it is, to where the host's routes lead to
// the address that it finds, as in `dup to ip daddr map @neighbours`. The copy has one less TTL, and conntrack does not
// track it. It meets the hooks output and postrouting of the node. If the map lacks the key, the next rule runs.
type Dup struct {
	// Key is of the type of the map's Key.
	Key Concat
	// Map is the name of a map of the rule's table, whose Data is an address of the table's family.
	Map string
	// Addr is the address, in place of Key and Map, as in `dup to 192.0.2.1`.
	Addr Constant
}

// String returns the statement as nft lists it.
func (d Dup) String() string {
	if d.Addr != "" {
		return "dup to " + d.Addr.String()
	}
	return "dup to " + d.Key.String() + " map @" + d.Map
}

// Update adds an element to the named Dynamic map, as in `update @clients { ip saddr timeout 3h : ip daddr . th
// dport }`, or to a Dynamic set. Key and Data, evaluated for the packet, are its key and value. If the map has the key
// already, the element keeps its value, and its timeout starts anew. If the map is full, the rule ends.
type Update struct {
	// Map is the name of a Dynamic map or set of the rule's table.
	Map string
	// Key and Data are of the types of the map's Key and Data. Data is nil for a set.
	Key, Data Concat
	// Timeout is in whole milliseconds.
	Timeout time.Duration
	// Add keeps the timeout of an existing element: "add" in place of "update".
	Add bool
	// With has the names of expressions in each element, such as "limit". The rule ends if such an expression does not match.
	// A rule with such expressions cannot be committed.
	With string
}

// String returns the statement as nft lists it.
func (u Update) String() string {
	word, timeout, data := "update", "", ""
	if u.Add {
		word = "add"
	}
	if u.Timeout > 0 {
		timeout = "timeout " + formatDuration(u.Timeout)
	}
	if u.Data != nil {
		data = ": " + u.Data.String()
	}
	return fmt.Sprintf("%s @%s { %s }", word, u.Map, strings.Join(present(u.Key.String(), timeout, u.With, data), " "))
}

// Delete removes an element from the named Dynamic set, if it is there, as in `delete @asked { ip saddr }`.
type Delete struct {
	// Set is the name of a Dynamic set of the rule's table.
	Set string
	// Key is of the type of the set's Key.
	Key Concat
}

// String returns the statement as nft lists it.
func (d Delete) String() string { return fmt.Sprintf("delete @%s { %s }", d.Set, d.Key) }

// Reject drops the packet and answers with ICMP (or ICMPv6) port unreachable: "connection refused". It is for the
// hooks input, forward and output.
type Reject struct {
	// Family is the family of the rule's table.
	Family Family
	// With is another answer, such as "tcp reset"; empty for port unreachable. A rule with another answer cannot be committed.
	With string
}

// TCPReset is the With of a Reject that answers with a TCP segment that ends the connection.
const TCPReset = "tcp reset"

// String returns the statement as nft lists it.
func (r Reject) String() string {
	if r.With != "" {
		return "reject with " + r.With
	}
	return "reject"
}

// Counter counts packets and bytes. The counts are not part of the value.
type Counter struct{}

// String returns the statement as nft lists it, without the counts.
func (Counter) String() string { return "counter" }

// Assign sets a field of the packet, of its connection or of its metadata, as in `ct mark set meta mark`. This package
// can commit fields of meta and ct, and the TTL.
type Assign struct {
	// To is a Field or a Payload, or Opaque for what has no name here.
	To, Value Expr
}

// String returns the statement as nft lists it.
func (a Assign) String() string {
	value := a.Value.String()
	if c, is := a.Value.(Constant); is {
		value = a.To.dataType().text(Data(c))
	}
	return a.To.String() + " set " + value
}

// SetMark sets bits of the packet mark, as in `meta mark set meta mark | 0x00004000`. They are in host byte order.
func SetMark(bits uint32) Assign { return changeMark(^bits, bits) }

// SetsMark reports whether the statement sets bits of the packet mark, as SetMark does.
func (a Assign) SetsMark() bool {
	bits, _ := a.Value.(Bits)
	return a.To == MetaMark && bits.Of == MetaMark && !isZero(bits.Xor) && bits.sets()
}

// FlipMark flips bits of the packet mark, as in `meta mark set meta mark ^ 0x00004000`. They are in host byte order.
func FlipMark(bits uint32) Assign { return changeMark(^uint32(0), bits) }

func changeMark(mask, xor uint32) Assign {
	return Assign{MetaMark, Bits{Of: MetaMark, Mask: IntegerData(mask), Xor: IntegerData(xor)}}
}

// SetTTL sets the number of hops that the packet may still take, as in `ip ttl set 8`. The family is that of the rule's
// table.
func SetTTL(family Family, hops uint8) Assign { return Assign{family.TTL(), Constant([]byte{hops})} }

// NAT translates an end of the connection, as in `snat to 192.0.2.1`. This package can commit masquerading, and a single
// address and port of the other kinds.
type NAT struct {
	Kind NATKind
	// Family is the family of the addresses.
	Family Family
	// Addr and Port are the new address and port, or the first of a range up to AddrEnd and PortEnd; nil for none.
	Addr, AddrEnd, Port, PortEnd Expr
	// Flags are as nft writes them, such as "persistent".
	Flags string
}

// NATKind is nft's word for what a NAT does.
type NATKind string

// The kinds of NAT.
const (
	SourceNAT      NATKind = "snat"
	DestinationNAT NATKind = "dnat"
	MasqueradeNAT  NATKind = "masquerade"
	RedirectNAT    NATKind = "redirect"
)

// DNAT looks the key up in the named map and translates the destination to the address and port that it finds, as in
// `dnat ip to ip daddr map @endpoints`. If the map lacks the key, the next rule runs. The family is that of the rule's
// table. It is for chains of type nat at the hooks prerouting and output.
func DNAT(family Family, key Concat, name string) NAT {
	addr := Mapped{Key: key, Map: name, Length: family.Daddr().dataType().length}
	return NAT{Kind: DestinationNAT, Family: family, Addr: addr, Port: addr.port()}
}

// Masquerade translates the source to an address of the outgoing interface and to a random port. It is for chains of type
// nat at the hook postrouting.
var Masquerade = NAT{Kind: MasqueradeNAT, Flags: "fully-random"}

// Map returns the name of the map that has the address; empty if no map has it.
func (n NAT) Map() string {
	m, _ := n.Addr.(Mapped)
	return m.Map
}

// String returns the statement as nft lists it.
func (n NAT) String() string {
	to, family := "", ""
	if n.Addr != nil {
		to = n.Addr.String()
		if _, is := n.Addr.(Constant); is && n.Family == FamilyIP6 && n.Port != nil {
			to = "[" + to + "]"
		}
		if n.AddrEnd != nil {
			to += "-" + n.AddrEnd.String()
		}
	}
	if _, both := n.Port.(Mapped); both {
		family = n.Family.String()
	} else if n.Port != nil {
		to += ":" + n.Port.String()
		if n.PortEnd != nil {
			to += "-" + n.PortEnd.String()
		}
	}
	if to != "" {
		to = "to " + to
	}
	return strings.Join(present(string(n.Kind), family, to, n.Flags), " ")
}

// Notrack keeps conntrack from tracking the packet.
type Notrack struct{}

// String returns the statement as nft lists it.
func (Notrack) String() string { return "notrack" }

// UseObject runs a stateful object of the rule's table, as in `counter name "web"`.
type UseObject struct {
	// Kind is nft's word for the kind of the object, such as "quota".
	Kind, Name string
}

// String returns the statement as nft lists it.
func (u UseObject) String() string { return u.Kind + " name " + quote(u.Name) }

// AnyOf holds if one of the matches holds. nft has no such statement: an extension of xtables is read as AnyOf.
type AnyOf []Match

// String joins the matches with "or".
func (a AnyOf) String() string {
	var texts []string
	for _, m := range a {
		texts = append(texts, m.String())
	}
	return "(" + strings.Join(texts, " or ") + ")"
}

// Unknown is an expression of a rule of the kernel that this package cannot express. Committing it is ErrInvalid.
type Unknown struct {
	// Name is the kernel's name for the expression.
	Name string
}

// String returns "unknown-" and the name, which nft does not load.
func (u Unknown) String() string { return "unknown-" + u.Name }

// Verdict decides on a packet. It is a Statement, and the value of an element of a verdict map.
type Verdict struct {
	Kind VerdictKind
	// Chain is the name of the chain that jump and goto run; empty for the other kinds.
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

// verdicts are nft's word and the kernel's code for each kind.
var verdicts = [...]struct {
	name string
	code expr.VerdictKind
}{
	VerdictAccept: {"accept", expr.VerdictAccept}, VerdictDrop: {"drop", expr.VerdictDrop}, VerdictReturn: {"return", expr.VerdictReturn},
	VerdictJump: {"jump", expr.VerdictJump}, VerdictGoto: {"goto", expr.VerdictGoto},
}

func (k VerdictKind) known() bool { return k != 0 && int(k) < len(verdicts) }

func (k VerdictKind) kernel() expr.VerdictKind { return verdicts[k].code }

// verdictKind is the inverse of kernel. It returns 0 for codes of other verdicts, such as "queue".
func verdictKind(code expr.VerdictKind) VerdictKind {
	for k := VerdictAccept; k <= VerdictGoto; k++ {
		if k.kernel() == code {
			return k
		}
	}
	return 0
}

// The verdicts without a chain.
var (
	// Accept ends the base chain. The packet goes on to the next base chain of the hook.
	Accept = Verdict{Kind: VerdictAccept}
	// Drop drops the packet silently.
	Drop = Verdict{Kind: VerdictDrop}
	// Return continues after the rule that jumped to this chain. In a base chain, the policy decides.
	Return = Verdict{Kind: VerdictReturn}
)

// Jump returns the verdict that runs a chain and then continues with the next rule.
func Jump(chain string) Verdict { return Verdict{VerdictJump, chain} }

// Goto returns the verdict that runs a chain instead of the rest of the rule's chain.
func Goto(chain string) Verdict { return Verdict{VerdictGoto, chain} }

// String returns the verdict as nft lists it, such as "goto cluster-2".
func (v Verdict) String() string {
	if !v.Kind.known() {
		return fmt.Sprintf("verdict-%d", v.Kind)
	}
	return strings.TrimSpace(verdicts[v.Kind].name + " " + v.Chain)
}

// Rule is a sequence of statements. They run in this order, up to the first match that fails.
type Rule struct {
	// Statements are the matches and actions; none means a rule that does nothing.
	Statements []Statement
	// Comment is shown by nft; at most 127 bytes.
	Comment string
	// external says that the rule was read, and that the kernel's rule differs from what its Statements would be written as.
	external bool
	// anonymous are the lookups in sets without a name.
	anonymous []anonymousLookup
}

// anonymousLookup is a lookup in a set that stands in the rule.
type anonymousLookup struct {
	set *Set
	key Concat
}

// External reports whether the rule was read from the kernel and is not one that this package would write.
func (r Rule) External() bool { return r.external }

// NewRule returns a rule with the statements and without a comment.
func NewRule(statements ...Statement) Rule { return Rule{Statements: statements} }

// Equal reports whether the kernel does the same for both rules.
func (r Rule) Equal(o Rule) bool { return r.external == o.external && r.String() == o.String() }

// String prints the rule as nft lists it: sets without a name with their elements, and no matches that later matches imply.
func (r Rule) String() string {
	var words []string
	protocol, asked := "", -1
	for i, s := range r.Statements {
		text := s.String()
		m, is := s.(Match)
		if is && m.Op == Equal && (m.Field == MetaNfproto || m.Field == MetaProtocol) && i+1 < len(r.Statements) {
			continue
		}
		if protocol != "" {
			ports := strings.TrimPrefix(strings.ReplaceAll(" "+text, " th ", " "+protocol+" "), " ")
			if ports != text && asked == len(words)-1 {
				words, asked = words[:asked], -1
			}
			text = ports
		}
		if is && m.Op == Equal && m.Field == MetaL4proto {
			protocol, asked = m.valueText(), len(words)
		}
		words = append(words, text)
	}
	text := strings.Join(present(append(words, commentText(r.Comment))...), " ")
	for _, a := range r.anonymous {
		text = strings.ReplaceAll(text, "@"+a.set.Name, a.set.listedText(a.key))
	}
	return text
}

func setOf(s Statement) string {
	switch s := s.(type) {
	case InSet:
		return s.Set
	case Vmap:
		return s.Map
	case NAT:
		return s.Map()
	case Dup:
		return s.Map
	case Update:
		return s.Map
	case Delete:
		return s.Set
	}
	return ""
}

func sameRules(a, b []Rule) bool { return slices.EqualFunc(a, b, Rule.Equal) }
