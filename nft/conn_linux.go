package nft

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Config says how to reach the kernel.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in; 0 means the current one.
	NetNS int
}

// Conn is a connection to the nf_tables of one network namespace. It is safe for
// concurrent use; what it does is done one after another.
type Conn struct {
	nl *netlink.Conn
	// mu keeps the request and the replies of one call together.
	mu sync.Mutex
}

// messageSize is room for the largest message: a refusal that echoes what was refused. The kernel puts more
// elements of a listing into one message, up to 32 KiB, for those who can take it.
const messageSize = 1 << 17

// Dial opens a connection. Commit needs CAP_NET_ADMIN, and so do the Read methods: the kernel
// lists rulesets for those who may change them only.
func Dial(config Config) (*Conn, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: config.NetNS, MessageBufferSize: messageSize})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("nft: open netlink socket: %w; the kernel needs nf_tables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("nft: open netlink socket: %w", err)
	}
	// Have refusals carry the kernel's explanation.
	if err := nl.SetOption(netlink.ExtendedAcknowledge, true); err != nil {
		return nil, errors.Join(fmt.Errorf("nft: ask for extended acknowledgements: %w", err), nl.Close())
	}
	// A refusal echoes the refused message, up to 64 KiB of it. Best effort: too little room
	// shows as an error of the commit, never as a false success.
	_ = nl.SetReadBuffer(1 << 22)
	return &Conn{nl: nl}, nil
}

// Close closes the connection. The rules stay in the kernel.
func (c *Conn) Close() error { return c.nl.Close() }

// Stats is what a commit consisted of.
type Stats struct {
	// Messages and Bytes is what was sent to the kernel.
	Messages, Bytes int
	// Elements is how many elements were added and deleted, Chains how many chains were
	// added, emptied to be written anew, and deleted. What goes with its table is not counted.
	Elements, Chains int
	// Encode is the time spent building the messages, Kernel the time until the kernel had
	// carried them out.
	Encode, Kernel time.Duration
}

// Commit has the kernel carry out the transaction, whole or not at all: all its tables, of
// whatever family, change in one instant for packets. A refusal is a *CommitError.
// An empty transaction sends nothing.
func (c *Conn) Commit(tx Transaction) (Stats, error) {
	var stats Stats
	if tx.Empty() {
		return stats, nil
	}
	begin := time.Now()
	messages, err := tx.encode()
	stats.Encode = time.Since(begin)
	if err != nil || len(messages) == 0 {
		return stats, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	begin = time.Now()
	stats.Messages, stats.Bytes = len(messages), batchBytes(messages)
	stats.Elements, stats.Chains = tx.size()
	err = c.commit(messages, stats.Bytes)
	stats.Kernel = time.Since(begin)
	return stats, err
}

func (tx *Transaction) size() (elements, chains int) {
	for _, s := range tx.Steps {
		switch s.Op {
		case AddElements, DeleteElements:
			elements += len(s.Elements)
		case AddChain, FlushChain, DeleteChain:
			chains++
		}
	}
	return elements, chains
}

func batchBytes(messages []message) int {
	n := 0
	for _, m := range messages {
		n += unix.NLMSG_HDRLEN + len(m.Data)
	}
	return n
}

func (c *Conn) commit(messages []message, size int) error {
	// A batch must reach the kernel in a single send, so the socket must take all of it.
	if err := c.nl.SetWriteBuffer(2*size + 1<<16); err != nil {
		return fmt.Errorf("nft: make room for a batch of %d bytes: %w", size, err)
	}
	batch := make([]netlink.Message, 0, len(messages)+2)
	batch = append(batch, batchMarker(unix.NFNL_MSG_BATCH_BEGIN))
	for _, m := range messages {
		batch = append(batch, m.Message)
	}
	// The kernel answers a batch only where it is asked to or refuses; by the time it
	// answers the last message it has answered all.
	batch[len(batch)-1].Header.Flags |= netlink.Acknowledge
	batch = append(batch, batchMarker(unix.NFNL_MSG_BATCH_END))
	sent, err := c.nl.SendMessages(batch)
	if err != nil {
		return fmt.Errorf("nft: send a batch of %d bytes: %w", size, err)
	}
	return c.answers(messages, sent)
}

func batchMarker(typ uint16) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}

// answerTimeout is how long to wait for an answer that must already be there: the kernel
// carries out a batch before the send returns.
const answerTimeout = 10 * time.Second

// answers reads the kernel's answers up to the one for the last message. Answers to
// earlier batches, left over after an error, are passed over.
func (c *Conn) answers(messages []message, sent []netlink.Message) error {
	if err := c.nl.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	first, last := sent[0].Header.Sequence, sent[len(sent)-2].Header.Sequence
	var refused *CommitError
	for overflowed := false; ; {
		replies, err := c.nl.Receive()
		var opErr *netlink.OpError
		switch {
		case errors.As(err, &opErr) && opErr.Sequence != 0:
			if opErr.Sequence-first > last-first {
				continue
			}
			refused = addRefusal(refused, messages, opErr, first)
			if opErr.Sequence == first || opErr.Sequence == last {
				return refused
			}
		case errors.Is(err, unix.ENOBUFS) && !overflowed:
			// More refusals than the socket holds; those it holds come next.
			overflowed = true
			if err := c.nl.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
		case err != nil && refused != nil:
			return refused
		case err != nil:
			return fmt.Errorf("nft: the outcome of a batch is unknown: %w", err)
		}
		for _, r := range replies {
			if r.Header.Sequence == last {
				return errorOrNil(refused)
			}
		}
	}
}

func errorOrNil(e *CommitError) error {
	if e == nil {
		return nil
	}
	return e
}

// addRefusal keeps the first refusal, which the others often follow from, and counts the rest.
func addRefusal(refused *CommitError, messages []message, e *netlink.OpError, first uint32) *CommitError {
	if refused != nil {
		refused.Others++
		return refused
	}
	refused = &CommitError{Err: e.Err, Message: e.Message}
	if i := int(e.Sequence - first - 1); i >= 0 && i < len(messages) {
		refused.Step = messages[i].describe(e.Offset)
	}
	return refused
}

// Generation returns the number that the kernel counts up with every commit to the
// network namespace, whoever makes it.
func (c *Conn) Generation() (uint32, error) {
	replies, err := c.request(unix.NFT_MSG_GETGEN, 0, 0, nil)
	if err != nil {
		return 0, fmt.Errorf("nft: get generation: %w", err)
	}
	var id uint32
	for _, r := range replies {
		if err := decodeAttributes(r.Data, func(typ uint16, b []byte) (err error) {
			if typ == unix.NFTA_GEN_ID {
				id, err = be32(b)
			}
			return err
		}); err != nil {
			return 0, fmt.Errorf("nft: get generation: %w", err)
		}
	}
	return id, nil
}

// request sends one request and returns the messages that answer it.
func (c *Conn) request(typ uint16, flags netlink.HeaderFlags, family Family, attrs attributes) ([]netlink.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.nl.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, err
	}
	data := append([]byte{uint8(family), unix.NFNETLINK_V0, 0, 0}, attrs...)
	replies, err := c.nl.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   data,
	})
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("%w; %s", err, needsPrivilege)
	}
	return replies, err
}

// errInterrupted says that the ruleset changed while it was being listed.
var errInterrupted = errors.New("the ruleset changed while it was read")

// dump lists all objects of a kind. The kernel lists in pieces; when a commit comes
// between two of them it says so, and the caller has to start again.
func (c *Conn) dump(typ uint16, family Family, attrs attributes) ([]netlink.Message, error) {
	replies, err := c.request(typ, netlink.Dump, family, attrs)
	for _, r := range replies {
		if r.Header.Flags&netlink.DumpInterrupted != 0 {
			return nil, errInterrupted
		}
	}
	if errors.Is(err, unix.EINTR) || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errInterrupted
	}
	return replies, err
}
