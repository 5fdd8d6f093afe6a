package leftovers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

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
	// Err says why its rules and chains were not read.
	Err error

	read *legacyTable
}

// LegacyTables reads the tables of iptables-legacy in this network namespace. A table of more than maxBytes bytes in the
// kernel has an Err. It needs CAP_NET_ADMIN.
func LegacyTables(maxBytes int) (tables []LegacyTable, err error) {
	for _, f := range legacyFamilies {
		names, err := f.tables()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			t, err := f.read(name)
			switch {
			case errors.Is(err, unix.ENOENT):
				continue // it has gone
			case err == nil && len(t.entries) > maxBytes:
				err = fmt.Errorf("it has more than %d MB", maxBytes>>20)
			case err == nil && t.count() > maxLegacyRules:
				err = fmt.Errorf("it has %d rules, more than %d", t.count(), maxLegacyRules)
			}
			tables = append(tables, LegacyTable{Family: f.family, Name: name + " (iptables-legacy)", Err: err, read: t})
		}
	}
	return tables, nil
}

// Record returns the rules and chains as messages, which have the extensions of xtables as they are.
func (l *LegacyTable) Record() (nft.Recording, error) {
	return l.read.table(l.Name, func(x nft.Extension) []nft.Statement { return []nft.Statement{x} }).Record()
}

// Table returns the rules and chains.
func (l *LegacyTable) Table() *nft.Table {
	t := l.read.table(l.Name, func(x nft.Extension) []nft.Statement { return x.Meaning(l.Family) })
	t.Kernel = &nft.KernelTable{Other: true}
	return t
}

// The priorities of the tables but nat, at all hooks.
var legacyPriorities = map[string]int32{"raw": -300, "mangle": nft.PriorityMangle, "filter": nft.PriorityFilter, "security": 50}

// table returns the table in the form of nf_tables, under another name.
func (t *legacyTable) table(name string, express func(nft.Extension) []nft.Statement) *nft.Table {
	table := &nft.Table{Family: t.family.family, Name: name}
	policies := map[int]bool{} // the offsets of the entries that are policies
	for number, hook := range legacyHooks {
		first, last := t.hook(number)
		if first < 0 {
			continue
		}
		c := &nft.Chain{Name: baseChain(hook), Hook: hook, Type: nft.TypeFilter, Priority: legacyPriorities[t.name], DropPolicy: t.endsWith(last, verdictDrop)}
		if t.name == "mangle" && hook == nft.HookOutput {
			c.Type = nft.TypeRoute
		}
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
	// The first entry of a user-defined chain has its name, and its last entry returns: neither is a rule. The table's last
	// entry is none either.
	chains := map[string]*nft.Chain{}
	for _, c := range table.Chains {
		chains[c.Name] = c
	}
	for i, r := range t.rules {
		ends := r.chain != "" && (i+1 == len(t.rules) || t.rules[i+1].begins)
		if c := chains[t.chainOf(r)]; c != nil && !policies[r.at] && !r.begins && !ends {
			c.Rules = append(c.Rules, t.rule(r, express))
		}
	}
	return table
}

// count returns the number of rules, without the policies and the ends of chains.
func (t *legacyTable) count() int {
	n := len(t.rules) - 2*len(t.chains) - 1
	for number := range legacyHooks {
		if first, _ := t.hook(number); first >= 0 {
			n--
		}
	}
	return n
}

// entryHead has the offsets of the conditions in an entry's head: struct ipt_ip, struct ip6t_ip6. Each condition of the source
// is followed by the same condition of the destination, and the incoming interface by the outgoing one.
type entryHead struct {
	addresses, masks, interfaces, interfaceMasks, protocol, flags, inverted int
	// fragment, leads and hasProtocol are flags: the rule is for later fragments; it goes instead of jumping (goto); the
	// protocol counts (IPv6).
	fragment, leads, hasProtocol byte
}

var entryHeads = map[nft.Family]entryHead{
	nft.FamilyIP:  {0, 8, 16, 48, 80, 82, 83, 1, 2, 0},
	nft.FamilyIP6: {0, 32, 64, 96, 128, 131, 132, 0, 4, 1},
}

// Bits of an entry that invert a condition. The bit for the destination follows the bit for the source.
const (
	invertInterface = 1 << 0
	invertAddress   = 1 << 3
	invertFragment  = 1 << 5
	invertProtocol  = 1 << 6
)

// rule returns an entry as a rule, with the matches and targets that express returns.
func (t *legacyTable) rule(r legacyRule, express func(nft.Extension) []nft.Statement) (rule nft.Rule) {
	entry := t.entries[r.at:r.end]
	head := entryHeads[t.family.family]
	add := func(bit byte, m nft.Match) {
		if entry[head.inverted]&bit != 0 {
			m.Op = nft.NotEqual - m.Op // Equal and NotEqual alone are inverted
		}
		rule.Statements = append(rule.Statements, m)
	}
	for i, field := range []nft.Field{nft.MetaIifname, nft.MetaOifname} {
		name, mask := entry[head.interfaces+i*unix.IFNAMSIZ:][:unix.IFNAMSIZ], entry[head.interfaceMasks+i*unix.IFNAMSIZ:][:unix.IFNAMSIZ]
		length, value := slices.Index(mask, 0), text(name)
		if length > 0 && name[length-1] != 0 {
			value = string(name[:length]) + "*" // "eth+"
		}
		if length != 0 {
			add(invertInterface<<i, nft.Match{Field: field, Value: value})
		}
	}
	for i, field := range []nft.Field{t.family.family.Saddr(), t.family.family.Daddr()} {
		length := (head.masks - head.addresses) / 2
		addr, mask := entry[head.addresses+i*length:][:length], entry[head.masks+i*length:][:length]
		if slices.ContainsFunc(mask, func(b byte) bool { return b != 0 }) {
			add(invertAddress<<i, addressMatch(field, addr, mask))
		}
	}
	if entry[head.flags]&head.fragment != 0 {
		later := nft.Bits{Of: nft.Payload{Base: nft.NetworkHeader, Offset: 6, Length: 2}, Mask: "\x1f\xff", Xor: "\x00\x00"}
		add(invertFragment, nft.Match{Field: later, Op: nft.NotEqual, Value: nft.Constant("\x00\x00")})
	}
	protocol := binary.NativeEndian.Uint16(entry[head.protocol:])
	if protocol != 0 && entry[head.flags]&head.hasProtocol == head.hasProtocol {
		add(invertProtocol, nft.Match{Field: nft.MetaL4proto, Value: nft.ProtoData(byte(protocol))})
	}
	t.eachExtension(r, func(x nft.Extension) {
		switch {
		case x.Name == "comment" && !x.Target:
			rule.Comment = text([]byte(x.Info))
		case x.Name != "" || !x.Target:
			rule.Statements = append(rule.Statements, express(x)...)
		default:
			if end := t.end(r, entry[head.flags]&head.leads != 0); end != nil {
				rule.Statements = append(rule.Statements, end)
			}
		}
	})
	return rule
}

// addressMatch compares an address under a mask.
func addressMatch(field nft.Field, addr, mask []byte) nft.Match {
	if ones, bits := net.IPMask(mask).Size(); bits > 0 {
		prefix, _ := netip.AddrFromSlice(addr) // of one of the families
		return nft.Match{Field: field, Value: netip.PrefixFrom(prefix, ones)}
	}
	masked := nft.Bits{Of: field, Mask: nft.Data(mask), Xor: nft.Data(make([]byte, len(mask)))}
	return nft.Match{Field: masked, Value: nft.Constant(addr)}
}

// end returns the verdict of a rule with a standard target; nil if the packet goes on to the next rule.
func (t *legacyTable) end(r legacyRule, leads bool) nft.Statement {
	switch v := int32(binary.NativeEndian.Uint32(t.entries[r.verdict:])); {
	case r.to != "" && leads:
		return nft.Goto(r.to)
	case r.to != "":
		return nft.Jump(r.to)
	case v == verdictAccept:
		return nft.Accept
	case v == verdictDrop:
		return nft.Drop
	case v == verdictReturn:
		return nft.Return
	case v < 0:
		return nft.Extension{Target: true, Name: "NFQUEUE"}
	}
	return nil
}
