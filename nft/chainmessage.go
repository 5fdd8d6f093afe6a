package nft

import (
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

func (e *encoder) addChain(s Step, a netlinkattr.List) error {
	c := s.Chain
	if c.Hook != "" && !slices.Contains(hookNumbers, c.Hook) {
		return fmt.Errorf("nft: chain %s %s %s: unknown hook %q", s.Table.Family, s.Table.Name, c.Name, c.Hook)
	}
	a.Text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != "" {
		nest := a.Begin(unix.NFTA_CHAIN_HOOK)
		a.Uint32(unix.NFTA_HOOK_HOOKNUM, uint32(slices.Index(hookNumbers, c.Hook)))
		a.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
		a.End(nest)
		policy := uint32(nfAccept)
		if c.DropPolicy {
			policy = nfDrop
		}
		a.Uint32(unix.NFTA_CHAIN_POLICY, policy)
		a.Text(unix.NFTA_CHAIN_TYPE, string(c.Type))
	}
	if c.Comment != "" {
		a.Bytes(nftaChainUserdata, appendUdataString(nil, udataComment, c.Comment))
	}
	e.message(s, unix.NFT_MSG_NEWCHAIN, netlink.Create, a)
	return nil
}

// decodeChain decodes an NFT_MSG_NEWCHAIN message and returns the table's name too.
func decodeChain(data []byte) (table string, c *Chain, err error) {
	c = &Chain{}
	err = decodeAttributes(data, func(typ uint16, b []byte) error {
		switch typ {
		case attrTable:
			table = netlinkattr.Text(b)
		case unix.NFTA_CHAIN_NAME:
			c.Name = netlinkattr.Text(b)
		case unix.NFTA_CHAIN_TYPE:
			c.Type = ChainType(netlinkattr.Text(b))
		case unix.NFTA_CHAIN_HOOK:
			return netlinkattr.Each(b, c.decodeHook)
		case unix.NFTA_CHAIN_POLICY:
			policy, err := netlinkattr.Uint32(b)
			c.DropPolicy = policy == nfDrop
			return err
		case nftaChainFlags:
			flags, err := netlinkattr.Uint32(b)
			c.bound = flags&chainBinding != 0
			return err
		case nftaChainUserdata:
			c.Comment = string(commentIn(b))
		}
		return nil
	})
	if err != nil {
		return "", nil, fmt.Errorf("chain: %w", err)
	}
	return table, c, nil
}

func (c *Chain) decodeHook(typ uint16, b []byte) error {
	v, err := netlinkattr.Uint32(b)
	if err != nil {
		return nil // a device name or list: not of the families here
	}
	switch typ {
	case unix.NFTA_HOOK_HOOKNUM:
		c.Hook = Hook(fmt.Sprintf("hook-%d", v)) // not of the families here
		if v < uint32(len(hookNumbers)) {        // int(v) is negative on 32 bits
			c.Hook = hookNumbers[v]
		}
	case unix.NFTA_HOOK_PRIORITY:
		c.Priority = int32(v)
	}
	return nil
}
