package nft

import (
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
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

type variables = netlinkattr.Variables

// isAbout reports whether a message is about a table.
func isAbout(data []byte, table string) bool {
	return string(netlinkattr.TextBytes(netlinkattr.Find(data[nfgenmsgLen:], attrTable))) == table
}

// attrTable is the attribute with the name of the table. It has the same number in messages of all kinds.
const attrTable = unix.NFTA_TABLE_NAME

// start begins a message's data: the nfgenmsg header, which carries the family, and the name of the table; none if that
// is empty.
func start(family Family, table string, capacity int) netlinkattr.List {
	a := make(netlinkattr.List, 0, capacity)
	a = append(a, uint8(family), unix.NFNETLINK_V0, 0, 0)
	if table != "" {
		a.Text(attrTable, table)
	}
	return a
}

func (e *encoder) addTable(s Step, a netlinkattr.List) {
	a.Uint32(unix.NFTA_TABLE_FLAGS, s.Table.flags())
	if s.Table.Comment != "" {
		a.Bytes(netlinkattr.TableUserdata, appendUdataString(nil, udataComment, s.Table.Comment))
	}
	e.message(s, unix.NFT_MSG_NEWTABLE, netlink.Create, a)
}

// destroyTable deletes a table that may not be there. Kernels before 6.3 have no such message; there, adding the
// table first makes the deletion succeed. On later kernels adding the table would fail if the table has other flags.
func (e *encoder) destroyTable(s Step, a netlinkattr.List) {
	if e.canDestroy {
		e.message(s, netlinkattr.MsgDestroyTable, 0, a)
		return
	}
	e.message(s, unix.NFT_MSG_NEWTABLE, netlink.Create, a)
	e.message(s, unix.NFT_MSG_DELTABLE, 0, a)
}

// decodeTable decodes an NFT_MSG_NEWTABLE message; the table has no chains and sets yet.
func decodeTable(data []byte) (*Table, error) {
	t, err := decodeAnyTable(data)
	if err != nil {
		return nil, err
	}
	if _, err := familyOf(uint32(t.Family)); err != nil {
		return nil, fmt.Errorf("table %s: %w", t.Name, err)
	}
	return t, nil
}

// decodeAnyTable is decodeTable for tables of all families.
func decodeAnyTable(data []byte) (*Table, error) {
	t := &Table{Kernel: &KernelTable{}}
	var flags uint32
	var userdata []byte
	err := decodeAttributes(data, variables{
		attrTable: &t.Name, unix.NFTA_TABLE_FLAGS: &flags,
		netlinkattr.TableOwner: &t.Kernel.OwnerPort, netlinkattr.TableUserdata: &userdata,
	}.Take)
	if err != nil {
		return nil, err
	}
	t.setFlags(flags)
	t.Comment = string(commentIn(userdata))
	t.Family = Family(data[0])
	return t, nil
}

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
		a.Bytes(netlinkattr.ChainUserdata, appendUdataString(nil, udataComment, c.Comment))
	}
	e.message(s, unix.NFT_MSG_NEWCHAIN, netlink.Create, a)
	return nil
}

func decodeChain(data []byte) (*Chain, error) {
	c := &Chain{}
	var chainType string
	var flags, number, priority uint32
	var hook, userdata []byte
	policy := uint32(nfAccept)
	err := decodeAttributes(data, variables{
		unix.NFTA_CHAIN_NAME: &c.Name, unix.NFTA_CHAIN_TYPE: &chainType, unix.NFTA_CHAIN_HOOK: &hook,
		unix.NFTA_CHAIN_POLICY: &policy, netlinkattr.ChainFlags: &flags, netlinkattr.ChainUserdata: &userdata,
	}.Take)
	if err == nil {
		err = netlinkattr.Each(hook, variables{unix.NFTA_HOOK_HOOKNUM: &number, unix.NFTA_HOOK_PRIORITY: &priority}.Take)
	}
	c.Type, c.Priority, c.DropPolicy = ChainType(chainType), int32(priority), policy == nfDrop
	c.bound, c.Comment = flags&netlinkattr.ChainFlagBinding != 0, string(commentIn(userdata))
	switch {
	case hook == nil:
	case number < uint32(len(hookNumbers)):
		c.Hook = hookNumbers[number]
	default:
		c.Hook = Hook(fmt.Sprintf("hook-%d", number)) // not of the families here
	}
	return c, err
}

// decodeDevices returns the devices of a base chain. The kernel repeats the first one, if it is the only one.
func decodeDevices(data []byte) (names []string, err error) {
	var hook []byte
	if err = decodeAttributes(data, variables{unix.NFTA_CHAIN_HOOK: &hook}.Take); err != nil {
		return nil, err
	}
	add := func(b []byte) {
		if name := netlinkattr.Text(b); len(names) != 1 || names[0] != name {
			names = append(names, name)
		}
	}
	err = netlinkattr.Each(hook, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_HOOK_DEV:
			add(b)
		case netlinkattr.HookDevs:
			return netlinkattr.Each(b, func(typ uint16, b []byte) error {
				if typ == netlinkattr.DevicePrefix {
					b = append(slices.Clone([]byte(netlinkattr.Text(b))), '*')
				}
				add(b)
				return nil
			})
		}
		return nil
	})
	return names, err
}

// Verdicts of a base chain's policy (linux/netfilter.h).
const (
	nfDrop   = 0
	nfAccept = 1
)
