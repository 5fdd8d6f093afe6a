package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Table is a table with all its contents.
type Table struct {
	// Family is FamilyIP or FamilyIP6.
	Family Family
	// Name is 1 to 255 bytes long.
	Name string
	// Chains and Sets print in this order. Each has a name of its own among the table's.
	Chains []*Chain
	Sets   []*Set
	// Dormant switches all base chains of the table off.
	Dormant bool
	// Comment is shown by nft; at most 127 bytes. Kernel 5.10 and later.
	Comment string
	// Owner makes the table belong to the Conn that commits it. While the Conn is open, the kernel refuses
	// all other changes (ErrTableOwned), and `nft flush ruleset` skips the table. Kernel 5.12 and later.
	Owner bool
	// Persist makes the kernel keep the table when its owner closes: as an orphan, which any program can change
	// or take over, by committing it with Owner and Persist. Without it, the table goes with its owner. Kernel
	// 6.9 and later: see FeaturePersist. nft 1.0.6 lists `flags owner` for both flags, and nothing for an orphan.
	Persist bool
	// Kernel has what only the kernel knows of a table that was read; nil in a wanted table.
	Kernel *KernelTable
}

// KernelTable holds the attributes that only a table of the kernel has, not a wanted one.
type KernelTable struct {
	// OwnerPort is the netlink port id of the table's owner; 0 for none. Mostly it is the process id.
	OwnerPort uint32
	// Objects are the stateful objects and flowtables that another program put into the table.
	Objects []Object
	// Handles are the handles of the rules, in their order, by the name of the chain. A Step with DeleteRule takes one.
	Handles map[string][]uint64
	// Devices are the names of the devices that a base chain belongs to, by the name of the chain: chains of family
	// netdev, and of the hook ingress of family inet. A name that ends in * stands for all names with this prefix.
	Devices map[string][]string
	// Other says that another program wrote the table, and ReadOthers read it.
	Other bool
	// LeftOut says why ReadOthers left the table's contents out; empty if it did not.
	LeftOut string
}

// kernel returns what the kernel knows of the table, if it was read.
func (t *Table) kernel() KernelTable {
	if t.Kernel == nil {
		return KernelTable{}
	}
	return *t.Kernel
}

func (t *Table) flags() (flags uint32) {
	for flag, set := range map[uint32]bool{
		netlinkattr.TableFlagDormant: t.Dormant, netlinkattr.TableFlagOwner: t.Owner, netlinkattr.TableFlagPersist: t.Persist,
	} {
		if set {
			flags |= flag
		}
	}
	return flags
}

func (t *Table) setFlags(flags uint32) {
	t.Dormant, t.Owner, t.Persist = flags&netlinkattr.TableFlagDormant != 0, flags&netlinkattr.TableFlagOwner != 0, flags&netlinkattr.TableFlagPersist != 0
}

var tableFlagNames = map[uint32]string{
	netlinkattr.TableFlagDormant: "dormant", netlinkattr.TableFlagOwner: "owner",
	netlinkattr.TableFlagPersist: "persist",
}

// flagsText returns the flags as nft lists them; empty for none.
func (t *Table) flagsText() string {
	if t.flags() == 0 {
		return ""
	}
	return "flags " + formatBits(t.flags(), tableFlagNames, ", ")
}

func (t *Table) properties() []string {
	return present(t.flagsText(), commentText(t.Comment))
}

// orphan reports whether the table has lost its owner and can be taken over.
func (t *Table) orphan() bool { return t.Persist && !t.Owner }

// identity identifies a table among tables, and a set among the sets of tables with one name.
type identity struct {
	family Family
	name   string
}

func (t *Table) identity() identity { return identity{t.Family, t.Name} }

// Chain returns the chain of that name, or nil. It searches all chains.
func (t *Table) Chain(name string) *Chain {
	for _, c := range t.Chains {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Set returns the set or map of that name, or nil. It searches all sets.
func (t *Table) Set(name string) *Set {
	for _, s := range t.Sets {
		if s.Name == name {
			return s
		}
	}
	return nil
}

type index struct {
	table  *Table
	sets   map[string]*Set
	chains map[string]*Chain
}

func (t *Table) index() index {
	i := index{t, make(map[string]*Set, len(t.Sets)), make(map[string]*Chain, len(t.Chains))}
	// The first of a name counts, as in Set and Chain.
	for _, s := range slices.Backward(t.Sets) {
		i.sets[s.Name] = s
	}
	for _, c := range slices.Backward(t.Chains) {
		i.chains[c.Name] = c
	}
	return i
}

// String prints the table as nft lists it, one element a line, in the order of their keys. nft loads the text,
// unless it has unknown parts or the flag persist, which nft 1.0.6 does not know.
func (t *Table) String() string {
	var b strings.Builder
	t.appendText(&b)
	return b.String()
}

func (t *Table) appendText(b *strings.Builder) {
	fmt.Fprintf(b, "table %s %s {\n", t.Family, t.Name)
	begin := b.Len()
	for _, property := range t.properties() {
		fmt.Fprintf(b, "\t%s\n", property)
	}
	for _, o := range t.kernel().Objects {
		fmt.Fprintf(b, "\t%s {\n\t}\n", o)
	}
	for _, s := range t.Sets {
		if b.Len() > begin {
			b.WriteByte('\n')
		}
		s.appendText(b)
	}
	for _, c := range t.Chains {
		if b.Len() > begin {
			b.WriteByte('\n')
		}
		c.appendText(b)
	}
	b.WriteString("}\n")
}

// Family is the address family of a table. Its values are the kernel's numbers (NFPROTO_*).
type Family uint8

// The families that this package handles. ReadOthers returns tables of other families too.
const (
	FamilyIP  Family = unix.NFPROTO_IPV4
	FamilyIP6 Family = unix.NFPROTO_IPV6
	// FamilyInet is for both. This package reads its tables (ReadOthers), and writes none.
	FamilyInet Family = unix.NFPROTO_INET
	// FamilyNetdev and FamilyBridge are read like FamilyInet. Their chains are called by the device, not by the route.
	FamilyNetdev Family = unix.NFPROTO_NETDEV
	FamilyBridge Family = unix.NFPROTO_BRIDGE
)

// familyOf returns the family with the kernel's number nfproto. It is an error for the families that this package does
// not handle, such as inet.
func familyOf(nfproto uint32) (Family, error) {
	switch nfproto {
	case unix.NFPROTO_IPV4:
		return FamilyIP, nil
	case unix.NFPROTO_IPV6:
		return FamilyIP6, nil
	}
	return 0, fmt.Errorf("family %d is neither ip nor ip6", nfproto)
}

// Families lists both families, in the order in which everything here is printed.
var Families = [...]Family{FamilyIP, FamilyIP6}

// String returns nft's word for the family, such as "ip6".
func (f Family) String() string {
	switch f {
	case FamilyIP:
		return "ip"
	case FamilyIP6:
		return "ip6"
	case FamilyInet:
		return "inet"
	case unix.NFPROTO_ARP:
		return "arp"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	}
	return fmt.Sprintf("family-%d", uint8(f))
}

// hook returns the family's hook with the number of an inet hook.
func (f Family) hook(inet Hook) Hook {
	switch {
	case f == FamilyNetdev && inet == HookPrerouting, f == FamilyInet && inet == "hook-5":
		return HookIngress
	case f == FamilyNetdev:
		return HookEgress
	}
	return inet
}

// Routes reports whether the base chains of the family are called where packets are routed.
func (f Family) Routes() bool { return f == FamilyIP || f == FamilyIP6 || f == FamilyInet }

func byFamily[T any](f Family, ip, ip6 T) T {
	if f == FamilyIP6 {
		return ip6
	}
	return ip
}

// Saddr is the field with the source address in packets of the family.
func (f Family) Saddr() Field { return byFamily(f, IPSaddr, IP6Saddr) }

// Daddr is the field with the destination address in packets of the family.
func (f Family) Daddr() Field { return byFamily(f, IPDaddr, IP6Daddr) }

// TTL is the field with the number of hops that a packet of the family may still take.
func (f Family) TTL() Field { return byFamily(f, IPTTL, IP6Hoplimit) }

// OriginalDaddr is the field with the destination address that the first packet of a connection had
// before it was translated.
func (f Family) OriginalDaddr() Field { return byFamily(f, CTOriginalIPDaddr, CTOriginalIP6Daddr) }

// Loopback is the prefix of the family's loopback addresses.
func (f Family) Loopback() netip.Prefix {
	return byFamily(f, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
}
