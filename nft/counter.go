package nft

import (
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Count is the count of an element of a Set with Counter.
type Count struct {
	// Packets is the number of packets for which a lookup found the element. Bytes is the sum of their lengths, IP header
	// included.
	Packets, Bytes uint64
}

// counterName is the kernel's name of the expression that counts.
const counterName = "counter"

// encodeCounter makes the kernel give each element of a set a counter.
func encodeCounter(a *netlinkattr.List) {
	e := a.Begin(nftaSetExpr)
	a.Text(unix.NFTA_EXPR_NAME, counterName)
	a.End(a.Begin(unix.NFTA_EXPR_DATA))
	a.End(e)
}

// counter is an expression of a set or of an element that may be a counter.
type counter struct {
	// is says that the expression is a counter.
	is bool
	Count
}

// take takes an attribute of the expression. The name comes before the data.
func (c *counter) take(typ uint16, b []byte) error {
	switch typ {
	case unix.NFTA_EXPR_NAME:
		c.is = string(netlinkattr.TextBytes(b)) == counterName
	case unix.NFTA_EXPR_DATA:
		if c.is {
			return netlinkattr.Each(b, c.takeCount)
		}
	}
	return nil
}

func (c *counter) takeCount(typ uint16, b []byte) (err error) {
	switch typ {
	case unix.NFTA_COUNTER_BYTES:
		c.Bytes, err = netlinkattr.Uint64(b)
	case unix.NFTA_COUNTER_PACKETS:
		c.Packets, err = netlinkattr.Uint64(b)
	}
	return err
}
