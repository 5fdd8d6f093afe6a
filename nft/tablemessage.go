package nft

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

func (e *encoder) addTable(s Step, a netlinkattr.List) {
	a.Uint32(unix.NFTA_TABLE_FLAGS, s.Table.flags())
	if s.Table.Comment != "" {
		a.Bytes(nftaTableUserdata, appendUdataString(nil, udataComment, s.Table.Comment))
	}
	e.message(s, unix.NFT_MSG_NEWTABLE, netlink.Create, a)
}

// destroyTable deletes a table that may not be there. Kernels before 6.3 cannot say that; there, adding the table
// first makes the deletion succeed. On later ones that would fail if the table has flags that it is not added with.
func (e *encoder) destroyTable(s Step, a netlinkattr.List) {
	if e.canDestroy {
		e.message(s, nftMsgDestroyTable, 0, a)
		return
	}
	e.message(s, unix.NFT_MSG_NEWTABLE, netlink.Create, a)
	e.message(s, unix.NFT_MSG_DELTABLE, 0, a)
}

// decodeTable decodes an NFT_MSG_NEWTABLE message; the table has no chains and sets yet.
func decodeTable(data []byte) (*Table, error) {
	t := &Table{Kernel: &KernelTable{}}
	err := decodeAttributes(data, func(typ uint16, b []byte) error {
		switch typ {
		case attrTable:
			t.Name = netlinkattr.Text(b)
		case unix.NFTA_TABLE_FLAGS:
			flags, err := netlinkattr.Uint32(b)
			t.setFlags(flags)
			return err
		case nftaTableOwner:
			port, err := netlinkattr.Uint32(b)
			t.Kernel.OwnerPort = port
			return err
		case nftaTableUserdata:
			t.Comment = string(commentIn(b))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	if t.Family, err = familyOf(uint32(data[0])); err != nil {
		return nil, fmt.Errorf("table %s: %w", t.Name, err)
	}
	return t, nil
}
