package nft

import (
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Feature is an ability that some kernels lack. Only rules and tables that use it need it.
type Feature uint8

// The features.
const (
	// FeatureBasic is everything that this package can express, except the other features.
	FeatureBasic Feature = iota
	// FeatureHash is JHash.
	FeatureHash
	// FeatureDup is Dup.
	FeatureDup
	// FeatureCatchAll is an element with the key CatchAll.
	FeatureCatchAll
	// FeatureCounters is Set.Counter. An older kernel leaves out the counters.
	FeatureCounters
	// FeatureComments is comments of tables and chains. An older kernel leaves them out.
	FeatureComments
	// FeaturePersist is Table.Owner with Table.Persist. An older kernel deletes the table of an owner that ends.
	FeaturePersist
)

// featureSpec is a part of a Feature.
type featureSpec struct {
	name string
	// option is the kernel's configuration option that brings the feature, perhaps as a module. "*" stands for IPV4 or IPV6.
	option string
	// since is the first kernel with the feature; empty for a kernel before 4.17.
	since string
	// use fills in a table that uses the feature.
	use func(t *Table)
	// partOf is the Feature that the row belongs to.
	partOf Feature
	// essential says that nothing else works without the feature.
	essential bool
	// kept, if not nil, reports whether the kernel has not left out the feature of the table that was read back.
	kept func(t *Table) bool
}

// features are all features. Messages, tests and docs/kernels.md follow this table.
var features = [...]featureSpec{
	{name: "tables", option: "CONFIG_NF_TABLES_*", essential: true, use: func(*Table) {}},
	{name: "matching addresses", option: "CONFIG_NF_TABLES", use: func(t *Table) {
		t.probeRule(Match{Field: t.Family.Daddr(), Value: netip.PrefixFrom(t.Family.Loopback().Addr(), 5)})
	}},
	{name: "verdict maps", option: "CONFIG_NF_TABLES", use: func(t *Table) {
		s := t.probeSet(&Set{Key: probeKey(t.Family), Verdicts: true})
		t.probeRule(Vmap{Key: s.Key, Map: s.Name})
	}},
	{name: "sets with ranges in a concatenation", option: "CONFIG_NF_TABLES", since: "5.6", use: func(t *Table) {
		s := t.probeSet(&Set{Key: append(probeKey(t.Family), t.Family.Saddr()), Interval: true})
		t.probeRule(InSet{Key: s.Key, Set: s.Name})
	}},
	{name: "nat chains", option: "CONFIG_NFT_NAT", use: func(t *Table) {
		t.Chains = []*Chain{{Name: "probe", Type: TypeNAT, Hook: HookPostrouting, Priority: PrioritySrcNAT}}
	}},
	{name: "numgen", option: "CONFIG_NFT_NUMGEN", use: func(t *Table) {
		s := t.probeSet(&Set{Key: append(probeKey(t.Family), Numgen{Mod: 2})})
		t.probeRule(InSet{Key: s.Key, Set: s.Name})
	}},
	{name: "dnat to a map", option: "CONFIG_NFT_NAT", use: func(t *Table) {
		s := t.probeSet(&Set{Key: probeKey(t.Family), Data: Concat{t.Family.Daddr(), ThDport}})
		t.probeRule(DNAT(t.Family, s.Key, s.Name))
	}},
	{name: "maps that packets add to", option: "CONFIG_NFT_CT", since: "4.17", use: func(t *Table) {
		f := t.Family
		s := t.probeSet(&Set{Key: append(Concat{f.Saddr()}, probeKey(f)...), Data: Concat{f.Daddr(), ThDport}, Dynamic: true, Size: 1})
		key := Concat{f.Saddr(), f.OriginalDaddr(), MetaL4proto, CTOriginalProtoDst}
		t.probeRule(Match{Field: MetaL4proto, Value: ProtoData(unix.IPPROTO_TCP)},
			Update{Map: s.Name, Key: key, Data: Concat{f.Daddr(), CTReplyProtoSrc}, Timeout: time.Hour})
	}},
	{name: "masquerade", option: "CONFIG_NFT_MASQ", use: func(t *Table) { t.probeRule(Masquerade) }},
	{name: "ct state", option: "CONFIG_NFT_CT", use: func(t *Table) { t.probeRule(Match{Field: CTState, Value: CTStateNew}) }},
	{name: "fib daddr type", option: "CONFIG_NFT_FIB_*", use: func(t *Table) {
		t.probeRule(Match{Field: FibDaddrType, Value: IntegerData(unix.RTN_LOCAL)})
	}},
	{name: "reject", option: "CONFIG_NFT_REJECT_*", use: func(t *Table) { t.probeRule(Reject{Family: t.Family}) }},

	{name: "jhash", option: "CONFIG_NFT_HASH", partOf: FeatureHash, use: func(t *Table) {
		s := t.probeSet(&Set{Key: Concat{Numgen{Mod: 2}}})
		t.probeRule(InSet{Key: Concat{JHash{Field: t.Family.Saddr(), And: ThSport, Mod: 2}}, Set: s.Name})
	}},
	{name: "dup to an address", option: "CONFIG_NFT_DUP_*", partOf: FeatureDup, use: func(t *Table) {
		s := t.probeSet(&Set{Key: Concat{t.Family.Daddr()}, Data: Concat{t.Family.Daddr()}})
		t.probeRule(Dup{Key: s.Key, Map: s.Name})
		t.Chains[0].Type, t.Chains[0].Hook, t.Chains[0].Priority = TypeFilter, HookPrerouting, PriorityMangle
	}},
	{name: "catch-all elements", option: "CONFIG_NF_TABLES", since: "5.13", partOf: FeatureCatchAll, use: func(t *Table) {
		t.probeSet(&Set{Key: Concat{t.Family.Daddr()}}).Put(Element{Key: CatchAll})
	}},
	{
		name: "counters of the elements of sets", option: "CONFIG_NF_TABLES", since: "5.7", partOf: FeatureCounters,
		use:  func(t *Table) { t.probeSet(&Set{Key: Concat{t.Family.Daddr()}, Counter: true}) },
		kept: func(t *Table) bool { s := t.Set("probe"); return s != nil && s.Counter },
	},
	{
		name: "comments of tables and chains", option: "CONFIG_NF_TABLES", since: "5.10", partOf: FeatureComments,
		use:  func(t *Table) { t.Comment = "probe" },
		kept: func(t *Table) bool { return t.Comment != "" },
	},
	{name: "table flags owner and persist", option: "CONFIG_NF_TABLES", since: "6.9", partOf: FeaturePersist, use: func(t *Table) {
		t.Owner, t.Persist = true, true
	}},
}

func probeKey(f Family) Concat { return Concat{f.Daddr(), MetaL4proto, ThDport} }

func (t *Table) probeRule(statements ...Statement) {
	t.Chains = []*Chain{{Name: "probe", Rules: []Rule{NewRule(statements...)}}}
}

func (t *Table) probeSet(s *Set) *Set {
	s.Name = "probe"
	t.Sets = []*Set{s}
	return s
}

// Option returns the kernel's configuration option that brings the feature to a family, and the kernel, if it needs a
// later one than 4.16.
func (s *featureSpec) Option(f Family) string {
	option := strings.ReplaceAll(s.option, "*", byFamily(f, "IPV4", "IPV6"))
	if s.since != "" {
		option += " of kernel " + s.since + " or later"
	}
	return option
}
