package nft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// probeTable returns a name for a table that exists only inside a probe's transaction. It is a new one each time, so
// that nobody has a table of that name.
func probeTable() string { return fmt.Sprintf("nftproxy-probe-%016x", rand.Uint64()) }

// Probe finds out whether the kernel can do what this package can express in tables of these families (both, if none is
// named), and returns a MissingError that lists the missing features. It leaves out JHash (CONFIG_NFT_HASH), CatchAll
// (kernel 5.13), comments of tables and chains (kernel 5.10), owners (see ProbePersist), and Set.Counter (see
// ProbeCounters). No rule of it takes effect: each probe is one transaction that ends by deleting the table that it
// added. If privileges are missing, the error is that of Commit.
func (c *Conn) Probe(ctx context.Context, families ...Family) error {
	if len(families) == 0 {
		families = Families[:]
	}
	return probe(families, func(tx Transaction) error {
		_, err := c.Commit(ctx, tx)
		return err
	})
}

func probe(families []Family, commit func(Transaction) error) error {
	var missing MissingError
	for _, f := range features(families, probeTable()) {
		err := commit(f.transaction())
		var refused *CommitError
		switch {
		case err == nil:
		case !errors.As(err, &refused) && !saysMissing(err), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			return err
		default:
			missing = append(missing, Missing{Feature: f.name, Option: f.option, Err: errnoOf(err)})
			if f.essential {
				return missing
			}
		}
	}
	if len(missing) > 0 {
		return missing
	}
	return nil
}

// saysMissing reports whether an error that is not the kernel's answer to a transaction means that something is
// missing. A sandbox between the program and the kernel, such as gVisor, refuses at the socket.
func saysMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

func errnoOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// feature is something the kernel may lack, and a table that uses it.
type feature struct {
	name, option string
	// essential says that nothing else works without it.
	essential bool
	table     *Table
}

func (f feature) transaction() Transaction {
	tx := Diff(nil, f.table)
	tx.Steps = append(tx.Steps, Step{Op: DeleteTable, Table: f.table})
	return tx
}

func features(families []Family, table string) []feature {
	var out []feature
	for _, f := range families {
		suffix := "IPV4"
		if f == FamilyIP6 {
			suffix = "IPV6"
		}
		rule := func(name, option string, statements ...Statement) feature {
			t := &Table{Family: f, Name: table, Chains: []*Chain{{Name: "probe", Rules: []Rule{NewRule(statements...)}}}}
			return feature{name: f.String() + ": " + name, option: option, table: t}
		}
		nat := rule("nat chains", "CONFIG_NFT_NAT")
		nat.table.Chains[0] = &Chain{Name: "probe", Type: TypeNAT, Hook: HookPostrouting, Priority: PrioritySrcNAT}
		key := Concat{f.Daddr(), MetaL4proto, ThDport}
		numbered := append(key[:len(key):len(key)], Numgen{Mod: 2})
		endpoints := &Set{Name: "endpoints", Key: numbered, Data: Concat{f.Daddr(), ThDport}}
		dnat := rule("dnat to a map", "CONFIG_NFT_NAT", DNAT{Family: f, Key: numbered, Map: endpoints.Name})
		dnat.table.Sets = []*Set{endpoints}
		slots := &Set{Name: "slots", Key: numbered}
		numgen := rule("numgen", "CONFIG_NFT_NUMGEN", InSet{Key: numbered, Set: slots.Name})
		numgen.table.Sets = []*Set{slots}
		ranges := &Set{Name: "ranges", Key: append(key[:len(key):len(key)], f.Saddr()), Interval: true}
		between := rule("sets with ranges in a concatenation", "CONFIG_NF_TABLES of kernel 5.6 or later", InSet{Key: ranges.Key, Set: ranges.Name})
		between.table.Sets = []*Set{ranges}
		verdicts := &Set{Name: "verdicts", Key: key, Verdicts: true}
		vmap := rule("verdict maps", "CONFIG_NF_TABLES", Vmap{Key: key, Map: verdicts.Name})
		vmap.table.Sets = []*Set{verdicts}
		clients := &Set{Name: "clients", Key: append(Concat{f.Saddr()}, key...), Data: Concat{f.Daddr(), ThDport}, Dynamic: true, Size: 1}
		update := rule("maps that packets add to", "CONFIG_NFT_CT of kernel 4.17 or later", Match{Field: MetaL4proto, Value: ProtoData(unix.IPPROTO_TCP)},
			Update{Map: clients.Name, Key: Concat{f.Saddr(), f.OriginalDaddr(), MetaL4proto, CTOriginalProtoDst}, Data: Concat{f.Daddr(), CTReplyProtoSrc}, Timeout: time.Hour})
		update.table.Sets = []*Set{clients}
		out = append(out,
			feature{name: f.String() + " tables", option: "CONFIG_NF_TABLES_" + suffix, essential: true, table: &Table{Family: f, Name: table}},
			rule("matching addresses", "CONFIG_NF_TABLES", MatchPrefix{Field: f.Daddr(), Prefix: netip.PrefixFrom(f.Loopback().Addr(), 5)}),
			vmap, between, nat, numgen, dnat, update,
			rule("masquerade", "CONFIG_NFT_MASQ", Masquerade{}),
			rule("ct state", "CONFIG_NFT_CT", MatchFlags{Field: CTState, Bits: CTStateNew}),
			rule("fib daddr type", "CONFIG_NFT_FIB_"+suffix, Match{Field: FibDaddrType, Value: IntegerData(unix.RTN_LOCAL)}),
			rule("reject", "CONFIG_NFT_REJECT_"+suffix, Reject{Family: f}),
		)
	}
	return out
}
