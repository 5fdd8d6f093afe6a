package leftovers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// maxLegacyRules bounds the rules of a table that LegacyTables returns.
const maxLegacyRules = 100_000

// LegacyTable is a table of iptables-legacy as iptables-nft would have made it, called such as
// "filter (iptables-legacy)".
type LegacyTable struct {
	Family nft.Family
	Name   string
	// Rules are its rules and chains; nil if Err says why they were not read.
	Rules nft.Recording
	Err   error
}

// LegacyTables reads the tables of iptables-legacy in this network namespace. One that takes more bytes in the kernel than
// maxBytes has an Err. It needs CAP_NET_ADMIN.
func LegacyTables(maxBytes int) (tables []LegacyTable, err error) {
	for _, f := range legacyFamilies {
		names, err := f.tables()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			t, err := f.read(name)
			if errors.Is(err, unix.ENOENT) {
				continue // it has gone
			}
			table := LegacyTable{Family: f.family, Name: name + " (iptables-legacy)", Err: err}
			switch {
			case err != nil:
			case len(t.entries) > maxBytes:
				table.Err = fmt.Errorf("it has more than %d MB", maxBytes>>20)
			default:
				table.Rules, table.Err = t.record(table.Name)
			}
			tables = append(tables, table)
		}
	}
	return tables, nil
}

// The priorities of the tables at all hooks but those of nat.
var legacyPriorities = map[string]int32{"raw": -300, "mangle": nft.PriorityMangle, "filter": nft.PriorityFilter, "security": 50}

// record returns the table in the form of nf_tables, under another name.
func (t *legacyTable) record(name string) (nft.Recording, error) {
	table := &nft.Table{Family: t.family.family, Name: name}
	policies := map[int]bool{} // the offsets of the entries that are policies
	for number, hook := range legacyHooks {
		first, last := t.hook(number)
		if first < 0 {
			continue
		}
		c := &nft.Chain{Name: baseChain(hook), Hook: hook, Type: nft.TypeFilter, Priority: legacyPriorities[t.name], DropPolicy: t.endsWith(last, verdictDrop)}
		if t.name == "nat" {
			c.Type, c.Priority = nft.TypeNAT, nft.PrioritySrcNAT
			if hook == nft.HookPrerouting || hook == nft.HookOutput {
				c.Priority = nft.PriorityDstNAT
			}
		}
		policies[last] = true
		table.Chains = append(table.Chains, c)
	}
	for _, c := range t.chains {
		table.Chains = append(table.Chains, &nft.Chain{Name: c})
	}
	// Of a chain of users, the first entry has its name, and the last one returns. The table's last entry is like the first.
	if n := len(t.rules) - len(policies) - 2*len(t.chains) - 1; n > maxLegacyRules {
		return nil, fmt.Errorf("it has %d rules, more than %d", n, maxLegacyRules)
	}
	return nft.RecordOther(table, func(yield func(nft.OtherRule) bool) {
		for i, r := range t.rules {
			begins := r.chain != "" && (i == 0 || t.rules[i-1].chain != r.chain)
			ends := r.chain != "" && (i+1 == len(t.rules) || t.rules[i+1].chain != r.chain)
			if !policies[r.at] && !begins && !ends && !yield(t.express(r)) {
				return
			}
		}
	})
}

// entryHead has the offsets of the conditions in an entry's head: struct ipt_ip, struct ip6t_ip6. Each is followed by what
// belongs to the destination, or to the outgoing interface.
type entryHead struct {
	addresses, masks, interfaces, interfaceMasks, protocol, flags, inverted int
	// fragment and leads are flags: a later fragment, and goto instead of jump. Without hasProtocol the protocol does
	// not count.
	fragment, leads, hasProtocol byte
	// from are the offsets of the addresses in a packet.
	from [2]uint32
}

var entryHeads = map[nft.Family]entryHead{
	nft.FamilyIP:  {0, 8, 16, 48, 80, 82, 83, 1, 2, 0, [2]uint32{12, 16}},
	nft.FamilyIP6: {0, 32, 64, 96, 128, 131, 132, 0, 4, 1, [2]uint32{8, 24}},
}

// Bits of an entry that invert a condition. Those of the destination are one higher than those of the source.
const (
	invertInterface = 1 << 0
	invertAddress   = 1 << 3
	invertFragment  = 1 << 5
	invertProtocol  = 1 << 6
)

// conditions are the expressions of a rule under construction.
type conditions []expr.Any

// compare compares the first bytes of what the expression before has loaded, as far as there is a mask.
func (c *conditions) compare(load expr.Any, value, mask []byte, inverted bool) {
	op := expr.CmpOpEq
	if inverted {
		op = expr.CmpOpNeq
	}
	*c = append(*c, load)
	if slices.ContainsFunc(mask, func(b byte) bool { return b != 0xff }) {
		*c = append(*c, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))})
	}
	*c = append(*c, &expr.Cmp{Op: op, Register: 1, Data: value})
}

// express returns the rule as expressions. Matches and targets are those of iptables-nft.
func (t *legacyTable) express(r legacyRule) (rule nft.OtherRule) {
	rule.Chain = t.chainOf(r)
	entry := t.entries[r.at:r.end]
	head := entryHeads[t.family.family]
	inverted := entry[head.inverted]
	var c conditions
	for i, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
		name, mask := entry[head.interfaces+i*unix.IFNAMSIZ:][:unix.IFNAMSIZ], entry[head.interfaceMasks+i*unix.IFNAMSIZ:][:unix.IFNAMSIZ]
		switch length := slices.Index(mask, 0); {
		case length == 0:
			continue
		case length > 0 && name[length-1] != 0:
			name = name[:length] // "eth+"
		}
		c.compare(&expr.Meta{Key: key, Register: 1}, name, nil, inverted&(invertInterface<<i) != 0)
	}
	for i, from := range head.from {
		length := (head.masks - head.addresses) / 2
		addr, mask := entry[head.addresses+i*length:][:length], entry[head.masks+i*length:][:length]
		if slices.ContainsFunc(mask, func(b byte) bool { return b != 0 }) {
			load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: from, Len: uint32(length)}
			c.compare(load, addr, mask, inverted&(invertAddress<<i) != 0)
		}
	}
	if entry[head.flags]&head.fragment != 0 {
		load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 2}
		c.compare(load, []byte{0, 0}, []byte{0x1f, 0xff}, inverted&invertFragment == 0)
	}
	protocol := binary.NativeEndian.Uint16(entry[head.protocol:])
	if protocol != 0 && entry[head.flags]&head.hasProtocol == head.hasProtocol {
		c.compare(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, []byte{byte(protocol)}, nil, inverted&invertProtocol != 0)
	}
	t.eachExtension(r, func(name string, revision uint8, data []byte) {
		switch {
		case name == "comment":
			rule.Comment = text(data)
		case name == "mark" && revision == 1 && len(data) >= 9: // struct xt_mark_mtinfo1
			c.compare(&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, data[:4], data[4:8], data[8] != 0)
		default:
			c = append(c, &expr.Match{Name: name, Rev: uint32(revision), Info: (*xt.Unknown)(&data)})
		}
	}, func(name string, revision uint8, data []byte) {
		if name != "" {
			c = append(c, &expr.Target{Name: name, Rev: uint32(revision), Info: (*xt.Unknown)(&data)})
		} else if end := t.end(r, entry[head.flags]&head.leads != 0); end != nil {
			c = append(c, end)
		}
	})
	rule.Exprs = c
	return rule
}

// end returns the verdict of a rule with a standard target; nil if it goes on to the next.
func (t *legacyTable) end(r legacyRule, leads bool) expr.Any {
	switch v := int32(binary.NativeEndian.Uint32(t.entries[r.verdict:])); {
	case r.to != "" && leads:
		return &expr.Verdict{Kind: expr.VerdictGoto, Chain: r.to}
	case r.to != "":
		return &expr.Verdict{Kind: expr.VerdictJump, Chain: r.to}
	case v == verdictAccept:
		return &expr.Verdict{Kind: expr.VerdictAccept}
	case v == verdictDrop:
		return &expr.Verdict{Kind: expr.VerdictDrop}
	case v == verdictReturn:
		return &expr.Verdict{Kind: expr.VerdictReturn}
	case v < 0:
		return &expr.Queue{}
	}
	return nil
}
