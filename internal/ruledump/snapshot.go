// Package ruledump reads the rules of one node from one of five sources: compiled from manifests,
// from a cluster's objects or from the state of a node-local server, read from a kernel, or read
// from a dump. All views of ruledump take a Snapshot, so the same rules give the same answers from
// every source.
package ruledump

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/version"
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

// Snapshot holds the rules of one node, and facts about the node.
type Snapshot struct {
	// Origin is Manifests, Cluster or Kernel; for a dump, the origin of the dump.
	Origin string
	// ServiceProxyName is that of a proxy beside another one, which names the tables of a kernel.
	ServiceProxyName string
	// Node is the name of the node.
	Node string
	// NodeSource says where the name of a kernel's node comes from: NodeFromProxy or NodeFromHost.
	NodeSource string
	// Taken is when the tables were read; zero for compiled ones.
	Taken time.Time
	// Generation is the kernel's count of commits; 0 for tables that are not from a kernel.
	Generation uint32
	// Addresses are the node's own addresses.
	Addresses []netip.Addr
	// IPv4Only says that the kernel has no IPv6, so that the proxy makes no table for it.
	IPv4Only bool
	// Tables are the proxy's tables, without the elements of dynamic maps.
	Tables []*nft.Table
	// Places holds the places of endpoints, by address. It is nil if the objects are not known.
	Places map[netip.Addr]Place
	// Counts holds what the elements have counted: see LoadCounts.
	Counts Counts
	// ReadCounts, if set, reads what the elements have counted.
	ReadCounts func() (Counts, error)
	// ReadClients, if set, reads the clients of a dynamic map of a table into it.
	ReadClients func(table *nft.Table, set *nft.Set) error
}

// Place is the place of an endpoint, from its slice.
type Place struct {
	// Node is the name of the endpoint's node.
	Node string `json:"node,omitempty"`
	// Zone is the name of the endpoint's zone.
	Zone string `json:"zone,omitempty"`
}

// NameNode takes the name of the node from the proxy that runs on it.
func (s *Snapshot) NameNode(p *Proxy) { s.Node, s.NodeSource = p.Node, NodeFromProxy }

// NodeText returns the name of a node for people. It says where the name may be wrong.
func NodeText(node, source string) string {
	if source == NodeFromHost {
		return node + " (host name)"
	}
	return node
}

// Host returns the node's addresses for an evaluator.
func (s *Snapshot) Host() evaluator.Host { return evaluator.Host{Addresses: s.Addresses} }

// Frontends returns all frontends of the tables, sorted.
func (s *Snapshot) Frontends() ([]*compiler.Frontend, error) {
	var out []*compiler.Frontend
	for _, t := range s.Tables {
		frontends, err := compiler.Read(t)
		if err != nil {
			return nil, err
		}
		out = append(out, frontends...)
	}
	slices.SortStableFunc(out, (*compiler.Frontend).Compare)
	return out, nil
}

// Write writes the snapshot as a dump.
func (s *Snapshot) Write(w io.Writer) error {
	return writeDump(w, document{
		Writer: "ruledump " + version.Own(), Origin: s.Origin, Node: s.Node, NodeSource: s.NodeSource, Taken: s.Taken, Generation: s.Generation, Addresses: s.Addresses, IPv4Only: s.IPv4Only,
	}, s.Tables, s.Counts)
}

// FromDump reads a dump.
func FromDump(r io.Reader) (*Snapshot, error) {
	d, tables, counts, err := readDump(r)
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		if t.Name != compiler.TableName && !strings.HasPrefix(t.Name, compiler.TableName+".") {
			return nil, fmt.Errorf("the dump has a table %s %s, and the proxy's are called %s", t.Family, t.Name, compiler.TableName)
		}
	}
	if len(tables) == 0 {
		return nil, fmt.Errorf("the dump has no table ip %s or ip6 %s", compiler.TableName, compiler.TableName)
	}
	return &Snapshot{Origin: d.Origin, Node: d.Node, NodeSource: d.NodeSource, Taken: d.Taken, Generation: d.Generation, Addresses: d.Addresses, IPv4Only: d.IPv4Only, Tables: tables, Counts: counts}, nil
}
