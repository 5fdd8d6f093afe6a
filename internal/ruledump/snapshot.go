// Package ruledump reads the rules of one node from one of five sources: compiled from manifests,
// from a cluster's objects or from the state of a node-local server, read from a kernel, or read
// from a dump. All views of ruledump take a Snapshot, so the same rules give the same answers from
// every source.
package ruledump

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
)

// The origins of a Snapshot.
const (
	Manifests = "manifests"
	Cluster   = "cluster"
	Kernel    = "kernel"
	NodeLocal = "node-local"
)

// Where the name of a kernel's node comes from.
const (
	// NodeFromProxy is the running proxy, which may have another name than its host: --hostname-override.
	NodeFromProxy = "proxy"
	// NodeFromHost is the host name: no proxy answered.
	NodeFromHost = "host-name"
)

// Header holds facts about a node and its tables, as a dump has them.
type Header struct {
	// Origin: where the tables come from
	Origin string `json:"origin" jsonschema:"enum=kernel,enum=manifests,enum=cluster,enum=node-local"`
	Node   string `json:"node,omitempty"` // the name of the node
	// NodeSource: where the name of a kernel's node comes from; absent if --node gave it
	NodeSource string    `json:"nodeSource,omitempty" jsonschema:"enum=proxy,enum=host-name"`
	Taken      time.Time `json:"taken,omitzero"` // time at which the tables were read; absent for compiled tables
	// Generation: the kernel's count of commits; absent for tables that are not from a kernel
	Generation uint32       `json:"generation,omitempty"`
	Addresses  []netip.Addr `json:"addresses" jsonschema:"nullable"` // the node's own addresses
	IPv4Only   bool         `json:"ipv4Only,omitempty"`              // the kernel has no IPv6, so the proxy makes no table for it
}

// Snapshot holds the rules of one node.
type Snapshot struct {
	Header
	// ServiceProxyName is that of a proxy beside another one, which names the tables of a kernel.
	ServiceProxyName string
	// Tables are the proxy's tables. FromKernel says whether they have the elements of dynamic maps.
	Tables []*nft.Table
	// recordings are those of the Tables, if they come from a kernel or a dump.
	recordings []nft.Recording
	// Places holds the places of endpoints, by address. It is nil if the objects are not known.
	Places map[netip.Addr]Place
	// Unready holds the endpoints of Service ports ("namespace/service:port") whose condition ready is false, sorted. Some
	// may serve nevertheless: those that terminate, of a Service without ready ones. It is nil if the objects are not
	// known.
	Unready map[string][]netip.AddrPort
	// Counts holds what the elements have counted.
	Counts Counts
	// Ordered has the tables of all programs in the order in which they were made, if AddOthers has read them or the dump
	// has them. Host has the routes and interfaces. otherRecordings are those of Ordered, nil for Tables.
	Ordered         []*nft.Table
	Host            evaluator.Host
	otherRecordings []nft.Recording
	// NotLookedAt names rules on a packet's way that the program cannot follow.
	NotLookedAt []string
	// Files are the other files of the report that the rules come from, by name; nil for none.
	Files map[string][]byte
	// ReadClients, if set, reads the clients of a dynamic map of a table from the kernel. It does not change the map.
	ReadClients func(table *nft.Table, set *nft.Set) ([]nft.Element, error)
}

// add adds a table with its recording.
func (s *Snapshot) add(t *nft.Table, recording nft.Recording) error {
	s.Tables, s.recordings = append(s.Tables, t), append(s.recordings, recording)
	if isKubeProxys(t) && t.Kernel != nil {
		t.Kernel.Other = true
	}
	if !slices.ContainsFunc(t.Sets, func(set *nft.Set) bool { return set.Counter }) {
		return nil
	}
	if s.Counts == nil {
		s.Counts = Counts{}
	}
	return recording.Counts(func(name string, key nft.Data, n nft.Count) {
		set := CountedSet{t.Family, name}
		if s.Counts[set] == nil {
			s.Counts[set] = map[nft.Data]nft.Count{}
		}
		s.Counts[set][key] = n
	})
}

// Table returns the table of a family; nil if there is none.
func (s *Snapshot) Table(family nft.Family) *nft.Table {
	if i := slices.IndexFunc(s.Tables, func(t *nft.Table) bool { return t.Family == family }); i >= 0 {
		return s.Tables[i]
	}
	return nil
}

// Frontends returns all frontends of the tables, sorted.
func (s *Snapshot) Frontends() ([]*compiler.Frontend, error) {
	var out []*compiler.Frontend
	for _, t := range s.Tables {
		if isKubeProxys(t) {
			out = append(out, s.kubeProxyFrontends(t)...)
			continue
		}
		frontends, err := compiler.Read(t)
		if err != nil {
			return nil, err
		}
		out = append(out, frontends...)
	}
	slices.SortStableFunc(out, (*compiler.Frontend).Compare)
	return out, nil
}

// Counts holds the counts of elements of sets with nft.Set.Counter, by set and key.
type Counts map[CountedSet]map[nft.Data]nft.Count

// CountedSet identifies a set in the tables of one node.
type CountedSet struct {
	// Family is that of the set's table.
	Family nft.Family
	// Set is the name of the set.
	Set string
}
