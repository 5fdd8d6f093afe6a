package compiler

import (
	"fmt"
	"net/netip"
	"strings"
)

// TableName is the name of the tables of both families. It is the one that kube-proxy's
// nftables mode uses, so that taking over from it, or handing back, replaces the rules.
const TableName = "kube-proxy"

// DefaultMasqueradeBit is the bit of the packet mark that kube-proxy has always used.
const DefaultMasqueradeBit = 14

// Config holds the parameters of the fixed program. The zero value masquerades nothing but hairpins
// and external traffic, and answers node ports nowhere; see Default.
type Config struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that carries "to be
	// masqueraded" from the NAT chains to postrouting, where it is cleared again.
	MasqueradeBit uint8
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool
	// DetectLocal tells the cluster's own clients from others.
	DetectLocal DetectLocal
	// NodePortAddresses says where node ports answer.
	NodePortAddresses NodePortAddresses
	// AffinityHash sends a new client of a Service with session affinity to the endpoint that the hash of its address
	// chooses, instead of a random one (kernel: CONFIG_NFT_HASH). Then a client has one endpoint on all nodes, and also
	// after its affinity was lost, as long as the list of endpoints is the same. It also has the same one again after
	// its affinity timed out.
	AffinityHash bool
	// OwnTables gives the tables the flags owner and persist (kernel 6.9): while the connection that commits them
	// lives, nobody else can change or delete them, and "nft flush ruleset" passes over them. They stay when it ends.
	// kube-proxy cannot take such tables over: they have to be deleted first. The kernel must be asked before with
	// nft.Conn.ProbePersist.
	OwnTables bool
}

// Default is the configuration that kube-proxy has by default.
func Default() Config {
	return Config{MasqueradeBit: DefaultMasqueradeBit, NodePortAddresses: NodePortAddresses{Primary: true}}
}

// DetectLocal tells which clients are pods of the cluster. A client that any part of it
// recognises is; with nothing set for a family, nobody is told apart and nothing is masqueraded for it.
type DetectLocal struct {
	// CIDRs holds the source addresses of pods (modes ClusterCIDR and NodeCIDR).
	CIDRs []netip.Prefix
	// NodePodCIDRs takes the node's own pod CIDRs from the model too (mode NodeCIDR).
	NodePodCIDRs bool
	// Interface is the name of the interface that pods' packets come in by (mode
	// BridgeInterface), or, ending in "*", the start of such names (mode InterfaceNamePrefix).
	Interface string
}

// NodePortAddresses says on which of the node's own addresses node ports answer. Loopback
// addresses never do. In a family without addresses here they answer nowhere. (kube-proxy's
// nodePortAddresses means all addresses in a family that it does not name; whoever makes the Config from it adds them.)
type NodePortAddresses struct {
	// Primary stands for the node's addresses in the model.
	Primary bool
	// CIDRs holds further addresses.
	CIDRs []netip.Prefix
}

// Validate returns an error that names the first field that makes no sense.
func (c *Config) Validate() error {
	if c.MasqueradeBit > 31 {
		return fmt.Errorf("masqueradeBit is %d: the packet mark has bits 0 to 31", c.MasqueradeBit)
	}
	for _, p := range c.DetectLocal.CIDRs {
		if !p.IsValid() {
			return fmt.Errorf("detectLocal: invalid CIDR")
		}
	}
	// The kernel's interface names are at most 15 bytes long (IFNAMSIZ).
	if len(strings.TrimSuffix(c.DetectLocal.Interface, "*")) > 15 {
		return fmt.Errorf("detectLocal: interface name %q is longer than 15 bytes", c.DetectLocal.Interface)
	}
	for _, p := range c.NodePortAddresses.CIDRs {
		if !p.IsValid() {
			return fmt.Errorf("nodePortAddresses: invalid CIDR")
		}
	}
	return nil
}

func (c *Config) markBits() uint32 { return 1 << c.MasqueradeBit }
