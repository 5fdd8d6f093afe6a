package dump

import (
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// Document holds the tables of one node, and the node's addresses.
type Document struct {
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
	Tables []Table `json:"tables"`
}

// Table is a table with nft's words as keys.
type Table struct {
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
	Sets []Set `json:"sets"`
	// Maps are the maps and verdict maps.
	Maps []Set `json:"maps"`
	// Chains are in the order in which ruledump prints them.
	Chains []Chain `json:"chains"`
}

// Set is a set or a map.
type Set struct {
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
	Elements []Element `json:"elements"`
}

// Element is an element of a set or map.
type Element struct {
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

// Chain is a chain; a base chain if it has a hook.
type Chain struct {
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
	Rules []Rule `json:"rules"`
}

// Rule is a rule.
type Rule struct {
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
