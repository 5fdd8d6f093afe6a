package labtest

import (
	"errors"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/integration/lab"
)

// WatchBatches returns a function that counts the batches to nf_tables in the host since its last call. With a table's
// name it counts those only that touched a table of that name.
func WatchBatches(t testing.TB, h *lab.Host, table string) (count func() int) {
	t.Helper()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(h.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadBuffer(1 << 24); err != nil {
		t.Fatal(err)
	}
	return func() int {
		t.Helper()
		batches, touched := 0, false
		for {
			// What a commit announces is there before the commit returns.
			if err := c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			messages, err := c.Receive()
			var timeout interface{ Timeout() bool }
			if errors.As(err, &timeout) && timeout.Timeout() {
				return batches
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				// The kernel ends what it says of a batch with NFT_MSG_NEWGEN.
				if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
					if touched || table == "" {
						batches++
					}
					touched = false
				} else if table != "" && tableOf(t, m) == table {
					touched = true
				}
			}
		}
	}
}

// tableOf returns the table that a message is about: attribute 1 of all of them (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, …).
func tableOf(t testing.TB, m netlink.Message) string {
	t.Helper()
	const header = 4 // struct nfgenmsg
	attributes, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		t.Fatal(err)
	}
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_TABLE_NAME {
			return attributes.String()
		}
	}
	return ""
}
