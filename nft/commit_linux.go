package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// CommitStats says how large a commit was, and how long it took.
type CommitStats struct {
	// Messages and Bytes count the netlink messages of the batch, without its begin and end.
	Messages, Bytes int
	// Elements counts the elements that were added and deleted, and Chains the steps that added, emptied or deleted
	// a chain. Chains that were deleted with their table do not count.
	Elements, Chains int
	// Encode is the time spent building the batch. Kernel is the time from sending it until it was carried out.
	Encode, Kernel time.Duration
	// Unchanged says that the kernel found nothing to change, and did not raise the ruleset's generation. It stays
	// false for a transaction that begins with a deletion, on kernels before 5.10, and until a commit of this Conn,
	// such as a commit of Probe, has shown that the kernel reports it.
	Unchanged bool
}

// Commit applies the transaction, whole or not at all. The rules of both families change in one instant, but a
// packet that is under way sees one generation of rules in each base chain, and the elements of the moment. A
// refusal is a *CommitError. An empty transaction sends nothing.
//
// If ctx is done before the transaction is sent, Commit sends nothing and returns ctx's error. Once it is sent,
// Commit waits for the outcome even if ctx ends.
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
		b := s.newBatch(messages, tx.Generation)
		stats.Messages, stats.Bytes = len(b.messages), b.size
		stats.Elements, stats.Chains = tx.size()
		stats.Encode += time.Since(begin)
		if err := ctx.Err(); err != nil {
			return notSent{err}
		}
		begin = time.Now()
		err := s.commit(b)
		stats.Kernel = time.Since(begin)
		if err == nil {
			c.noteOwned(tx)
			c.echoes = c.echoes || b.raised
			stats.Unchanged = c.echoes && b.asks && !b.raised
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

// batch is a transaction as it is sent, with the numbers by which the kernel's answers refer to it.
type batch struct {
	messages []message
	parts    batchParts
	// size is the length of the messages, without the batch's begin and end.
	size int
	// begin and last are the sequence numbers of the batch's begin and of its last message.
	begin, last uint32
	// asks says that the batch asks the kernel to echo the generation that it makes, and raised that the kernel has
	// done so.
	asks, raised bool
}

// newBatch puts messages into a batch, for a ruleset of the generation if it is not 0.
func (s *socket) newBatch(messages []message, generation uint32) *batch {
	if first := &messages[0]; first.step.Op == AddElements {
		messages = slices.Insert(messages, 0, sameTable(first.step.Table))
	}
	b := batch{messages: messages}
	for i := range messages {
		b.size += unix.NLMSG_HDRLEN + netlinkattr.Padded(len(messages[i].Data))
	}
	begin := batchMarker(unix.NFNL_MSG_BATCH_BEGIN)
	if generation != 0 {
		condition := netlinkattr.List(begin.Data)
		condition.Uint32(netlinkattr.BatchGenID, generation)
		begin.Data = condition
	}
	b.parts.add(s, begin)
	b.begin = s.sequence
	for i := range messages {
		m := messages[i].Message
		if i == 0 && messages[i].step.adds() {
			// The kernel echoes the new generation if the first message asks for an echo. It also describes what that message
			// changed: the one object that it added. A deleted table would be each chain and rule of it, for which no buffer
			// is large enough.
			m.Header.Flags |= netlink.Echo
			b.asks = true
		}
		if i == len(messages)-1 {
			// The kernel answers refused messages, and messages that request an answer. It answers in the order of the
			// messages, so the answer to the last message ends all answers.
			m.Header.Flags |= netlink.Acknowledge
		}
		b.parts.add(s, &m)
	}
	b.last = s.sequence
	b.parts.add(s, batchMarker(unix.NFNL_MSG_BATCH_END))
	return &b
}

// batchParts is the datagram of a batch. Long messages are parts of their own, without a copy: they are the largest
// memory of a first Sync.
type batchParts struct {
	done [][]byte
	// last is the part to which short messages and headers are appended.
	last []byte
}

// longMessage is the length from which a part of its own is worth it.
const longMessage = 1 << 12

func (p *batchParts) add(s *socket, m *netlink.Message) {
	if len(m.Data) < longMessage || len(m.Data) != netlinkattr.Padded(len(m.Data)) {
		p.last = s.appendMessage(p.last, m)
		return
	}
	header := s.appendHeader(p.last, m)
	p.done, p.last = append(p.done, header, m.Data), header[len(header):]
}

// sameTable returns a message that changes nothing in a table that is there. It is the first one of a batch that would
// begin with elements: the kernel would echo each of them, in 8 KB of its memory.
func sameTable(t *Table) message {
	return newMessage(Step{Op: AddTable, Table: t}, unix.NFT_MSG_NEWTABLE, 0, start(t.Family, t.Name, 64))
}

func (s *socket) commit(b *batch) error {
	if err := s.sendBatch(b.size+3*batchMarkerLen, append(b.parts.done, b.parts.last)); err != nil {
		return err
	}
	a := answers{batch: b}
	return a.await(s)
}

const batchMarkerLen = unix.NLMSG_HDRLEN + nfgenmsgLen

func batchMarker(typ uint16) *netlink.Message {
	return &netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}

// socketOverhead is room in the send buffer beside the batch, for the kernel's own bookkeeping.
const socketOverhead = 1 << 16

// sendBatch sends a batch in a single send, because the kernel takes one datagram for one transaction. So the send
// buffer must hold all of it.
func (s *socket) sendBatch(length int, parts [][]byte) error {
	if err := s.conn.SetWriteBuffer(length + socketOverhead); err != nil {
		return fmt.Errorf("nft: make room for a batch of %d bytes: %w", length, err)
	}
	err := s.send(parts...)
	if errors.Is(err, unix.EMSGSIZE) {
		room, _ := s.conn.WriteBuffer()
		// The kernel gives a socket twice the requested buffer, and grants requests up to wmem_max.
		return fmt.Errorf("nft: %w: %d bytes, and it takes %d (%w); set the sysctl net.core.wmem_max to at least %d, or run with CAP_NET_ADMIN in the initial user namespace",
			ErrTooLarge, length, room, err, (length+1)/2+socketOverhead)
	}
	if err != nil {
		return fmt.Errorf("nft: send a batch of %d bytes: %w", length, err)
	}
	return nil
}

type answers struct {
	*batch
	refused *CommitError
	// complete says that no more answers come.
	complete bool
}

// await reads up to the answer to the last message. All answers wait in the socket already.
func (a *answers) await(s *socket) error {
	for overflowed := false; !a.complete; {
		err := s.receive(context.Background(), a.take)
		switch {
		case errors.Is(err, unix.ENOBUFS) && !overflowed:
			// There were more refusals than the socket holds. Those that it holds come next.
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

// take takes one message. It ignores answers to other requests.
func (a *answers) take(r reply) error {
	if r.Header.Seq-a.begin > a.last-a.begin {
		return nil
	}
	a.raised = a.raised || r.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN
	if r.Header.Type != unix.NLMSG_ERROR {
		return nil
	}
	// A batch that is refused as a whole has an answer to its begin only.
	a.complete = a.complete || r.Header.Seq == a.last || r.Header.Seq == a.begin
	if e := r.refusal(); e != nil {
		a.add(e)
	}
	return nil
}

// add describes the first refusal in full. The others often follow from it.
func (a *answers) add(e *kernelError) {
	i := int(e.sequence - a.begin - 1)
	isStep := i >= 0 && i < len(a.messages)
	if a.refused == nil {
		a.refused = &CommitError{Err: e.errno, Message: e.message}
		if isStep {
			a.refused.Step = a.messages[i].describe(e.offset)
		}
	}
	if isStep {
		a.refused.Refused = append(a.refused.Refused, Refusal{Step: a.messages[i].step, Err: e.errno})
	}
}
