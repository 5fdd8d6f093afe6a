package nft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// CommitStats is what a commit consisted of.
type CommitStats struct {
	// Messages and Bytes say how much was sent to the kernel.
	Messages, Bytes int
	// Elements is how many elements were added and deleted, Chains how many chains were
	// added, emptied to be written anew, and deleted. What goes with its table is not counted.
	Elements, Chains int
	// Encode is the time spent building the batch, Kernel the time until the kernel had
	// carried it out.
	Encode, Kernel time.Duration
}

// Commit applies the transaction, whole or not at all. For packets, the tables of both families change in one instant.
// A refusal is a *CommitError. An empty transaction sends nothing.
//
// When ctx is done before the transaction is sent, nothing is, and Commit returns ctx's error. Once it is sent, Commit
// waits for the outcome even if ctx ends: the kernel applies the transaction during the send.
func (c *Conn) Commit(ctx context.Context, tx Transaction) (CommitStats, error) {
	var stats CommitStats
	if tx.Empty() {
		return stats, nil
	}
	canDestroy, err := c.knowsDestroy(ctx, tx)
	if err != nil {
		return stats, err
	}
	begin := time.Now()
	messages, err := tx.encodeFor(canDestroy)
	stats.Encode = time.Since(begin)
	if err != nil || len(messages) == 0 {
		return stats, err
	}
	err = c.use(ctx, func(s *socket) error {
		begin = time.Now()
		stats.Messages, stats.Bytes = len(messages), batchBytes(messages)
		stats.Elements, stats.Chains = tx.size()
		b := s.newBatch(messages, stats.Bytes)
		stats.Encode += time.Since(begin)
		if err := ctx.Err(); err != nil {
			return notSent{err}
		}
		begin = time.Now()
		err := s.commit(b)
		stats.Kernel = time.Since(begin)
		if err == nil {
			c.noteOwned(tx)
		}
		return err
	})
	return stats, err
}

func (tx *Transaction) size() (elements, chains int) {
	for _, s := range tx.Steps {
		switch s.Op {
		case AddElements, DeleteElements:
			elements += s.Len()
		case AddChain, FlushChain, DeleteChain:
			chains++
		}
	}
	return elements, chains
}

// batchBytes is the length of the messages, without the batch's begin and end.
func batchBytes(messages []message) int {
	n := 0
	for i := range messages {
		n += unix.NLMSG_HDRLEN + netlinkattr.Padded(len(messages[i].Data))
	}
	return n
}

// batch is a transaction as it is sent, and what it takes to understand the kernel's answers to it.
type batch struct {
	messages []message
	bytes    []byte
	// begin and last are the sequence numbers of the batch's begin and of its last message.
	begin, last uint32
}

// newBatch puts messages, which are size bytes in all, into a batch.
func (s *socket) newBatch(messages []message, size int) *batch {
	b := batch{messages: messages, bytes: make([]byte, 0, size+2*batchMarkerLen)}
	b.bytes = s.appendMessage(b.bytes, batchMarker(unix.NFNL_MSG_BATCH_BEGIN))
	b.begin = s.sequence
	for i := range messages {
		m := messages[i].Message
		if i == len(messages)-1 {
			// The kernel answers a batch only where it is asked to or refuses; by the time it
			// answers the last message it has answered all.
			m.Header.Flags |= netlink.Acknowledge
		}
		b.bytes = s.appendMessage(b.bytes, &m)
	}
	b.last = s.sequence
	b.bytes = s.appendMessage(b.bytes, batchMarker(unix.NFNL_MSG_BATCH_END))
	return &b
}

// commit sends a batch and reads the kernel's answers to it.
func (s *socket) commit(b *batch) error {
	if err := s.sendBatch(b.bytes); err != nil {
		return err
	}
	a := answers{batch: b}
	return a.await(s)
}

// batchMarkerLen is the length of each of the two messages around a batch.
const batchMarkerLen = unix.NLMSG_HDRLEN + nfgenmsgLen

func batchMarker(typ uint16) *netlink.Message {
	return &netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}

// socketOverhead is what a socket wants in its send buffer beside the batch, and some more.
const socketOverhead = 1 << 16

// sendBatch sends a batch, in a single send, as the kernel wants it. So the socket must take all of it.
func (s *socket) sendBatch(b []byte) error {
	if err := s.conn.SetWriteBuffer(len(b) + socketOverhead); err != nil {
		return fmt.Errorf("nft: make room for a batch of %d bytes: %w", len(b), err)
	}
	err := s.send(b)
	if errors.Is(err, unix.EMSGSIZE) {
		room, _ := s.conn.WriteBuffer()
		// The kernel doubles what it is told, of which wmem_max is the most.
		return fmt.Errorf("nft: %w: %d bytes, and it takes %d (%w); set the sysctl net.core.wmem_max to at least %d, or run with CAP_NET_ADMIN in the initial user namespace",
			ErrTooLarge, len(b), room, err, (len(b)+1)/2+socketOverhead)
	}
	if err != nil {
		return fmt.Errorf("nft: send a batch of %d bytes: %w", len(b), err)
	}
	return nil
}

// answers is what the kernel answers to a batch.
type answers struct {
	*batch
	refused *CommitError
	// complete: the last answer was there.
	complete bool
}

// await reads up to the answer to the last message. The kernel carries out a batch before the send returns, so all
// answers are there already.
func (a *answers) await(s *socket) error {
	for overflowed := false; !a.complete; {
		err := s.receive(context.Background(), a.take)
		switch {
		case errors.Is(err, unix.ENOBUFS) && !overflowed:
			// More refusals than the socket holds; those it holds come next.
			overflowed = true
			s.patience = min(s.patience, time.Second)
		case err != nil && a.refused != nil:
			a.refused.unread = true
			return a.refused
		case err != nil:
			return fmt.Errorf("nft: the outcome of a batch is unknown: %w", err)
		}
	}
	if a.refused != nil {
		return a.refused
	}
	return nil
}

// take takes one message. Answers to something else are passed over.
func (a *answers) take(r reply) error {
	if r.Type != unix.NLMSG_ERROR || r.Sequence-a.begin > a.last-a.begin {
		return nil
	}
	// A batch that is refused as a whole has an answer to its begin only.
	a.complete = a.complete || r.Sequence == a.last || r.Sequence == a.begin
	var e *kernelError
	if errors.As(r.refusal(), &e) {
		a.add(e)
	}
	return nil
}

// add keeps the first refusal, which the others often follow from, and counts the rest.
func (a *answers) add(e *kernelError) {
	if a.refused != nil {
		a.refused.Others++
		return
	}
	a.refused = &CommitError{Err: e.errno, Message: e.message}
	if i := int(e.sequence - a.begin - 1); i >= 0 && i < len(a.messages) {
		a.refused.Step = a.messages[i].describe(e.offset)
	}
}
