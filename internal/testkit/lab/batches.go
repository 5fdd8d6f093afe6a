package lab

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

// WatchBatches returns a function that counts the batches to nf_tables in the host since its last call. With a table's
// name it counts those only that touched a table of that name. It reads until the kernel has announced its present
// generation, however long that takes on a slow machine.
func WatchBatches(t testing.TB, h *Host, table string) (count func() int) {
	t.Helper()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(h.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetReadBuffer(1 << 24); err != nil {
		t.Fatal(err)
	}
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		t.Fatal(err)
	}
	conn := Conn(t, h)
	generation := func() uint32 {
		t.Helper()
		n, err := conn.Generation(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	announced := generation() // what was heard of it already does not count
	return func() int {
		t.Helper()
		batches, touched := 0, false
		for now := generation(); announced != now; now = generation() {
			if err := c.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
				t.Fatal(err)
			}
			messages, err := c.Receive()
			if err != nil {
				t.Fatalf("the kernel is at generation %d, and announced those up to %d: %v", now, announced, err)
			}
			for _, m := range messages {
				// The kernel ends what it says of a batch with NFT_MSG_NEWGEN.
				id, isGeneration := generationOf(t, m)
				if !isGeneration {
					touched = touched || tableOf(t, m) == table
					continue
				}
				if int32(id-announced) > 0 {
					if touched || table == "" {
						batches++
					}
					announced = id
				}
				touched = false
			}
		}
		return batches
	}
}

// generationOf returns the number in NFT_MSG_NEWGEN.
func generationOf(t testing.TB, m netlink.Message) (id uint32, is bool) {
	t.Helper()
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
		return 0, false
	}
	for a := attributesOf(t, m); a.Next(); {
		if a.Type() == unix.NFTA_GEN_ID {
			return binary.BigEndian.Uint32(a.Bytes()), true
		}
	}
	t.Fatal("NFT_MSG_NEWGEN without a number")
	return 0, false
}

// tableOf returns the table that a message is about: attribute 1 of all of them (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, …).
func tableOf(t testing.TB, m netlink.Message) string {
	t.Helper()
	for a := attributesOf(t, m); a.Next(); {
		if a.Type() == unix.NFTA_TABLE_NAME {
			return a.String()
		}
	}
	return ""
}

func attributesOf(t testing.TB, m netlink.Message) *netlink.AttributeDecoder {
	t.Helper()
	const header = 4 // struct nfgenmsg
	attributes, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		t.Fatal(err)
	}
	return attributes
}
