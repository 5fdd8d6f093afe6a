package compiler

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// TableName is the name of the tables of both families, unless Config has a ServiceProxyName. kube-proxy's nftables mode
// uses the same name. So one transaction replaces the other program's rules, in both directions.
const TableName = "kube-proxy"

// Names of sets, for programs that read tables without a compiler. kube-proxy's nftables mode has ClusterIPs
// and ServiceIPs too.
const (
	// ClusterIPs has the ClusterIP of each Service port.
	ClusterIPs = "cluster-ips"
	// ServiceIPs has addresses with endpoints.
	ServiceIPs = "service-ips"
	// Endpoints has the endpoints of these addresses.
	Endpoints = "endpoints"
)

// TableNameFor returns the name of the tables of both families: TableName, or, for a proxy with a service-proxy-name,
// "kube-proxy." and the service-proxy-name.
func TableNameFor(serviceProxyName string) string { return nameFor(TableName, serviceProxyName) }

// TemporaryNameFor returns the name of the tables that serve while another program's tables with the name
// TableNameFor(serviceProxyName) are replaced. It never equals the name of another proxy's table, for any
// argument.
func TemporaryNameFor(serviceProxyName string) string {
	return nameFor(TemporaryName, serviceProxyName)
}

func nameFor(table, serviceProxyName string) string {
	if serviceProxyName == "" {
		return table
	}
	return table + "." + serviceProxyName
}

// DefaultMasqueradeBit is kube-proxy's default for MasqueradeBit.
const DefaultMasqueradeBit = 14

// Config holds the parameters of the fixed program. The zero value masquerades nothing but hairpins and external
// traffic, by bit 0 of the mark, and answers node ports nowhere. See Default.
type Config struct {
	// ServiceProxyName is set for a proxy beside another proxy: the value of the label service.kubernetes.io/service-proxy-name
	// of its Services, at most 63 bytes. Its tables have a name of their own: see TableNameFor. Its filter chains run before other
	// proxies' filter chains, which drop addresses of Service CIDRs that no Service of theirs holds. It drops no address
	// of a Service CIDR itself, because a Service of another proxy may hold the address.
	ServiceProxyName string
	// MasqueradeBit is the number, 0 to 31, of a bit of the packet mark. The NAT chains set it on packets that are to be
	// masqueraded, and postrouting clears it again. Other bits are not touched.
	MasqueradeBit uint8
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool
	// DetectLocal tells pods from other clients.
	DetectLocal DetectLocal
	// NodePortAddresses are the addresses on which node ports answer.
	NodePortAddresses NodePortAddresses
	// AffinityHash sends a new client of a Service with session affinity to the endpoint that the hash of its address
	// chooses, instead of a random one (nft.FeatureHash). While the list of endpoints does not change, the client
	// then has the same endpoint on all nodes, and again after its affinity timed out or was lost.
	AffinityHash bool
	// OwnTables gives the tables the flags owner and persist (nft.FeaturePersist). While the connection that commits them is
	// open, nobody else can change or delete them, and "nft flush ruleset" skips them. They stay when it closes.
	// kube-proxy cannot take such tables over: delete them first. Without the feature the tables go with the connection.
	OwnTables bool
	// IPv4Only leaves out the table for IPv6, and ignores Service ports of IPv6: a kernel without IPv6 may refuse such a
	// table (CONFIG_IPV6, CONFIG_NF_TABLES_IPV6).
	IPv4Only bool
	// CountServices counts new connections, packets and bytes for each frontend, in sets of their own: see CountSets.
	// Every packet of a Service then takes one more lookup (nft.FeatureCounters).
	CountServices bool
	// CountRefused counts the packets that are refused or dropped, in the elements that refuse them: see CountedBy. Packets
	// that are served run through the same rules as without it (nft.FeatureCounters).
	CountRefused bool
	// DirectReturn serves the external addresses of Service ports with model.ServicePort.DirectReturn without translating
	// the source: see internal/directreturn (nft.FeatureDup, nft.FeatureHash).
	DirectReturn bool
}

// Default returns kube-proxy's defaults: bit 14, no detection of local clients, node ports on the node's addresses.
func Default() Config {
	return Config{MasqueradeBit: DefaultMasqueradeBit, NodePortAddresses: NodePortAddresses{Primary: true}}
}

// DetectLocal recognises clients that are pods of the cluster. A client is one if any field recognises it. If no field
// is set for a family, packets of that family to ClusterIPs are masqueraded only with MasqueradeAll.
type DetectLocal struct {
	// CIDRs holds the source addresses of pods (modes ClusterCIDR and NodeCIDR).
	CIDRs []netip.Prefix
	// NodePodCIDRs takes the node's own pod CIDRs from the model too (mode NodeCIDR).
	NodePodCIDRs bool
	// Interface is the name of the interface on which pods' packets arrive (mode BridgeInterface). If it ends in "*", it
	// stands for all names that begin like this (mode InterfaceNamePrefix). At most 15 bytes.
	Interface string
}

// NamesInterface reports whether Interface names an interface, or begins its name.
func (d DetectLocal) NamesInterface(name string) bool {
	begin, isPrefix := strings.CutSuffix(d.Interface, "*")
	return name == d.Interface || isPrefix && strings.HasPrefix(name, begin)
}

// NodePortAddresses says on which of the machine's own addresses node ports answer: on those that a field includes.
// Loopback addresses never do. In a family without addresses here, node ports answer nowhere. (In kube-proxy's
// nodePortAddresses, a family that is not named answers on all addresses. A program that makes a Config from it adds
// 0.0.0.0/0 or ::/0.)
type NodePortAddresses struct {
	// Primary includes the node's addresses in the model (model.Node.IPs).
	Primary bool
	// CIDRs includes further addresses.
	CIDRs []netip.Prefix
}

// Validate returns an error that names the first invalid field; nil if there is none.
func (c *Config) Validate() error {
	if c.MasqueradeBit > 31 {
		return fmt.Errorf("masqueradeBit is %d: the packet mark has bits 0 to 31", c.MasqueradeBit)
	}
	invalid := func(p netip.Prefix) bool { return !p.IsValid() }
	if slices.ContainsFunc(c.DetectLocal.CIDRs, invalid) {
		return errors.New("detectLocal: invalid CIDR")
	}
	// The kernel's interface names are at most 15 bytes long (IFNAMSIZ).
	if len(strings.TrimSuffix(c.DetectLocal.Interface, "*")) > 15 {
		return fmt.Errorf("detectLocal: interface name %q is longer than 15 bytes", c.DetectLocal.Interface)
	}
	if slices.ContainsFunc(c.NodePortAddresses.CIDRs, invalid) {
		return errors.New("nodePortAddresses: invalid CIDR")
	}
	return nil
}
