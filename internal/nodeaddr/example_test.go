package nodeaddr_test

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/nftproxy/nftproxy/model"
)

// A user-space proxy listens on each node port's number on these addresses. Ask again when the node's addresses change.
func ExampleWithin() {
	addresses, err := nodeaddr.Within([]netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("::/0")})
	fmt.Println(addresses[model.IPv4], addresses[model.IPv6], err)
	// Output:
	// [127.0.0.1] [::] <nil>
}

// A flow to a node port's number concerns the Service only if it went to this machine.
func ExampleLocal() {
	own, err := nodeaddr.Local(0, model.IPv4) // 0 is this process's network namespace
	if err != nil {
		fmt.Println(err)
		return
	}
	dialed := netip.MustParseAddr("203.0.113.5")
	mine := slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(dialed) })
	fmt.Println("this machine's own:", mine)
	// Output:
	// this machine's own: false
}
