package nft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
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
// added. If privileges are missing, or the kernel stays short of memory or busy, the error is that of Commit.
func (c *Conn) Probe(ctx context.Context, families ...Family) error {
	if len(families) == 0 {
		families = Families[:]
	}
	return probe(families, func(tx Transaction) error { return c.commitProbe(ctx, tx) })
}

// commitProbe commits the transaction of a probe. It tries again for a moment if the kernel's answer may be another one
// then.
func (c *Conn) commitProbe(ctx context.Context, tx Transaction) error {
	const firstWait, lastWait = 10 * time.Millisecond, 320 * time.Millisecond
	for wait := firstWait; ; wait *= 2 {
		_, err := c.Commit(ctx, tx)
		if !isPassing(err) || wait > lastWait {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// isPassing reports whether an error comes from a lack of memory, or from what others do at the time. It says nothing
// about the kernel's features.
func isPassing(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOMEM, unix.ENOBUFS, unix.EBUSY, unix.EAGAIN, unix.EINTR, unix.ERESTART},
		func(errno error) bool { return errors.Is(err, errno) })
}

func probe(families []Family, commit func(Transaction) error) error {
	var missing MissingError
	var all []feature
	table := probeTable()
	for _, f := range families {
		all = append(all, features(f, table)...)
	}
	for _, f := range all {
		tx := Diff(nil, f.table)
		tx.Steps = append(tx.Steps, Step{Op: DeleteTable, Table: f.table})
		err := commit(tx)
		switch {
		case err == nil:
		case !refusesProbe(err) && !saysMissing(err), errors.Is(err, unix.EACCES):
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

// refusesProbe reports whether the kernel has refused the transaction of a probe, and neither for want of a privilege nor
// for a reason that passes. Then it lacks something.
func refusesProbe(err error) bool {
	_, refused := errors.AsType[*CommitError](err)
	return refused && !errors.Is(err, unix.EPERM) && !isPassing(err)
}

// saysMissing reports whether an error that is not the kernel's answer to a transaction means that something is
// missing. A sandbox between the program and the kernel, such as gVisor, refuses at the socket.
func saysMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

func errnoOf(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
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

func features(f Family, table string) []feature {
	suffix := byFamily(f, "IPV4", "IPV6")
	// rule returns the feature that a rule needs, and the set that it uses, if any.
	rule := func(name, option string, set *Set, statements ...Statement) feature {
		t := &Table{Family: f, Name: table, Chains: []*Chain{{Name: "probe", Rules: []Rule{NewRule(statements...)}}}}
		if set != nil {
			t.Sets = []*Set{set}
		}
		return feature{name: f.String() + ": " + name, option: option, table: t}
	}
	nat := rule("nat chains", "CONFIG_NFT_NAT", nil)
	nat.table.Chains[0] = &Chain{Name: "probe", Type: TypeNAT, Hook: HookPostrouting, Priority: PrioritySrcNAT}
	key := Concat{f.Daddr(), MetaL4proto, ThDport}
	numbered := slices.Concat(key, Concat{Numgen{Mod: 2}})
	ranged := slices.Concat(key, Concat{f.Saddr()})
	clients := &Set{
		Name: "clients", Key: slices.Concat(Concat{f.Saddr()}, key),
		Data: Concat{f.Daddr(), ThDport}, Dynamic: true, Size: 1,
	}
	return []feature{
		{name: f.String() + " tables", option: "CONFIG_NF_TABLES_" + suffix, essential: true, table: &Table{Family: f, Name: table}},
		rule("matching addresses", "CONFIG_NF_TABLES", nil, Match{Field: f.Daddr(), Value: netip.PrefixFrom(f.Loopback().Addr(), 5)}),
		rule("verdict maps", "CONFIG_NF_TABLES", &Set{Name: "verdicts", Key: key, Verdicts: true}, Vmap{Key: key, Map: "verdicts"}),
		rule("sets with ranges in a concatenation", "CONFIG_NF_TABLES of kernel 5.6 or later",
			&Set{Name: "ranges", Key: ranged, Interval: true}, InSet{Key: ranged, Set: "ranges"}),
		nat,
		rule("numgen", "CONFIG_NFT_NUMGEN", &Set{Name: "slots", Key: numbered}, InSet{Key: numbered, Set: "slots"}),
		rule("dnat to a map", "CONFIG_NFT_NAT",
			&Set{Name: "endpoints", Key: numbered, Data: Concat{f.Daddr(), ThDport}}, DNAT(f, numbered, "endpoints")),
		rule("maps that packets add to", "CONFIG_NFT_CT of kernel 4.17 or later", clients,
			Match{Field: MetaL4proto, Value: ProtoData(unix.IPPROTO_TCP)},
			Update{Map: clients.Name, Key: Concat{f.Saddr(), f.OriginalDaddr(), MetaL4proto, CTOriginalProtoDst}, Data: Concat{f.Daddr(), CTReplyProtoSrc}, Timeout: time.Hour}),
		rule("masquerade", "CONFIG_NFT_MASQ", nil, Masquerade),
		rule("ct state", "CONFIG_NFT_CT", nil, Match{Field: CTState, Value: CTStateNew}),
		rule("fib daddr type", "CONFIG_NFT_FIB_"+suffix, nil, Match{Field: FibDaddrType, Value: IntegerData(unix.RTN_LOCAL)}),
		rule("reject", "CONFIG_NFT_REJECT_"+suffix, nil, Reject{Family: f}),
	}
}

// ProbeDup finds out whether the kernel can send copies of packets elsewhere (Dup) by the hash of two fields (JHash),
// in tables of these families. If not, it returns a MissingError.
func (c *Conn) ProbeDup(ctx context.Context, families ...Family) error {
	var missing MissingError
	for _, f := range families {
		key := Concat{f.Daddr(), JHash{Field: f.Saddr(), And: ThSport, Mod: 2}}
		set := &Set{Name: "probe", Key: Concat{f.Daddr(), Numgen{Mod: 2}}, Data: Concat{f.Daddr()}}
		chain := &Chain{
			Name: "probe", Type: TypeFilter, Hook: HookPrerouting,
			Priority: PriorityMangle, Rules: []Rule{NewRule(Dup{key, set.Name}, Drop)},
		}
		table := &Table{Family: f, Name: probeTable(), Sets: []*Set{set}, Chains: []*Chain{chain}}
		tx := Diff(nil, table)
		tx.Steps = append(tx.Steps, Step{Op: DeleteTable, Table: table})
		err := c.commitProbe(ctx, tx)
		switch {
		case refusesProbe(err):
			option := "CONFIG_NFT_DUP_" + byFamily(f, "IPV4", "IPV6") + " and CONFIG_NFT_HASH"
			missing = append(missing, Missing{Feature: f.String() + ": dup to an address", Option: option, Err: errnoOf(err)})
		case err != nil:
			return err
		}
	}
	if len(missing) > 0 {
		return missing
	}
	return nil
}

// ProbeCounters finds out whether the elements of a set can count (Set.Counter, kernel 5.7). If not, it returns a
// MissingError. An older kernel accepts such a set and leaves out the counters. So the probe adds a table with a new
// name and without chains, reads it, and deletes it.
func (c *Conn) ProbeCounters(ctx context.Context) error {
	set := &Set{Name: "probe", Key: Concat{IPDaddr}, Counter: true}
	table := &Table{Family: FamilyIP, Name: probeTable(), Sets: []*Set{set}}
	err := c.commitProbe(ctx, Diff(nil, table))
	switch {
	case refusesProbe(err):
		return missingCounters(errnoOf(err))
	case err != nil:
		return err
	}
	got, err := c.ReadTable(ctx, table.Family, table.Name)
	if refused := c.commitProbe(ctx, Remove(table.Family, table.Name)); err == nil {
		err = refused
	}
	if err != nil {
		return err
	}
	if got == nil || got.Set(set.Name) == nil || !got.Set(set.Name).Counter {
		return missingCounters(unix.EOPNOTSUPP)
	}
	return nil
}

func missingCounters(err error) error {
	return MissingError{
		{Feature: "counters of the elements of sets", Option: "CONFIG_NF_TABLES of kernel 5.7 or later", Err: err},
	}
}
