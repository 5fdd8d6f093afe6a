package config

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// ModeNFTables is the only mode that this proxy has.
const ModeNFTables = "nftables"

// NodePortAddressesPrimary is the value of nodePortAddresses that stands for the node's primary IPs.
const NodePortAddressesPrimary = "primary"

// The values of detectLocalMode. Empty is LocalModeClusterCIDR.
const (
	LocalModeClusterCIDR         kubeproxyv1alpha1.LocalMode = "ClusterCIDR"
	LocalModeNodeCIDR            kubeproxyv1alpha1.LocalMode = "NodeCIDR"
	LocalModeBridgeInterface     kubeproxyv1alpha1.LocalMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix kubeproxyv1alpha1.LocalMode = "InterfaceNamePrefix"
)

// CheckMode returns an error for a mode other than nftables. Empty is nftables: it is
// the only thing that this proxy does.
func CheckMode(mode string) error {
	if mode == "" || mode == ModeNFTables {
		return nil
	}
	return fmt.Errorf("mode %q is not supported: this kube-proxy programs nftables only; use %q, or run Kubernetes' own kube-proxy for %q", mode, ModeNFTables, mode)
}

// Compiler returns the part of the configuration that shapes the ruleset.
func Compiler(c *kubeproxyv1alpha1.KubeProxyConfiguration) (compiler.Config, error) {
	out := compiler.Default()
	if err := CheckMode(string(c.Mode)); err != nil {
		return out, fmt.Errorf("mode: %w", err)
	}
	out.MasqueradeAll = c.NFTables.MasqueradeAll
	if bit := c.NFTables.MasqueradeBit; bit != nil {
		if *bit < 0 || *bit > 31 {
			return out, fmt.Errorf("nftables.masqueradeBit: %d is not a bit of the packet mark; want 0 to 31", *bit)
		}
		out.MasqueradeBit = uint8(*bit)
	}
	var err error
	if out.DetectLocal, err = detectLocal(c); err != nil {
		return out, err
	}
	if out.NodePortAddresses, err = NodePortAddresses(c.NodePortAddresses); err != nil {
		return out, fmt.Errorf("nodePortAddresses: %w", err)
	}
	return out, out.Validate()
}

func detectLocal(c *kubeproxyv1alpha1.KubeProxyConfiguration) (out compiler.DetectLocal, err error) {
	switch c.DetectLocalMode {
	case "", LocalModeClusterCIDR:
		if out.CIDRs, err = ClusterCIDRs(c.ClusterCIDR); err != nil {
			err = fmt.Errorf("clusterCIDR: %w", err)
		}
	case LocalModeNodeCIDR:
		out.NodePodCIDRs = true
	case LocalModeBridgeInterface:
		if out.Interface = c.DetectLocal.BridgeInterface; out.Interface == "" {
			err = fmt.Errorf("detectLocal.bridgeInterface: required by detectLocalMode %s", c.DetectLocalMode)
		}
	case LocalModeInterfaceNamePrefix:
		if c.DetectLocal.InterfaceNamePrefix == "" {
			return out, fmt.Errorf("detectLocal.interfaceNamePrefix: required by detectLocalMode %s", c.DetectLocalMode)
		}
		out.Interface = c.DetectLocal.InterfaceNamePrefix + "*"
	default:
		err = fmt.Errorf("detectLocalMode: %q is unknown; want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", c.DetectLocalMode)
	}
	return out, err
}

// ClusterCIDRs parses a comma-separated list of at most one CIDR a family, as clusterCIDR has it. Empty is none.
func ClusterCIDRs(list string) ([]netip.Prefix, error) {
	if list == "" {
		return nil, nil
	}
	out, err := parseCIDRs(strings.Split(list, ","))
	if err != nil {
		return nil, err
	}
	if len(out) > 2 || len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		return nil, fmt.Errorf("%q has more than one CIDR of a family", list)
	}
	return out, nil
}

// NodePortAddresses parses a nodePortAddresses list: nothing or "primary" alone is the
// node's primary IPs, anything else CIDRs.
func NodePortAddresses(list []string) (compiler.NodePortAddresses, error) {
	if len(list) == 0 || len(list) == 1 && list[0] == NodePortAddressesPrimary {
		return compiler.NodePortAddresses{Primary: true}, nil
	}
	cidrs, err := parseCIDRs(list)
	return compiler.NodePortAddresses{CIDRs: cidrs}, err
}

func parseCIDRs(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("%q is not a CIDR such as 10.0.0.0/8 or fd00::/8", s)
		}
		out = append(out, p)
	}
	return out, nil
}
