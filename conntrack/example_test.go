package conntrack_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
)

// After a backend has taken an endpoint of a UDP Service away, it deletes the flows that still lead there: the next packet of
// each client then goes to an endpoint that serves.
func ExampleConn_DeleteFlows() {
	conn, err := conntrack.Dial(0) // 0 is this process's network namespace
	if err != nil {
		fmt.Println(err)
		return
	}
	port := &model.ServicePort{
		ClusterIP: netip.MustParseAddr("10.96.0.10"),
		Port:      53,
		Serving:   []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:5353")},
	}
	frontend := netip.AddrPortFrom(port.ClusterIP, port.Port)

	// A table can have a million entries. Do not let a Sync wait for a search.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stats, err := conn.DeleteFlows(ctx, model.IPv4, uint8(model.UDP), func(f conntrack.Flow) bool {
		return f.Dialed == frontend && !port.KeepsFlow(f.Server)
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("flows deleted:", stats.Deleted)
}
