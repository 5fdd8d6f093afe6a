package nft

import (
	"cmp"
	"fmt"
	"sync"

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

// encodeFor encodes for kernels that can destroy tables, or for kernels that cannot. Its errors are ErrInvalid.
func (tx *Transaction) encodeFor(canDestroy bool) ([]message, error) {
	e := encoder{parts: []*encoded{{}}, setIDs: map[*Set]uint32{}, canDestroy: canDestroy}
	var refused error
	for _, s := range tx.Steps {
		if refused = e.step(s); refused != nil {
			break
		}
	}
	messages, err := e.messages() // in any case: the goroutines read sets that the caller may change afterwards
	if err = cmp.Or(refused, err); err != nil {
		return nil, invalidError{err}
	}
	return messages, nil
}

type encoder struct {
	// parts hold the messages in the order of the steps.
	parts []*encoded
	// beside are goroutines that encode a part each.
	beside sync.WaitGroup
	setIDs map[*Set]uint32
	// canDestroy says that the kernel has NFT_MSG_DESTROYTABLE.
	canDestroy bool
}

// encoded are the messages of some steps, or of one on elements.
type encoded struct {
	messages []message
	err      error
}

func (e *encoder) message(s Step, typ uint16, flags netlink.HeaderFlags, data netlinkattr.List) *message {
	last := e.parts[len(e.parts)-1]
	last.messages = append(last.messages, newMessage(s, typ, flags, data))
	return &last.messages[len(last.messages)-1]
}

func newMessage(s Step, typ uint16, flags netlink.HeaderFlags, data netlinkattr.List) message {
	return message{step: s, Message: netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   data,
	}}
}

// besideFrom is the number of elements from which on a step is worth a goroutine. The sets of a first Sync are a few
// such steps.
const besideFrom = 5000

// elements encodes a step on elements, in a goroutine if they are many.
func (e *encoder) elements(s Step) error {
	part, id := &encoded{}, e.setIDs[s.Set]
	e.parts = append(e.parts, part, &encoded{})
	encode := func() { part.messages, part.err = encodeElements(s, id) }
	if s.Len() >= besideFrom {
		e.beside.Go(encode)
		return nil
	}
	encode()
	return part.err
}

// messages returns all messages in the order of the steps, when the goroutines have ended.
func (e *encoder) messages() (out []message, err error) {
	e.beside.Wait()
	for _, part := range e.parts {
		out = append(out, part.messages...)
		err = cmp.Or(err, part.err)
	}
	return out, err
}

func (e *encoder) step(s Step) error {
	if err := s.checkNames(); err != nil {
		return err
	}
	if _, err := familyOf(uint32(s.Table.Family)); err != nil {
		return fmt.Errorf("nft: table %s: %w", s.Table.Name, err)
	}
	a := start(s.Table.Family, s.Table.Name, 256)
	switch s.Op {
	case AddTable, AdoptTable:
		e.addTable(s, a)
	case DeleteTable:
		e.message(s, unix.NFT_MSG_DELTABLE, 0, a)
	case DestroyTable:
		e.destroyTable(s, a)
	case AddSet:
		return e.addSet(s, a)
	case DeleteSet:
		a.Text(unix.NFTA_SET_NAME, s.Set.Name)
		e.message(s, unix.NFT_MSG_DELSET, 0, a)
	case FlushSet:
		a.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Set.Name)
		e.message(s, unix.NFT_MSG_DELSETELEM, 0, a)
	case AddChain:
		return e.addChain(s, a)
	case DeleteChain:
		a.Text(unix.NFTA_CHAIN_NAME, s.Chain.Name)
		e.message(s, unix.NFT_MSG_DELCHAIN, 0, a)
	case FlushChain:
		a.Text(unix.NFTA_RULE_CHAIN, s.Chain.Name)
		e.message(s, unix.NFT_MSG_DELRULE, 0, a)
	case DeleteRule:
		a.Text(unix.NFTA_RULE_CHAIN, s.Chain.Name)
		a.Uint64(unix.NFTA_RULE_HANDLE, s.Handle)
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
