package ruledump

import (
	"encoding/json"
	"io"
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// APIVersion is the version of all JSON that ruledump writes. A change that a reader can ignore, such as one more
// field, does not change it.
const APIVersion = "ruledump.nftproxy/v1"

// Kind is the kind of a document.
const Kind = "Ruleset"

// document holds the tables of one node, and the node's addresses.
type document struct {
	// APIVersion is the constant of that name.
	APIVersion string `json:"apiVersion"`
	// Kind is the constant of that name.
	Kind string `json:"kind"`
	// Writer is the program that wrote the document, and its version.
	Writer string `json:"writer,omitempty"`
	// Origin is where the tables come from: "kernel", "manifests", "cluster" or "node-local".
	Origin string `json:"origin"`
	// Node is the name of the node.
	Node string `json:"node,omitempty"`
	// NodeSource says where the name of a kernel's node comes from: "proxy" or "host-name".
	NodeSource string `json:"nodeSource,omitempty"`
	// Taken is when the tables were read.
	Taken time.Time `json:"taken,omitzero"`
	// Generation is the kernel's count of commits; 0 if the tables are not from a kernel.
	Generation uint32 `json:"generation,omitempty"`
	// Addresses are the node's own addresses.
	Addresses []netip.Addr `json:"addresses"`
	// IPv4Only says that the kernel has no IPv6, so that the proxy makes no table for it.
	IPv4Only bool `json:"ipv4Only,omitempty"`
	// Tables are those of the proxy, IPv4 first.
	Tables []tableText `json:"tables"`
}

// tableText is a table with nft's words as keys.
type tableText struct {
	// Family is "ip" or "ip6".
	Family string `json:"family"`
	// Name is the name of the table.
	Name string `json:"name"`
	// Comment is the table's comment.
	Comment string `json:"comment,omitempty"`
	// Flags are nft's words for the flags of the table.
	Flags []string `json:"flags,omitempty"`
	// OwnerPort is the netlink port of the table's owner.
	OwnerPort uint32 `json:"ownerPort,omitempty"`
	// Objects names the foreign objects in the table, such as "counter web".
	Objects []string `json:"objects,omitempty"`
	// Sets are the sets without data.
	Sets []setText `json:"sets"`
	// Maps are the maps and verdict maps.
	Maps []setText `json:"maps"`
	// Chains are in the order in which ruledump prints them.
	Chains []chainText `json:"chains"`
}

// setText is a set or a map.
type setText struct {
	// Name is the name of the set or map.
	Name string `json:"name"`
	// Key is nft's typeof of the keys.
	Key string `json:"key"`
	// Data is nft's typeof of a map's values; "verdict" in a verdict map.
	Data string `json:"data,omitempty"`
	// Comment is the set's comment.
	Comment string `json:"comment,omitempty"`
	// Interval says that the last field of a key may be a range.
	Interval bool `json:"interval,omitempty"`
	// Dynamic says that packets add elements.
	Dynamic bool `json:"dynamic,omitempty"`
	// Size is the largest number of elements; 0 for no limit.
	Size uint32 `json:"size,omitempty"`
	// Counter says that the elements count.
	Counter bool `json:"counter,omitempty"`
	// Elements are in the order of their keys. A Dynamic set has those of the time of the dump, if they were read.
	Elements []elementText `json:"elements"`
}

// elementText is an element of a set or map.
type elementText struct {
	// Key and Value are as nft prints them.
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
	// Comment is the element's comment: the Service port of a frontend.
	Comment string `json:"comment,omitempty"`
	// Timeout is how long the element of a dynamic set lives after packets last updated it, as in "3h0m0s".
	Timeout string `json:"timeout,omitempty"`
	// Expires is how much of Timeout was left.
	Expires string `json:"expires,omitempty"`
	// Packets and Bytes are the count of an element of a set with Counter; absent if it was not read.
	Packets *uint64 `json:"packets,omitempty"`
	Bytes   *uint64 `json:"bytes,omitempty"`
}

// chainText is a chain; a base chain if it has a hook.
type chainText struct {
	// Name is the name of the chain.
	Name string `json:"name"`
	// Comment is the chain's comment.
	Comment string `json:"comment,omitempty"`
	// Type is "filter" or "nat" in a base chain.
	Type string `json:"type,omitempty"`
	// Hook is nft's word for the hook of a base chain, such as "prerouting".
	Hook string `json:"hook,omitempty"`
	// Priority is that of a base chain.
	Priority *int32 `json:"priority,omitempty"`
	// Policy is "drop" in a base chain that drops packets on which no rule decides.
	Policy string `json:"policy,omitempty"`
	// Rules are in the order in which they run.
	Rules []ruleJSON `json:"rules"`
}

// ruleJSON is a rule.
type ruleJSON struct {
	// Rule is the rule in nft's syntax, without the comment.
	Rule string `json:"rule"`
	// Comment is the rule's comment.
	Comment string `json:"comment,omitempty"`
}

// flags returns nft's words for the flags of a table.
func flags(t *nft.Table) (out []string) {
	for _, f := range []struct {
		set  bool
		word string
	}{{t.Dormant, "dormant"}, {t.Owner, "owner"}, {t.Persist, "persist"}} {
		if f.set {
			out = append(out, f.word)
		}
	}
	return out
}

// Counts holds the counts of elements of sets with nft.Set.Counter, by set and key.
type Counts map[CountedSet]map[nft.Data]nft.Count

// CountedSet identifies a set in the tables of one node.
type CountedSet struct {
	// Family is that of the set's table.
	Family nft.Family
	// setText is the name of the set.
	Set string
}

// Put adds the count of an element.
func (c Counts) Put(set CountedSet, key nft.Data, n nft.Count) {
	if c[set] == nil {
		c[set] = map[nft.Data]nft.Count{}
	}
	c[set][key] = n
}

// writeDump writes tables, and the counts of their elements, which may be nil, with a header, whose Tables are ignored.
func writeDump(w io.Writer, header document, tables []*nft.Table, counts Counts) error {
	header.APIVersion, header.Kind, header.Tables = APIVersion, Kind, []tableText{}
	for _, t := range tables {
		header.Tables = append(header.Tables, fromTable(t, counts))
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(header)
}

func fromTable(t *nft.Table, counts Counts) tableText {
	out := tableText{
		Family: t.Family.String(), Name: t.Name, Comment: t.Comment, Flags: flags(t),
		Sets: []setText{}, Maps: []setText{}, Chains: []chainText{},
	}
	if k := t.Kernel; k != nil {
		out.OwnerPort = k.OwnerPort
		for _, o := range k.Objects {
			out.Objects = append(out.Objects, o.String())
		}
	}
	for _, s := range t.Sets {
		converted := fromSet(s, counts[CountedSet{t.Family, s.Name}])
		if s.IsMap() {
			out.Maps = append(out.Maps, converted)
		} else {
			out.Sets = append(out.Sets, converted)
		}
	}
	for _, c := range t.Chains {
		out.Chains = append(out.Chains, fromChain(c))
	}
	return out
}

func fromSet(s *nft.Set, counts map[nft.Data]nft.Count) setText {
	out := setText{Name: s.Name, Key: s.Key.String(), Comment: s.Comment, Interval: s.Interval, Dynamic: s.Dynamic, Size: s.Size, Counter: s.Counter, Elements: []elementText{}}
	switch {
	case s.Verdicts:
		out.Data = verdictData
	case s.Data != nil:
		out.Data = s.Data.String()
	}
	keys := nft.Set{Key: s.Key} // prints keys alone
	for _, e := range s.Elements() {
		j := elementText{Key: keys.FormatElement(nft.Element{Key: e.Key, KeyEnd: e.KeyEnd}), Comment: e.Comment}
		switch {
		case s.Verdicts:
			j.Value = e.Verdict.String()
		case s.Data != nil:
			j.Value = s.Data.Format(e.Value)
		}
		if e.Timeout > 0 {
			j.Timeout, j.Expires = e.Timeout.String(), e.Expires.String()
		}
		if n, counted := counts[e.Key]; counted {
			j.Packets, j.Bytes = &n.Packets, &n.Bytes
		}
		out.Elements = append(out.Elements, j)
	}
	return out
}

func fromChain(c *nft.Chain) chainText {
	out := chainText{Name: c.Name, Comment: c.Comment, Type: string(c.Type), Hook: string(c.Hook), Rules: []ruleJSON{}}
	if c.Hook != "" {
		out.Priority = &c.Priority
	}
	if c.DropPolicy {
		out.Policy = "drop"
	}
	for _, r := range c.Rules {
		out.Rules = append(out.Rules, ruleJSON{Rule: nft.Rule{Statements: r.Statements}.String(), Comment: r.Comment})
	}
	return out
}
