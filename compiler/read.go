package compiler

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// FrontendKind is the kind of address that a frontend is, as far as a table tells.
type FrontendKind string

// The kinds. A table does not tell external IPs from load balancer IPs: both are External.
const (
	FrontendClusterIP FrontendKind = "ClusterIP"
	FrontendExternal  FrontendKind = "External"
	FrontendNodePort  FrontendKind = "NodePort"
)

// Unserved is the fate of new connections that a frontend sends to no endpoint.
type Unserved string

// Reject answers with ICMP port unreachable, drop does not answer. The empty string means that every client is sent to
// an endpoint.
const (
	UnservedReject Unserved = "reject"
	UnservedDrop   Unserved = "drop"
)

// Frontend is one address that clients dial, and its treatment by a table. Everything in it is read from the table.
type Frontend struct {
	// Family is that of the table.
	Family nft.Family
	// Protocol is TCP, UDP or SCTP.
	Protocol model.Protocol
	// Addr is the address; the zero value for a node port.
	Addr netip.Addr
	// Port is the port that clients dial.
	Port uint16
	// ServicePort is the Service port that the frontend belongs to, as in "shop/web:http". It is the comment of the
	// frontend's elements, so names of more than 127 bytes are cut and end in "...".
	ServicePort string
	// Kind is the kind of the address.
	Kind FrontendKind
	// Policy is the traffic policy: "Cluster" or "Local". It is empty where the table does not tell: for a frontend
	// without any endpoint; and for a ClusterIP with endpoints, because its rules are the same under both policies.
	Policy string
	// Chain is where new connections go, such as "cluster-3"; empty for none. ShortCircuit is, under policy Local, where
	// new connections of the cluster's own clients and the node go.
	Chain, ShortCircuit string
	// Masquerade says that the frontend is external with policy Cluster, so that all its clients are masqueraded. It does
	// not tell whether those of a ClusterIP are.
	Masquerade bool
	// Endpoints is the list that Chain, or under policy Local ShortCircuit, draws from. LocalEndpoints is the list for
	// the clients that policy Local binds. Both are in the order of the slots.
	Endpoints, LocalEndpoints []netip.AddrPort
	// Unserved is the fate of new connections that are sent to no endpoint.
	Unserved Unserved
	// AffinityTimeout is how long a client keeps its endpoint after its last new connection; 0 means no affinity.
	AffinityTimeout time.Duration
	// AffinityMaps are the names of the maps from clients to endpoints: first that for Endpoints, then that for
	// LocalEndpoints, if they exist.
	AffinityMaps []string
	// Sources are the prefixes that may dial the frontend, sorted. Nil means everybody, empty nobody.
	Sources []netip.Prefix
}

// String returns "address:port/PROTOCOL", or "node port 30080/PROTOCOL".
func (f *Frontend) String() string { return f.frontend().String() }

func (f *Frontend) frontend() frontend { return frontend{f.Addr, f.Port, f.Protocol} }

// Key returns the frontend as a key of the table's maps. In maps of endpoints and in allowed-sources it is the start of
// the key.
func (f *Frontend) Key() nft.Data { return f.frontend().key() }

// Compare orders frontends by Service port, protocol, kind, address, port and family.
func (f *Frontend) Compare(other *Frontend) int {
	return cmp.Or(
		cmp.Compare(f.ServicePort, other.ServicePort), cmp.Compare(f.Protocol, other.Protocol), cmp.Compare(f.Kind, other.Kind),
		f.Addr.Compare(other.Addr), cmp.Compare(f.Port, other.Port), cmp.Compare(f.Family, other.Family),
	)
}

// Read returns the frontends of a table of TableName, in the order of Compare. The table may have been compiled, or
// read from a kernel. Elements of other programs in it that are no frontends are left out. A table that this version of
// the compiler did not write is an error that names the missing set.
func Read(table *nft.Table) ([]*Frontend, error) {
	r, err := newReader(table)
	if err != nil {
		return nil, err
	}
	return r.read(), nil
}

// reader reads a table by the layout that the compiler writes.
type reader struct {
	table *nft.Table
	// layout is a family without Services. It has the names and the types of all sets.
	layout *family
	// updates holds, by chain, the statements that fill affinity maps.
	updates map[string][]nft.Update
	// chainSets are the sets of frontends of one chain each.
	chainSets []chainSet
}

// chainSet is a set of frontends and the chain to which a rule leads them.
type chainSet struct {
	set   *nft.Set
	chain string
}

func newReader(table *nft.Table) (*reader, error) {
	if table.Family != nft.FamilyIP && table.Family != nft.FamilyIP6 {
		return nil, fmt.Errorf("table %s %s is of another family than ip and ip6", table.Family, table.Name)
	}
	r := &reader{table: table, layout: newFamily(table.Family, &Config{}), updates: map[string][]nft.Update{}}
	for _, want := range r.layout.draft.Table().Sets {
		have := table.Set(want.Name)
		differs := have == nil || have.Key.String() != want.Key.String() || have.Data.String() != want.Data.String() || have.Verdicts != want.Verdicts
		switch {
		case differs && table.Chain(kubeProxyServiceCheck) != nil:
			return nil, fmt.Errorf("table %[1]s %[2]s was written by kube-proxy (nftables mode), not by nftproxy: \"nft list table %[1]s %[2]s\" prints it; if nftproxy shall serve this node, stop kube-proxy and start nftproxy", table.Family, table.Name)
		case have == nil && !r.isOwn():
			return nil, fmt.Errorf("table %s %s is not nftproxy's: it has no %s %s, so another program wrote it", table.Family, table.Name, want.Kind(), want.Name)
		case have == nil:
			return nil, fmt.Errorf("table %s %s was written by another version of nftproxy: it has no %s %s", table.Family, table.Name, want.Kind(), want.Name)
		case differs:
			return nil, fmt.Errorf("table %s %s was written by another version of nftproxy: %s %s is of another type", table.Family, table.Name, want.Kind(), want.Name)
		}
	}
	for _, chain := range table.Chains {
		r.addUpdates(chain)
	}
	r.addChainSets(table.Chain(chainServices))
	return r, nil
}

// kubeProxyServiceCheck is a chain that every version of kube-proxy's nftables mode has, and nftproxy has not. The
// table's comment cannot tell them apart: it stays when one of them replaces the content that the other wrote.
const kubeProxyServiceCheck = "service-endpoints-check"

// isOwn reports whether the table has nftproxy's comment.
func (r *reader) isOwn() bool { return r.table.Comment == r.layout.draft.Table().Comment }

// addUpdates notes the affinity maps that a chain fills.
func (r *reader) addUpdates(chain *nft.Chain) {
	for _, rule := range chain.Rules {
		for _, statement := range rule.Statements {
			if update, ok := statement.(nft.Update); ok {
				r.updates[chain.Name] = append(r.updates[chain.Name], update)
			}
		}
	}
}

// addChainSets notes the sets that the chain services looks up, with the chain of each.
func (r *reader) addChainSets(services *nft.Chain) {
	if services == nil {
		return
	}
	for _, rule := range services.Rules {
		if len(rule.Statements) != 2 {
			continue
		}
		in, isLookup := rule.Statements[0].(nft.InSet)
		to, isVerdict := rule.Statements[1].(nft.Verdict)
		if set := r.table.Set(in.Set); isLookup && isVerdict && in.Op == nft.Equal && set != nil && to.Kind == nft.VerdictGoto {
			r.chainSets = append(r.chainSets, chainSet{set, to.Chain})
		}
	}
}

func (r *reader) set(like *nft.Set) *nft.Set { return r.table.Set(like.Name) }

// setsOf returns the layout's sets for frontends like f.
func (r *reader) setsOf(f *Frontend) *frontendSets { return r.layout.sets.of(!f.Addr.IsValid()) }

func (r *reader) read() []*Frontend {
	found := map[nft.Data]*Frontend{}
	l := r.layout.sets
	for _, set := range []*nft.Set{l.addresses.services, l.addresses.noEndpoints, l.guardedIPs, l.nodePorts.services, l.nodePorts.noEndpoints} {
		for _, e := range r.set(set).Elements() {
			r.addFrontend(found, e)
		}
	}
	for _, c := range r.chainSets {
		for _, e := range c.set.Elements() {
			r.addFrontend(found, e)
		}
	}
	r.addSources(found)
	return slices.SortedFunc(maps.Values(found), (*Frontend).Compare)
}

func (r *reader) addFrontend(found map[nft.Data]*Frontend, e nft.Element) {
	if found[e.Key] != nil {
		return
	}
	fe, ok := parseKey(e.Key)
	if !ok {
		return
	}
	f := &Frontend{Family: r.table.Family, Addr: fe.addr, Port: fe.port, Protocol: fe.protocol, ServicePort: e.Comment}
	found[e.Key] = f
	r.readKind(f)
	r.readVerdicts(f)
	r.readAffinity(f)
}

// parseKey is the inverse of frontend.key.
func parseKey(key nft.Data) (fe frontend, ok bool) {
	if addr := len(key) - 8; addr > 0 {
		if fe.addr, ok = netip.AddrFromSlice([]byte(key[:addr])); !ok {
			return fe, false
		}
		key = key[addr:]
	}
	if len(key) != 8 {
		return fe, false
	}
	fe.protocol, fe.port = model.Protocol(key[0]), binary.BigEndian.Uint16([]byte(key[4:6]))
	return fe, true
}

func (r *reader) readKind(f *Frontend) {
	switch _, isClusterIP := r.set(r.layout.sets.clusterIPs).Element(nft.AddrData(f.Addr)); {
	case !f.Addr.IsValid():
		f.Kind = FrontendNodePort
	case isClusterIP:
		f.Kind = FrontendClusterIP
	default:
		f.Kind = FrontendExternal
	}
}

// readVerdicts reads the chains that a frontend goes to and the lists that they draw from.
func (r *reader) readVerdicts(f *Frontend) {
	sets, key := r.setsOf(f), f.Key()
	first, firstFound := r.chainAt(sets.services, key)
	short, shortFound := r.chainAt(sets.shortCircuits, key)
	if firstFound {
		f.Chain = first.name()
	}
	switch {
	case firstFound && first.kind == kindLocal:
		f.Policy, f.LocalEndpoints = model.PolicyLocal.String(), r.list(sets.localEndpoints, key, first.count)
		if shortFound {
			f.ShortCircuit, f.Endpoints = short.name(), r.list(sets.endpoints, key, short.count)
		}
	case firstFound:
		f.Endpoints = r.list(sets.endpoints, key, first.count)
		if first.kind == kindExternal {
			f.Policy, f.Masquerade = model.PolicyCluster.String(), true
		}
	}
	if e, found := r.set(sets.noEndpoints).Element(key); found {
		f.Unserved = UnservedReject
		if e.Verdict == nft.Drop {
			f.Unserved, f.Policy = UnservedDrop, model.PolicyLocal.String()
		}
	}
}

func (r *reader) chainAt(set *nft.Set, key nft.Data) (endpointChain, bool) {
	if set == r.layout.sets.addresses.services {
		for _, c := range r.chainSets { // the rules look them up before service-ips
			if _, found := c.set.Element(key); found {
				return parseEndpointChain(c.chain)
			}
		}
	}
	e, found := r.set(set).Element(key)
	if !found || e.Verdict.Kind != nft.VerdictGoto {
		return endpointChain{}, false
	}
	return parseEndpointChain(e.Verdict.Chain)
}

// list returns the endpoints in the first count slots of a frontend, without empty slots.
func (r *reader) list(like *nft.Set, key nft.Data, count int) []netip.AddrPort {
	set := r.set(like)
	var out []netip.AddrPort
	for slot := range min(count, set.Len()) {
		e, found := set.Element(key + nft.IntegerData(uint32(slot)))
		if !found {
			continue
		}
		if addr, ok := ParseEndpoint(e.Value); ok {
			out = append(out, addr)
		}
	}
	return out
}

// ParseEndpoint reads the value of an element of a map of endpoints, or of an affinity map: an address and a port. It
// returns false if the value is none.
func ParseEndpoint(value nft.Data) (netip.AddrPort, bool) {
	if len(value) < 4 {
		return netip.AddrPort{}, false
	}
	at := len(value) - 4
	addr, ok := netip.AddrFromSlice([]byte(value[:at]))
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16([]byte(value[at:at+2]))), ok
}

// parseEndpointChain is the inverse of endpointChain.name.
func parseEndpointChain(name string) (b endpointChain, ok bool) {
	name, b.nodePort = strings.CutPrefix(name, "nodeport-")
	at := strings.LastIndexByte(name, '-')
	if at < 0 {
		return b, false
	}
	count, err := strconv.Atoi(name[at+1:])
	if err != nil || count < 0 {
		return b, false
	}
	b.count, name = count, name[:at]
	name, b.hash = strings.CutSuffix(name, "-hash")
	b.kind = parseChainKind(name)
	return b, b.kind != kindNone
}

// readAffinity finds the maps that hold the clients of a frontend.
func (r *reader) readAffinity(f *Frontend) {
	e, found := r.set(r.setsOf(f).affinity).Element(f.Key())
	if !found || e.Verdict.Kind != nft.VerdictGoto {
		return
	}
	updates := r.updates[e.Verdict.Chain]
	if port, isShortCircuit := strings.CutPrefix(e.Verdict.Chain, affinityShortCircuitPrefix); isShortCircuit {
		for _, prefix := range affinityChainPrefixes {
			updates = append(updates, r.updates[prefix+port]...)
		}
	}
	for _, u := range updates {
		f.AffinityTimeout = u.Timeout
		f.AffinityMaps = append(f.AffinityMaps, u.Map)
	}
}

// addSources reads the prefixes that may dial guarded frontends. Nobody may dial a guarded frontend without any.
func (r *reader) addSources(found map[nft.Data]*Frontend) {
	for _, e := range r.set(r.layout.sets.guardedIPs).Elements() {
		if f := found[e.Key]; f != nil {
			f.Sources = []netip.Prefix{}
		}
	}
	size := nft.Concat{r.table.Family.Saddr()}.Len()
	for _, e := range r.set(r.layout.sets.allowedSources).Elements() {
		at := len(e.Key) - size
		if at < 0 || len(e.KeyEnd) != len(e.Key) {
			continue
		}
		if f := found[e.Key[:at]]; f != nil && f.Sources != nil {
			f.Sources = append(f.Sources, prefixBetween(e.Key[at:], e.KeyEnd[at:]))
		}
	}
	for _, f := range found {
		slices.SortFunc(f.Sources, netip.Prefix.Compare)
	}
}

// prefixBetween returns the longest prefix that contains both addresses.
func prefixBetween(from, to nft.Data) netip.Prefix {
	first, _ := netip.AddrFromSlice([]byte(from))
	last, _ := netip.AddrFromSlice([]byte(to))
	for bits := first.BitLen(); bits > 0; bits-- {
		if p := netip.PrefixFrom(first, bits).Masked(); p.Contains(last) {
			return p
		}
	}
	return netip.PrefixFrom(first, 0).Masked()
}
