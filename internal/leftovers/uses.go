package leftovers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// Others holds the rules of other programs that depend on the rules of kube-proxy's modes, or interfere with them.
type Others struct {
	// Uses are rules that jump to a chain of kube-proxy, or compare or set bits of the packet mark; at most 100.
	Uses []Use
	// Drops are base chains of the hooks input, forward and output.
	Drops []Drop
	// Tables are the tables of nf_tables and of iptables-legacy, such as "ip nat".
	Tables []string
	// Kubelet are the names of the kubelet's chains, each once.
	Kubelet []string
	// Chains are the names of all chains, without their tables, except the chains of kube-proxy and of the kubelet.
	Chains []string
}

// Use is a rule of another program.
type Use struct {
	// Chain has the rule: "ip nat CNI-HOSTPORT-SETMARK". Rule is the rule's place in it, from 1; 0 where it is not known.
	Chain string
	Rule  int
	// To is the chain of kube-proxy to which the rule jumps; empty for none.
	To string
	// Mark has the bits of the packet mark that the rule compares or sets, and Sets those that it sets or clears.
	Mark, Sets uint32
	// Whole says that the rule sets the whole mark, such as to the mark of the connection.
	Whole bool
	// translated says that the rule matches packets whose destination was translated, and accepts that the rule accepts.
	translated, accepts bool
}

// maxUses limits Others.Uses.
const maxUses = 100

// kubeletChains are the kubelet's own.
var kubeletChains = []string{"KUBE-FIREWALL", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-MARK-DROP"}

// FindOthers reads the rules of other programs in the network namespace of the calling thread: all tables of nf_tables
// but the proxy's, with the name own, and iptables-legacy. bits are the bits of the packet mark to look for. It changes
// nothing and needs CAP_NET_ADMIN. Where it cannot look, the error says so; what it found elsewhere is returned all the same.
func FindOthers(ctx context.Context, bits uint32, own string) (o Others, err error) {
	return o, errors.Join(o.findNFT(ctx, bits, own), o.findLegacy(bits))
}

func (o *Others) findNFT(ctx context.Context, bits uint32, own string) error {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	known := []*nft.Table{{Family: nft.FamilyIP, Name: own}, {Family: nft.FamilyIP6, Name: own}}
	tables, err := conn.ReadOthers(ctx, known...)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if slices.Contains(known, t) {
			continue
		}
		o.addTable(t, bits)
	}
	return nil
}

// OthersIn finds in tables of other programs what FindOthers finds on a node.
func OthersIn(tables []*nft.Table, bits uint32) (o Others) {
	for _, t := range tables {
		o.addTable(t, bits)
	}
	return o
}

func (o *Others) addTable(t *nft.Table, bits uint32) {
	o.Tables = append(o.Tables, fmt.Sprintf("%s %s", t.Family, t.Name))
	w := newWalk(table{t.Family, t.Name})
	for _, c := range t.Chains {
		if c.Hook != "" {
			w.addBase(c.Name, c.Hook, c.DropPolicy)
		}
		if !o.addChain(c.Name) {
			continue
		}
		for i, r := range c.Rules {
			o.addRule(w, place{c.Name, i + 1, c.Hook != ""}, r, bits)
		}
	}
	o.Drops = append(o.Drops, w.drops()...)
}

// place is a rule's place in a table.
type place struct {
	chain  string
	rule   int
	inBase bool
}

// addChain reports whether a chain is another program's.
func (o *Others) addChain(name string) bool {
	switch {
	case isRemovable(name):
		return false
	case slices.Contains(kubeletChains, name):
		if !slices.Contains(o.Kubelet, name) {
			o.Kubelet = append(o.Kubelet, name)
		}
		return false
	}
	o.Chains = append(o.Chains, name)
	return true
}

// addRule adds a rule of another program's chain if it uses a chain of kube-proxy or one of the bits.
func (o *Others) addRule(w *walk, at place, r nft.Rule, bits uint32) {
	u := useOf(r)
	w.add(at.chain, stepOf(r, u))
	u.Chain, u.Rule, u.Mark, u.Sets = w.of.chain(at.chain), at.rule, u.Mark&bits, u.Sets&bits
	if !isRemovable(u.To) || at.inBase && isEntrance(u.To) {
		u.To = "" // to another chain, or kube-proxy's own rule
	}
	if (u.To != "" || u.Mark != 0) && len(o.Uses) < maxUses {
		o.Uses = append(o.Uses, u)
	}
}

// compared returns the bits of the mark that a comparison depends on. A comparison without a mask counts as a comparison of
// the value's bits: programs that use whole marks as numbers write it this way.
func compared(value, mask uint32) uint32 {
	if mask == ^uint32(0) {
		return value
	}
	return mask
}

// useOf returns the chain to which a rule jumps, and the bits of the mark that it compares or sets.
func useOf(r nft.Rule) (u Use) {
	u.Sets = MarkBits(&r)
	u.Mark, u.Whole = u.Sets, u.Sets == ^uint32(0)
	for _, s := range r.Statements {
		switch s := s.(type) {
		case nft.Verdict:
			u.To, u.accepts = s.Chain, s.Kind == nft.VerdictAccept
		case nft.Match:
			u.addMatch(s)
		case nft.AnyOf:
			for _, m := range s {
				u.addMatch(m)
			}
		}
	}
	return u
}

// MarkBits returns the bits of the packet mark that a rule sets or clears; 0 for none.
func MarkBits(r *nft.Rule) (bits uint32) {
	for _, s := range r.Statements {
		if a, is := s.(nft.Assign); is && a.To == nft.MetaMark {
			bits |= assigned(a.Value)
		}
	}
	return bits
}

// assigned returns the bits of the mark that an assignment of the value can change.
func assigned(value nft.Expr) uint32 {
	if bits, is := value.(nft.Bits); is && bits.Of == nft.MetaMark {
		return ^word(bits.Mask) | word(bits.Xor)
	}
	return ^uint32(0)
}

func (u *Use) addMatch(m nft.Match) {
	c, err := m.Comparison()
	of, mask := m.Field, ^uint32(0)
	if bits, is := of.(nft.Bits); is {
		of, mask = bits.Of, word(bits.Mask)
	}
	if c.Mask != nil {
		mask = word(nft.Data(c.Mask))
	}
	switch {
	case err != nil:
	case of == nft.MetaMark:
		u.Mark |= compared(word(nft.Data(c.First)), mask)
	case of == nft.CTStatus:
		u.translated = u.translated || mask&nft.CTStatusDNAT != 0 && (m.Op == nft.Equal || c.Mask == nil)
	}
}

// word returns the first four bytes of data as a number; 0 if there are fewer.
func word(d nft.Data) uint32 {
	if len(d) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32([]byte(d))
}

func (o *Others) findLegacy(bits uint32) error {
	for _, f := range legacyFamilies {
		tables, err := f.tables()
		if err != nil {
			return err
		}
		for _, name := range tables {
			t, err := f.read(name)
			if err != nil {
				return err
			}
			o.addLegacy(t, bits)
		}
	}
	return nil
}

func (o *Others) addLegacy(t *legacyTable, bits uint32) {
	o.Tables = append(o.Tables, fmt.Sprintf("%s %s (iptables-legacy)", t.family.family, t.name))
	w := newWalk(table{t.family.family, t.name})
	for number, hook := range legacyHooks {
		if first, _ := t.hook(number); first >= 0 {
			w.addBase(baseChain(hook), hook, false) // the policy is the last entry
		}
	}
	for _, c := range t.chains {
		o.addChain(c)
	}
	meaning := func(x nft.Extension) []nft.Statement { return x.Meaning(t.family.family) }
	for _, r := range t.rules {
		if chain := t.chainOf(r); !isRemovable(chain) && !slices.Contains(kubeletChains, chain) {
			o.addRule(w, place{chain: chain, inBase: r.chain == ""}, t.rule(r, meaning), bits)
		}
	}
	o.Drops = append(o.Drops, w.drops()...)
}

// legacyHooks are the hooks by their numbers.
var legacyHooks = []nft.Hook{nft.HookPrerouting, nft.HookInput, nft.HookForward, nft.HookOutput, nft.HookPostrouting}

func baseChain(hook nft.Hook) string { return strings.ToUpper(string(hook)) }

// hook returns the offsets of the first and of the last entry of a base chain; -1 if the table has none at the hook.
func (t *legacyTable) hook(number int) (first, last int) {
	if !t.hasHook(number) {
		return -1, -1
	}
	at := infoHooksAt + 4*number
	return int(binary.NativeEndian.Uint32(t.info[at:])), int(binary.NativeEndian.Uint32(t.info[at+4*hooks:]))
}

// hasHook reports whether the table has a base chain at the hook.
func (t *legacyTable) hasHook(number int) bool {
	return binary.NativeEndian.Uint32(t.info[tableNameSize:])&(1<<number) != 0
}

// Verdicts that end: -NF_DROP-1, -NF_ACCEPT-1 and -NF_REPEAT-1.
const verdictDrop, verdictAccept, verdictReturn = -1, -2, -5

// endsWith reports whether the entry at an offset has a verdict.
func (t *legacyTable) endsWith(at int, verdict int32) bool {
	i, found := slices.BinarySearchFunc(t.rules, at, func(r legacyRule, at int) int { return r.at - at })
	return found && t.rules[i].verdict != 0 && int32(binary.NativeEndian.Uint32(t.entries[t.rules[i].verdict:])) == verdict
}

// chainOf returns the name of the chain that has a rule.
func (t *legacyTable) chainOf(r legacyRule) string {
	if r.chain != "" {
		return r.chain
	}
	for number, name := range legacyHooks {
		if first, last := t.hook(number); first >= 0 && r.at >= first && r.at <= last {
			return baseChain(name)
		}
	}
	return ""
}

// eachExtension calls each for each match of a rule, and then for the target, whose name is empty if it is the standard one.
func (t *legacyTable) eachExtension(r legacyRule, each func(nft.Extension)) {
	entry := t.entries[r.at:r.end]
	end := int(binary.NativeEndian.Uint16(entry[t.family.offsets.targetOffset:]))
	// In struct xt_entry_match the size, the name and the revision stand before the data, as in the target.
	call := func(b []byte, target bool) {
		revision := uint32(b[targetNameAt+targetNameSize])
		each(nft.Extension{Target: target, Name: text(b[targetNameAt:][:targetNameSize]), Revision: revision, Info: string(b[targetDataAt:])})
	}
	for at := t.family.offsets.size; at+targetDataAt <= end; {
		size := int(binary.NativeEndian.Uint16(entry[at:]))
		if size < targetDataAt || at+size > end {
			break
		}
		call(entry[at:at+size], false)
		at += size
	}
	call(entry[end:], true)
}
