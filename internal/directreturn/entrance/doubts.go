package entrance

import (
	"fmt"

	"github.com/nftproxy/nftproxy/sysctl"
)

// Doubt is something on this node that may lose packets, or long packets. Only the administrator knows whether it does.
type Doubt struct {
	// What ends with Names: interfaces, or chains.
	What        string
	Names       []string
	Why, Advice string
}

// Doubts looks at the interfaces, and takes the chains of other programs that drop what the node sends unless a rule accepts
// it. The network namespace is the thread's. After an error the MTUs are not compared.
func Doubts(outputDrops []string) (doubts []Doubt, err error) {
	small, mtu, err := SmallHops()
	var hops []string
	for _, h := range small {
		hops = append(hops, h.String())
	}
	for _, d := range []Doubt{
		{
			"rp_filter is 1 on", (sysctl.Tree{}).StrictReversePaths(), "if other nodes send packets on by these interfaces, the kernel drops them",
			"set net.ipv4.conf.*.rp_filter to 0 or 2 there",
		},
		{
			fmt.Sprintf("interfaces to other nodes have a smaller MTU than the default route (%d):", mtu), hops,
			"clients that send longer packets are told so by ICMP; where that is filtered, these packets are lost",
			"give the pods the smaller MTU, which TCP clients heed, and let ICMP pass",
		},
		{
			"packets of this node that no rule accepts are dropped by", outputDrops,
			"also those that it sends on to other nodes, which belong to no connection",
			"see that a rule there accepts them, such as: ct state untracked accept",
		},
	} {
		if len(d.Names) > 0 {
			doubts = append(doubts, d)
		}
	}
	return doubts, err
}
