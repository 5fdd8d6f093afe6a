package dump

import (
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// Document is the tables of one node, and what the node's kernel knows besides.
type Document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Writer is the program that wrote the document, and its version.
	Writer string `json:"writer,omitempty"`
	// Origin is where the tables come from: "kernel", "manifests" or "cluster".
	Origin string `json:"origin"`
	// Node is the name of the node; for a kernel, its host name.
	Node string `json:"node,omitempty"`
	// Taken is when the tables were read.
	Taken time.Time `json:"taken,omitzero"`
	// Generation is the kernel's count of commits; 0 if the tables are not from a kernel.
	Generation uint32 `json:"generation,omitempty"`
	// Addresses is the node's own addresses.
	Addresses []netip.Addr `json:"addresses"`
	Tables    []Table      `json:"tables"`
}

// Table is a table with nft's words as keys.
type Table struct {
	Family  string `json:"family"`
	Name    string `json:"name"`
	Comment string `json:"comment,omitempty"`
	// Flags are nft's words for the flags of the table.
	Flags []string `json:"flags,omitempty"`
	// OwnerPort is the netlink port of the table's owner.
	OwnerPort uint32 `json:"ownerPort,omitempty"`
	// Objects names what else is in the table, such as "counter web".
	Objects []string `json:"objects,omitempty"`
	Sets    []Set    `json:"sets"`
	Maps    []Set    `json:"maps"`
	Chains  []Chain  `json:"chains"`
}

// Set is a set or a map.
type Set struct {
	Name string `json:"name"`
	// Key, and Data of a map, are nft's typeof; Data is "verdict" in a verdict map.
	Key      string    `json:"key"`
	Data     string    `json:"data,omitempty"`
	Comment  string    `json:"comment,omitempty"`
	Interval bool      `json:"interval,omitempty"`
	Dynamic  bool      `json:"dynamic,omitempty"`
	Size     uint32    `json:"size,omitempty"`
	Elements []Element `json:"elements"`
}

// Element is an element of a set or map.
type Element struct {
	Key     string `json:"key"`
	Value   string `json:"value,omitempty"`
	Comment string `json:"comment,omitempty"`
	// Timeout is how long the element of a dynamic set lives after packets last updated it, and Expires how much of that
	// was left; both as in "3h0m0s".
	Timeout string `json:"timeout,omitempty"`
	Expires string `json:"expires,omitempty"`
}

// Chain is a chain; a base chain if it has a hook.
type Chain struct {
	Name     string `json:"name"`
	Comment  string `json:"comment,omitempty"`
	Type     string `json:"type,omitempty"`
	Hook     string `json:"hook,omitempty"`
	Priority *int32 `json:"priority,omitempty"`
	// Policy is "drop" in a base chain that drops what no rule decides on.
	Policy string `json:"policy,omitempty"`
	Rules  []Rule `json:"rules"`
}

// Rule is a rule in nft's syntax.
type Rule struct {
	Rule    string `json:"rule"`
	Comment string `json:"comment,omitempty"`
}

// flags of a table, by nft's words.
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
