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

// attrTable is the attribute with the name of the table. It has the same number in messages of all kinds.
const attrTable = unix.NFTA_TABLE_NAME

// start begins a message's data: the nfgenmsg header, which carries the family, and the name of the table; none if that
// is empty.
func start(family Family, table string, capacity int) netlinkattr.List {
	a := make(netlinkattr.List, 0, capacity)
	a = append(a, family.nfproto(), unix.NFNETLINK_V0, 0, 0)
	if table != "" {
		a.Text(attrTable, table)
	}
	return a
}
