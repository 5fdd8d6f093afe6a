package nft

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// message is one netlink message of a batch with its step, for error reports.
type message struct {
	netlink.Message
	step Step
	// rule is the index of the rule in step.Chain, for AddRules.
	rule int
}

// encode returns the transaction's messages, without the batch's begin and end, for any kernel.
func (tx *Transaction) encode() ([]message, error) { return tx.encodeFor(false) }

// encodeFor encodes for kernels that can destroy tables, or for those that cannot. Its errors are ErrInvalid.
func (tx *Transaction) encodeFor(canDestroy bool) ([]message, error) {
	e := encoder{setIDs: map[*Set]uint32{}, canDestroy: canDestroy}
	for _, s := range tx.Steps {
		if err := e.step(s); err != nil {
			return nil, invalidError{err}
		}
	}
	return e.out, nil
}

type encoder struct {
	out    []message
	setIDs map[*Set]uint32
	// canDestroy says that the kernel has NFT_MSG_DESTROYTABLE.
	canDestroy bool
}

func (e *encoder) message(s Step, typ uint16, flags netlink.HeaderFlags, data netlinkattr.List) {
	e.out = append(e.out, message{step: s, Message: netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   data,
	}})
}

func (e *encoder) step(s Step) error {
	if err := s.checkNames(); err != nil {
		return err
	}
	if err := s.Table.Family.check(); err != nil {
		return fmt.Errorf("nft: table %s: %w", s.Table.Name, err)
	}
	a := start(s.Table, 256)
	switch s.Op {
	case AddTable, AdoptTable:
		e.addTable(s, a)
	case DeleteTable:
		a.Text(unix.NFTA_TABLE_NAME, s.Table.Name)
		e.message(s, unix.NFT_MSG_DELTABLE, 0, a)
	case DestroyTable:
		e.destroyTable(s, a)
	case AddSet:
		e.addSet(s, a)
	case DeleteSet:
		a.Text(unix.NFTA_SET_TABLE, s.Table.Name)
		a.Text(unix.NFTA_SET_NAME, s.Set.Name)
		e.message(s, unix.NFT_MSG_DELSET, 0, a)
	case AddChain:
		return e.addChain(s, a)
	case DeleteChain:
		a.Text(unix.NFTA_CHAIN_TABLE, s.Table.Name)
		a.Text(unix.NFTA_CHAIN_NAME, s.Chain.Name)
		e.message(s, unix.NFT_MSG_DELCHAIN, 0, a)
	case FlushChain:
		a.Text(unix.NFTA_RULE_TABLE, s.Table.Name)
		a.Text(unix.NFTA_RULE_CHAIN, s.Chain.Name)
		e.message(s, unix.NFT_MSG_DELRULE, 0, a)
	case AddRules:
		return e.addRules(s)
	case AddElements, DeleteElements:
		return e.elements(s)
	case DeleteObject:
		e.deleteObject(s, a)
	}
	return nil
}
