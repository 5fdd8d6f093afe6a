package nft

import (
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// nfgenmsgLen is the length of the header before the attributes of every nf_tables message.
const nfgenmsgLen = 4

// decodeAttributes calls f for each attribute of a message with its type and payload.
func decodeAttributes(data []byte, f func(typ uint16, b []byte) error) error {
	if len(data) < nfgenmsgLen {
		return netlinkattr.ErrShort
	}
	return netlinkattr.Each(data[nfgenmsgLen:], f)
}

// start begins a message's data: the nfgenmsg header, which carries the family.
func start(t *Table, capacity int) netlinkattr.List {
	a := make(netlinkattr.List, 0, capacity)
	return append(a, t.Family.nfproto(), unix.NFNETLINK_V0, 0, 0)
}
