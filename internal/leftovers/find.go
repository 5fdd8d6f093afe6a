package leftovers

import (
	"errors"
	"fmt"
)

// Kind is a kind of leftovers: the program, or mode, that left them.
type Kind string

// The kinds.
const (
	// NFT are chains that iptables-nft, or ip6tables-nft, made in nf_tables.
	NFT Kind = "iptables-nft"
	// Legacy are chains in the tables of iptables-legacy, or ip6tables-legacy.
	Legacy Kind = "iptables-legacy"
	// IPVS is the device kube-ipvs0, which holds the addresses of all Services in the mode ipvs.
	IPVS Kind = "ipvs"
)

// Kinds has all kinds.
var Kinds = []Kind{NFT, Legacy, IPVS}

// Leftover counts the leftovers of one kind.
type Leftover struct {
	// Kind is the kind.
	Kind Kind
	// Count is the number of chains; for IPVS, of devices.
	Count int
	// Example is one of them, in the words of an administrator: "ip nat KUBE-SERVICES", or "kube-ipvs0".
	Example string
}

// Find returns what kube-proxy's other modes left in the network namespace of the calling thread, at
// most one Leftover of each kind. It changes nothing, needs CAP_NET_ADMIN, and starts no kernel module. Where it
// cannot look, the error says so, and what it found elsewhere is returned all the same.
func Find() ([]Leftover, error) {
	var found []Leftover
	var errs []error
	for _, place := range []struct {
		kind Kind
		look func() (names []string, err error)
	}{{NFT, nftChains}, {Legacy, legacyChains}, {IPVS, ipvsDevices}} {
		names, err := place.look()
		if err != nil {
			errs = append(errs, fmt.Errorf("look for what %s left: %w", place.kind, err))
		}
		if len(names) > 0 {
			found = append(found, Leftover{Kind: place.kind, Count: len(names), Example: names[0]})
		}
	}
	return found, errors.Join(errs...)
}
