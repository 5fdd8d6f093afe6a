package compiler

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// FrontendKind is the kind of address that a frontend is, as far as a table shows it.
type FrontendKind string

const (
	// FrontendClusterIP is a ClusterIP.
	FrontendClusterIP FrontendKind = "ClusterIP"
	// FrontendExternal is an external IP or a load balancer IP. A table does not tell these two apart.
	FrontendExternal FrontendKind = "External"
	// FrontendNodePort is a node port.
	FrontendNodePort FrontendKind = "NodePort"
)

// Unserved is the fate of new connections that a frontend sends to no endpoint. The empty string means that the frontend
// sends every client to an endpoint.
type Unserved string

const (
	// UnservedReject answers with ICMP port unreachable.
	UnservedReject Unserved = "reject"
	// UnservedDrop does not answer.
	UnservedDrop Unserved = "drop"
)

// Frontend is one address that clients dial, and its treatment by a table. Everything in it is read from the table.
type Frontend struct {
	// Family is the table's.
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
	// Chain is the chain to which new connections go, such as "cluster-3"; empty for none. ShortCircuit is, under policy
	// Local, the chain for new connections of the cluster's own clients and the node.
	Chain, ShortCircuit string
	// Masquerade says that the frontend is external with policy Cluster, and all its clients are masqueraded. It does not
	// tell whether those of a ClusterIP are. With direct return, clients outside the cluster are not.
	Masquerade bool
	// Endpoints is the list that Chain, or under policy Local ShortCircuit, draws from. LocalEndpoints is the list for
	// the clients that policy Local binds. Both are in the order of the slots.
	Endpoints, LocalEndpoints []netip.AddrPort
	// Unserved is the fate of new connections that are sent to no endpoint.
	Unserved Unserved
	// AffinityTimeout is the time for which a client keeps its endpoint after its last new connection; 0 means no affinity.
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

// CountSets returns the names of the sets whose elements count for a frontend. In the first one, each counted packet is
// a new connection that was sent to an endpoint. The second one counts all packets of such connections, in both
// directions. The keys are Frontend.Key. Only tables with Config.CountServices have these sets.
func (f *Frontend) CountSets() (connections, traffic string) {
	nodePort := f.Kind == FrontendNodePort
	return connectionsElement.setName(nodePort), trafficElement.setName(nodePort)
}

// Counted says what the packets are that an element counts, in tables with Config.CountServices or
// Config.CountRefused. From CountedNoEndpoints on, they are packets that are refused or dropped. Each try of a client
// counts again.
type Counted uint8

const (
	// CountedTraffic counts packets of connections that were sent to an endpoint, in both directions.
	CountedTraffic Counted = iota
	// CountedConnections counts new connections that were sent to an endpoint.
	CountedConnections
	// CountedAsked counts packets about which this node asks other nodes, since it does not know their connection.
	CountedAsked
	// CountedAnswered counts packets about which other nodes ask, and whose connection this node knows.
	CountedAnswered
	// CountedNoEndpoints counts packets that are refused because no node has a usable endpoint.
	CountedNoEndpoints
	// CountedPolicyLocal counts packets that are dropped because policy Local applies and this node has no endpoint.
	CountedPolicyLocal
	// CountedSource counts packets that are dropped because loadBalancerSourceRanges do not name the client.
	CountedSource
	// CountedPort counts packets that are refused because the ClusterIP does not have the port.
	CountedPort
	// CountedAddress counts packets that are dropped because no Service holds the address, which is one of a ServiceCIDR.
	CountedAddress
	// CountedUnknownConnection counts packets from other nodes that are dropped because this node knows neither their
	// connection nor their slot.
	CountedUnknownConnection
	// CountedKinds is the number of the constants above.
	CountedKinds
)

// String returns "traffic", "connections", "asked", "answered", or the reason of a refusal.
func (c Counted) String() string {
	return [CountedKinds]string{"traffic", "connections", "asked", "answered", "no-endpoints", "policy-local", "source-not-allowed", "unknown-port", "unassigned-address", "unknown-connection"}[c]
}

// Refused reports whether the packets were refused or dropped.
func (c Counted) Refused() bool { return c >= CountedNoEndpoints }

var countedBySet = map[string]Counted{
	connectionsElement.setName(false): CountedConnections, connectionsElement.setName(true): CountedConnections,
	noEndpointElement.setName(false): CountedNoEndpoints, noEndpointElement.setName(true): CountedNoEndpoints,
	refusedSourceElement.setName(false): CountedSource,
	ClusterIPs:                          CountedPort,
	unassignedSet:                       CountedAddress,
}

// CountedBy returns what an element of the set of that name counts. The element's comment names the Service port for
// CountedTraffic to CountedSource, and the Service for CountedPort. It is empty for CountedAddress.
func CountedBy(set string, e nft.Element) Counted {
	counted, is := countedBySet[set]
	if !is {
		counted = frontCounters[set]
	}
	if counted == CountedNoEndpoints && e.Verdict == nft.Drop {
		return CountedPolicyLocal
	}
	return counted
}

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

// reader reads a table by the sets that the compiler writes.
type reader struct {
	table *nft.Table
	// updates holds, by affinity map, the statements that fill it.
	updates map[string]nft.Update
	found   map[frontend]*foundFrontend
}

// foundFrontend is a Frontend while its table is read, with the endpoints of each list by slot.
type foundFrontend struct {
	Frontend
	all, local slots
}

// slots are the endpoints that were found for a chain that selects one of drawn slots. Elements of another program may have
// any slot, and a chain of another program any number in its name.
type slots struct {
	drawn int
	found []slot
}

type slot struct {
	number uint32
	addr   netip.AddrPort
}

func (s *slots) inOrder() (addrs []netip.AddrPort) {
	slices.SortFunc(s.found, func(a, b slot) int { return cmp.Compare(a.number, b.number) })
	for _, slot := range s.found {
		if int(slot.number) < s.drawn {
			addrs = append(addrs, slot.addr)
		}
	}
	return addrs
}

func newReader(table *nft.Table) (*reader, error) {
	if table.Family != nft.FamilyIP && table.Family != nft.FamilyIP6 {
		return nil, fmt.Errorf("table %s %s is of another family than ip and ip6", table.Family, table.Name)
	}
	wanted := newFamily(table.Family, &Config{}).draft.Table()
	for _, want := range wanted.Sets {
		have := table.Set(want.Name)
		differs := have == nil || have.Key.String() != want.Key.String() || have.Data.String() != want.Data.String() || have.Verdicts != want.Verdicts
		switch {
		case differs && table.Chain(kubeProxyServiceCheck) != nil:
			return nil, fmt.Errorf("table %[1]s %[2]s was written by kube-proxy (nftables mode), not by nftproxy: \"nft list table %[1]s %[2]s\" prints it; if nftproxy shall serve this node, stop kube-proxy and start nftproxy", table.Family, table.Name)
		case have == nil && table.Comment != wanted.Comment:
			return nil, fmt.Errorf("table %s %s is not nftproxy's: it has no %s %s, so another program wrote it", table.Family, table.Name, want.Kind(), want.Name)
		case have == nil:
			return nil, fmt.Errorf("table %s %s was written by another version of nftproxy: it has no %s %s", table.Family, table.Name, want.Kind(), want.Name)
		case differs:
			return nil, fmt.Errorf("table %s %s was written by another version of nftproxy: %s %s is of another type", table.Family, table.Name, want.Kind(), want.Name)
		}
	}
	r := &reader{table: table, updates: map[string]nft.Update{}, found: map[frontend]*foundFrontend{}}
	for _, chain := range table.Chains {
		for _, rule := range chain.Rules {
			for _, statement := range rule.Statements {
				if update, ok := statement.(nft.Update); ok {
					r.updates[update.Map] = update
				}
			}
		}
	}
	return r, nil
}

// kubeProxyServiceCheck is a chain of kube-proxy's nftables mode. The table's comment cannot tell the two programs apart:
// it stays when one of them replaces the content that the other wrote.
const kubeProxyServiceCheck = "service-endpoints-check"

// readOrder has a function for each kind of element that says something about frontends. It takes the part of the key
// after the frontend. The kinds that begin come first: they say which frontends there are.
var readOrder = []struct {
	kind   elementKind
	begins bool
	read   func(*reader, *foundFrontend, nft.Data, nft.Element)
}{
	{kind: serviceElement, begins: true, read: (*reader).readService},
	{kind: noEndpointElement, begins: true, read: (*reader).readUnserved},
	{kind: guardedElement, begins: true, read: (*reader).readGuard},
	{kind: shortCircuitElement, read: (*reader).readShortCircuit},
	{kind: endpointElement, read: func(_ *reader, f *foundFrontend, rest nft.Data, e nft.Element) { f.all.read(rest, e) }},
	{kind: localEndpointElement, read: func(_ *reader, f *foundFrontend, rest nft.Data, e nft.Element) { f.local.read(rest, e) }},
	{kind: recorderElement, read: (*reader).readRecorder},
	{kind: sourceElement, read: (*reader).readSource},
}

func (r *reader) read() (all []*Frontend) {
	for _, set := range r.table.Sets {
		if chain, ok := strings.CutPrefix(set.Name, ServiceIPs+"-"); ok {
			r.each(set, false, true, func(r *reader, f *foundFrontend, rest nft.Data, e nft.Element) {
				e.Verdict = nft.Goto(chain)
				r.readService(f, rest, e)
			})
		}
	}
	for _, order := range readOrder {
		for i, name := range elementRows[order.kind].names {
			if set := r.table.Set(name); set != nil {
				r.each(set, i == 1, order.begins, order.read)
			}
		}
	}
	for _, f := range r.found {
		slices.SortFunc(f.Sources, netip.Prefix.Compare)
		f.Endpoints, f.LocalEndpoints = f.all.inOrder(), f.local.inOrder()
		all = append(all, &f.Frontend)
	}
	slices.SortFunc(all, (*Frontend).Compare)
	return all
}

// each calls read for each element of a set whose key begins with a frontend. Other elements are another program's.
func (r *reader) each(set *nft.Set, nodePort, begins bool, read func(*reader, *foundFrontend, nft.Data, nft.Element)) {
	length := (&program{family: r.table.Family}).key(nodePort).Len()
	for _, e := range set.Elements() {
		fe, ok := parseKey(e.Key[:min(length, len(e.Key))])
		if !ok || fe.isNodePort() != nodePort {
			continue
		}
		f := r.found[fe]
		if f == nil && begins {
			f = r.begin(fe, e)
		}
		if f != nil {
			read(r, f, e.Key[length:], e)
		}
	}
}

// readService takes the chain of a frontend. The first one counts.
func (r *reader) readService(f *foundFrontend, _ nft.Data, e nft.Element) {
	chain, ok := parseEndpointChain(e.Verdict.Chain)
	if !ok || e.Verdict.Kind != nft.VerdictGoto || f.Chain != "" {
		return
	}
	f.Chain = chain.name()
	if chain.kind == kindLocal {
		f.Policy, f.local.drawn = model.PolicyLocal.String(), chain.count
		return
	}
	f.all.drawn = chain.count
	if chain.kind == kindExternal {
		f.Policy, f.Masquerade = model.PolicyCluster.String(), !hasDirectReturn(r.table, f.Key())
	}
}

func (r *reader) readShortCircuit(f *foundFrontend, _ nft.Data, e nft.Element) {
	chain, ok := parseEndpointChain(e.Verdict.Chain)
	if ok && e.Verdict.Kind == nft.VerdictGoto && f.Policy == model.PolicyLocal.String() && f.Chain != "" {
		f.ShortCircuit, f.all.drawn = chain.name(), chain.count
	}
}

func (s *slots) read(rest nft.Data, e nft.Element) {
	if addr, ok := ParseEndpoint(e.Value); ok && len(rest) == 4 {
		s.found = append(s.found, slot{binary.NativeEndian.Uint32([]byte(rest)), addr})
	}
}

func (r *reader) readUnserved(f *foundFrontend, _ nft.Data, e nft.Element) {
	if f.Unserved = UnservedReject; e.Verdict == nft.Drop {
		f.Unserved, f.Policy = UnservedDrop, model.PolicyLocal.String()
	}
}

func (r *reader) readGuard(f *foundFrontend, _ nft.Data, _ nft.Element) { f.Sources = []netip.Prefix{} }

func (r *reader) readSource(f *foundFrontend, first nft.Data, e nft.Element) {
	if f.Sources != nil && len(e.KeyEnd) == len(e.Key) {
		f.Sources = append(f.Sources, prefixBetween(first, e.KeyEnd[len(e.Key)-len(first):]))
	}
}

func (r *reader) readRecorder(f *foundFrontend, _ nft.Data, e nft.Element) {
	for _, key := range recordedIn(e.Verdict.Chain) {
		if update, ok := r.updates[key.mapName()]; ok {
			f.AffinityTimeout = update.Timeout
			f.AffinityMaps = append(f.AffinityMaps, update.Map)
		}
	}
}

// begin adds a frontend. Its first element names the Service port.
func (r *reader) begin(fe frontend, e nft.Element) *foundFrontend {
	f := &foundFrontend{Frontend: Frontend{
		Family: r.table.Family, Addr: fe.addr, Port: fe.port, Protocol: fe.protocol, ServicePort: e.Comment, Kind: FrontendExternal,
	}}
	if fe.isNodePort() {
		f.Kind = FrontendNodePort
	} else if _, isClusterIP := r.table.Set(ClusterIPs).Element(nft.AddrData(fe.addr)); isClusterIP {
		f.Kind = FrontendClusterIP
	}
	r.found[fe] = f
	return f
}

// kubeProxyNodePortIPs is the set of kube-proxy's nftables mode with the addresses on which node ports answer.
const kubeProxyNodePortIPs = "nodeport-ips"

// NodeFromTables returns the Node for which tables were compiled, as far as they tell: IPs has an address of each
// family on which node ports answer, and PodCIDRs the networks of the cluster's clients. Tables of kube-proxy's
// nftables mode tell the addresses only. Nil tables are skipped. With it, a proxy that starts while its Node has no
// addresses keeps node ports working.
func NodeFromTables(tables ...*nft.Table) model.Node {
	var node model.Node
	for _, t := range tables {
		if t == nil {
			continue
		}
		if ips := nodePortIPs(t); len(ips) > 0 {
			node.IPs = append(node.IPs, ips[0])
		}
		node.PodCIDRs = append(node.PodCIDRs, matched(t, chainShortCircuit, t.Family.Saddr(), nil)...)
	}
	return node
}

// nodePortIPs returns single addresses on which node ports answer.
func nodePortIPs(t *nft.Table) (ips []netip.Addr) {
	for _, p := range NodePortPrefixes(t) {
		if p.IsSingleIP() {
			ips = append(ips, p.Addr())
		}
	}
	return ips
}

// NodePortPrefixes returns the prefixes that contain the addresses of the node on which node ports answer. For tables of
// kube-proxy's nftables mode, each prefix is a single address.
func NodePortPrefixes(t *nft.Table) (prefixes []netip.Prefix) {
	set := t.Set(kubeProxyNodePortIPs)
	if set == nil {
		return matched(t, chainServices, t.Family.Daddr(), nft.Goto(chainNodePorts))
	}
	for _, e := range set.Elements() {
		if ip, ok := netip.AddrFromSlice([]byte(e.Key)); ok {
			prefixes = append(prefixes, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	return prefixes
}

// DetectLocalFromTable returns by what a table's rules tell the cluster's own clients from others: prefixes, or the name of an
// interface. It is empty if they do not tell them apart, and for tables of kube-proxy's nftables mode.
func DetectLocalFromTable(t *nft.Table) (d DetectLocal) {
	d.CIDRs = matched(t, chainShortCircuit, t.Family.Saddr(), nil)
	if c := t.Chain(chainShortCircuit); c != nil {
		for _, rule := range c.Rules {
			for _, statement := range rule.Statements {
				if m, is := statement.(nft.Match); is && m.Field == nft.MetaIifname && m.Op == nft.Equal {
					d.Interface, _ = m.Value.(string)
				}
			}
		}
	}
	return d
}

// matched returns the prefixes that a field is compared with in a chain, in rules with the statement end if it is set.
func matched(t *nft.Table, chain string, field nft.Field, end nft.Statement) (prefixes []netip.Prefix) {
	c := t.Chain(chain)
	if c == nil {
		return nil
	}
	for _, rule := range c.Rules {
		if end != nil && !slices.Contains(rule.Statements, end) {
			continue
		}
		for _, statement := range rule.Statements {
			m, _ := statement.(nft.Match)
			if prefix, ok := m.Value.(netip.Prefix); ok && m.Field == field && m.Op == nft.Equal {
				prefixes = append(prefixes, prefix)
			}
		}
	}
	return prefixes
}
