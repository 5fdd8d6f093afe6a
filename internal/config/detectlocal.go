package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
)

// NodeNetwork is what DetectLocalProblem looks at: the network of a node that runs, or of one in a dump.
type NodeNetwork struct {
	// Addresses and Interfaces are the node's own addresses and the names of its interfaces.
	Addresses  []netip.Addr
	Interfaces []string
	// LeadsInto reports whether the node has a route to a part of a network, as nodeaddr.LeadsInto does.
	LeadsInto func(netip.Prefix) (bool, error)
}

// DetectLocalProblem says why detectLocal fits nothing on a node; empty if something fits. Of an IP family in which the node
// has no address of its own it expects nothing.
func DetectLocalProblem(local compiler.DetectLocal, n NodeNetwork) (string, error) {
	if prefix, isPrefix := strings.CutSuffix(local.Interface, "*"); local.Interface != "" && !slices.ContainsFunc(n.Interfaces, local.NamesInterface) {
		if isPrefix {
			return "no interface begins with " + prefix, nil
		}
		return "there is no interface " + local.Interface, nil
	}
	for _, family := range model.Families {
		isOf := func(addr netip.Addr) bool { return addr.IsGlobalUnicast() && model.FamilyOf(addr) == family }
		networks := slices.DeleteFunc(slices.Clone(local.CIDRs), func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) != family })
		if len(networks) == 0 || !slices.ContainsFunc(n.Addresses, isOf) {
			continue
		}
		fits := false
		for _, network := range networks {
			leads, err := n.LeadsInto(network)
			if err != nil {
				return "", err
			}
			fits = fits || leads
		}
		if !fits {
			return fmt.Sprintf("no route or address of this node is in %s", networks[0]), nil
		}
	}
	return "", nil
}
