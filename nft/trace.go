package nft

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// SetNftrace is "meta nftrace set 1": from here on the kernel tells a Tracer of each rule that the packet matches.
type SetNftrace struct{}

// String returns the statement as nft lists it.
func (SetNftrace) String() string { return "meta nftrace set 1" }

func (SetNftrace) linearize(l *linearizer) {
	l.add(&expr.Immediate{Register: unix.NFT_REG_1, Data: []byte{1}}, &expr.Meta{
		Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: unix.NFT_REG_1,
	})
}

// Limit holds for no more than Rate packets a second, and Burst packets at once.
type Limit struct{ Rate, Burst uint32 }

// String returns the statement as nft lists it.
func (m Limit) String() string {
	return fmt.Sprintf("limit rate %d/second burst %d packets", m.Rate, m.Burst)
}

func (m Limit) linearize(l *linearizer) {
	l.add(&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(m.Rate), Unit: expr.LimitTimeSecond, Burst: m.Burst})
}
