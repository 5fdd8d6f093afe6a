package leftovers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

	"github.com/nftproxy/nftproxy/nft"
)

// Others has the rules of other programs that depend on those of kube-proxy's modes, or meet with them.
type Others struct {
	// Uses are rules that lead to a chain of kube-proxy, or compare or set bits of the packet mark. There are at most
	// 100.
	Uses []Use
	// Drops are base chains of the hooks input, forward and output that drop packets which no rule accepts.
	Drops []Drop
	// Tables are the tables of nf_tables and of iptables-legacy, such as "ip nat".
	Tables []string
	// Chains are the names of all chains but those of kube-proxy and of the kubelet, without the names of their tables.
	Chains []string
}

// Use is a rule of another program.
type Use struct {
	// Chain has the rule: "ip nat CNI-HOSTPORT-SETMARK".
	Chain string
	// To is the chain of kube-proxy to which the rule leads; empty for none.
	To string
	// Mark has the bits of the packet mark that the rule compares or sets.
	Mark uint32
	// Sets says that the rule sets the bits.
	Sets bool
	// translated says that the rule asks whether the destination was translated, and accepts that it accepts.
	translated, accepts bool
}

// Drop is a base chain with the policy drop.
type Drop struct {
	// Chain names it: "ip filter FORWARD".
	Chain string
	Hook  nft.Hook
	// AcceptsTranslated says that a rule of the same table accepts packets whose destination was translated.
	AcceptsTranslated bool
}

var dropHooks = []nft.Hook{nft.HookInput, nft.HookForward, nft.HookOutput}

// DropsAt returns the chains of Drops at a hook.
func (o *Others) DropsAt(hook nft.Hook) (chains []string) {
	for _, d := range o.Drops {
		if d.Hook == hook {
			chains = append(chains, d.Chain)
		}
	}
	return chains
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
		o.Tables = append(o.Tables, fmt.Sprintf("%s %s", t.Family, t.Name))
		drops, accepts := len(o.Drops), false
		for _, c := range t.Chains {
			name := table{t.Family, t.Name}.chain(c.Name)
			if c.DropPolicy && slices.Contains(dropHooks, c.Hook) {
				o.Drops = append(o.Drops, Drop{Chain: name, Hook: c.Hook})
			}
			if !o.addChain(c.Name) {
				continue
			}
			for _, r := range c.Rules {
				u := useOf(r)
				accepts = accepts || u.translated && u.accepts
				o.add(name, c.Hook != "", u, bits)
			}
		}
		o.setAccepts(drops, accepts)
	}
	return nil
}

// setAccepts says of the drops from an index whether a rule of their table accepts translated packets.
func (o *Others) setAccepts(from int, accepts bool) {
	for i := range o.Drops[from:] {
		o.Drops[from+i].AcceptsTranslated = accepts
	}
}

// addChain reports whether a chain is another program's.
func (o *Others) addChain(name string) bool {
	if isRemovable(name) || slices.Contains(kubeletChains, name) {
		return false
	}
	o.Chains = append(o.Chains, name)
	return true
}

// add adds a rule if it uses a chain of kube-proxy or one of the bits.
func (o *Others) add(chain string, base bool, u Use, bits uint32) {
	u.Chain, u.Mark = chain, u.Mark&bits
	if !isRemovable(u.To) || base && isEntrance(u.To) {
		u.To = "" // to another chain, or kube-proxy's own rule
	}
	if (u.To != "" || u.Mark != 0) && len(o.Uses) < maxUses {
		o.Uses = append(o.Uses, u)
	}
}

// compared returns the bits that a comparison of the mark depends on. One without a mask is taken for one of the value's
// bits: programs that give each meaning a number of its own write it so.
func compared(value, mask uint32) uint32 {
	if mask == ^uint32(0) {
		return value
	}
	return mask
}

// useOf returns the chain that a rule of nf_tables leads to, and the bits of the mark that it has to do with.
func useOf(r nft.Rule) (u Use) {
	for _, s := range r.Statements {
		rule, is := s.(nft.Expressions)
		if !is {
			continue
		}
		loaded, status, mask, value := false, false, ^uint32(0), uint32(0)
		for _, e := range rule.List() {
			switch e := e.(type) {
			case *expr.Verdict:
				u.To, u.accepts = e.Chain, e.Kind == expr.VerdictAccept
			case *expr.Immediate:
				mask, value = ^uint32(0), word(e.Data)
			case *expr.Meta:
				switch isMark := e.Key == expr.MetaKeyMARK; {
				case isMark && e.SourceRegister && loaded:
					u.Mark, u.Sets = u.Mark|^mask|value, true
				case isMark && e.SourceRegister:
					u.Mark, u.Sets = ^uint32(0), true
				default:
					loaded, mask, value = isMark, ^uint32(0), 0
				}
			case *expr.Ct:
				loaded, status = false, e.Key == expr.CtKeySTATUS
			case *expr.Bitwise:
				mask, value = word(e.Mask), word(e.Xor)
				u.translated = u.translated || status && mask&destinationChanged != 0
			case *expr.Cmp:
				if loaded {
					u.Mark |= compared(word(e.Data), mask)
				}
			case *expr.Match:
				u.addExtension(e.Name, e.Rev, e.Info)
			case *expr.Target:
				u.addExtension(e.Name, e.Rev, e.Info)
			}
		}
	}
	return u
}

func (u *Use) addExtension(name string, revision uint32, info xt.InfoAny) {
	switch info := info.(type) {
	case *xt.Unknown:
		u.addXT(name, uint8(revision), *info)
	case *xt.ConntrackMtinfo3:
		u.addState(info.MatchFlags, info.InvertFlags, info.StateMask)
	case *xt.ConntrackMtinfo2:
		u.addState(info.MatchFlags, info.InvertFlags, info.StateMask)
	}
}

// destinationChanged is IPS_DST_NAT_BIT of the status of a connection. The match conntrack of xtables has it among the states.
const (
	destinationChanged = 1 << 5
	stateDNAT          = 1 << 7
)

// addState takes the match conntrack of xtables. Flag 1 of both words stands for the state.
func (u *Use) addState(match, invert, state uint16) {
	u.translated = u.translated || match&1 != 0 && invert&1 == 0 && state&stateDNAT != 0
}

// addXT takes a match or a target of xtables. Both of the mark hold its value and a mask.
func (u *Use) addXT(name string, revision uint8, data []byte) {
	// In struct xt_conntrack_mtinfo2 and 3: eight addresses, two times, protocol and four ports, then the flags.
	const flagsAt = 8*16 + 8 + 2 + 8
	if name == "conntrack" && revision >= 2 && len(data) >= flagsAt+6 {
		u.addState(binary.NativeEndian.Uint16(data[flagsAt:]), binary.NativeEndian.Uint16(data[flagsAt+2:]), binary.NativeEndian.Uint16(data[flagsAt+4:]))
	}
	if len(data) < 8 {
		return
	}
	value, mask := word(data), word(data[4:])
	switch {
	case name == "mark" && revision == 1:
		u.Mark |= compared(value, mask)
	case name == "MARK" && revision == 2:
		u.Mark, u.Sets = u.Mark|mask, true
	}
}

// word returns the number in a register; 0 if it has another size.
func word(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
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
	drops, accepts := len(o.Drops), false
	for hook, name := range legacyHooks {
		_, last := t.hook(hook)
		if t.endsWith(last, verdictDrop) && slices.Contains(dropHooks, name) {
			o.Drops = append(o.Drops, Drop{Chain: table{t.family.family, t.name}.chain(baseChain(name)), Hook: name})
		}
	}
	for _, c := range t.chains {
		o.addChain(c)
	}
	for _, r := range t.rules {
		if chain := t.chainOf(r); !isRemovable(chain) && !slices.Contains(kubeletChains, chain) {
			u := t.useOf(r)
			accepts = accepts || u.translated && t.endsWith(r.at, verdictAccept)
			o.add(table{t.family.family, t.name}.chain(chain), r.chain == "", u, bits)
		}
	}
	o.setAccepts(drops, accepts)
}

// legacyHooks are the hooks by their numbers.
var legacyHooks = []nft.Hook{nft.HookPrerouting, nft.HookInput, nft.HookForward, nft.HookOutput, nft.HookPostrouting}

func baseChain(hook nft.Hook) string { return strings.ToUpper(string(hook)) }

// hook returns the offsets of the first and of the last entry of a base chain; -1 if the table has none at the hook.
func (t *legacyTable) hook(number int) (first, last int) {
	if binary.NativeEndian.Uint32(t.info[tableNameSize:])&(1<<number) == 0 {
		return -1, -1
	}
	at := infoHooksAt + 4*number
	return int(binary.NativeEndian.Uint32(t.info[at:])), int(binary.NativeEndian.Uint32(t.info[at+4*hooks:]))
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

// useOf returns the chain that a rule leads to, and the bits of the mark that it has to do with.
func (t *legacyTable) useOf(r legacyRule) Use {
	u := Use{To: r.to}
	t.eachExtension(r, u.addXT, u.addXT)
	return u
}

// eachExtension calls match for each match of a rule, and then target.
func (t *legacyTable) eachExtension(r legacyRule, match, target func(name string, revision uint8, data []byte)) {
	entry := t.entries[r.at:r.end]
	end := int(binary.NativeEndian.Uint16(entry[t.family.offsets.targetOffset:]))
	// In struct xt_entry_match the size, the name and the revision stand before the data, as in the target.
	call := func(b []byte, f func(string, uint8, []byte)) {
		f(text(b[targetNameAt:][:targetNameSize]), b[targetNameAt+targetNameSize], b[targetDataAt:])
	}
	for at := t.family.offsets.size; at+targetDataAt <= end; {
		size := int(binary.NativeEndian.Uint16(entry[at:]))
		if size < targetDataAt || at+size > end {
			break
		}
		call(entry[at:at+size], match)
		at += size
	}
	call(entry[end:], target)
}
