package leftovers

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// families are those that iptables-nft and ip6tables-nft write, by the kernel's numbers.
var families = []family{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}

type family uint8

// String returns nft's name.
func (f family) String() string {
	if f == unix.NFPROTO_IPV6 {
		return "ip6"
	}
	return "ip"
}

// iptablesTables are the tables in which kube-proxy has chains.
var iptablesTables = []string{"nat", "filter", "mangle"}

// chain is a chain of such a table.
type chain struct {
	family      family
	table, name string
	// base says that the kernel itself sends packets here.
	base bool
}

func (c chain) String() string { return fmt.Sprintf("%s %s %s", c.family, c.table, c.name) }

// rule is a rule of a chain.
type rule struct {
	chain  string
	handle uint64
	// to is the chain that it jumps or goes to, if any.
	to string
}

// nftChains returns the names of the chains that kube-proxy's other modes made with iptables-nft.
func nftChains() (names []string, err error) {
	k, err := dial()
	if err != nil {
		return nil, err
	}
	defer k.close()
	for _, f := range families {
		chains, err := retry(func() ([]chain, error) { return k.chains(f) })
		if err != nil {
			return names, err
		}
		for _, c := range chains {
			if isProxyChain(c.name) {
				names = append(names, c.String())
			}
		}
	}
	return names, nil
}
