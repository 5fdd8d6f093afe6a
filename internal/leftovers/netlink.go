package leftovers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// errChanged says that somebody else committed while the ruleset was read, or between that and the removal.
var errChanged = errors.New("the ruleset changed meanwhile")

// retry calls read again when others change the ruleset meanwhile, up to ten times.
func retry[T any](read func() (T, error)) (T, error) {
	const attempts = 10
	for range attempts - 1 {
		if out, err := read(); !errors.Is(err, errChanged) {
			return out, err
		}
	}
	return read()
}

// kernel is a connection to nf_tables.
type kernel struct{ nl *netlink.Conn }

func dial() (*kernel, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: 1 << 17})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &kernel{nl}, nil
}

func (k *kernel) close() { k.nl.Close() }

// maxSilence is how long the kernel may say nothing while it has nothing to do for this connection. It works inside the
// system calls that send and receive, for as long as that takes.
const maxSilence = time.Minute

func (k *kernel) expect() error { return k.nl.SetReadDeadline(time.Now().Add(maxSilence)) }

// execute sends a request and returns the kernel's answer.
func (k *kernel) execute(m netlink.Message) ([]netlink.Message, error) {
	request, err := k.nl.Send(m)
	if err != nil {
		return nil, err
	}
	replies, err := k.receive()
	if err != nil {
		return nil, err
	}
	return replies, netlink.Validate(request, replies)
}

// receive returns the kernel's answer to what was sent. The deadline begins anew with each part of the answer.
func (k *kernel) receive() (replies []netlink.Message, err error) {
	if err := k.expect(); err != nil {
		return nil, err
	}
	for m, err := range k.nl.ReceiveIter() {
		if err == nil {
			err = k.expect()
		}
		if err != nil {
			return nil, err
		}
		replies = append(replies, m)
	}
	return replies, nil
}

// headerSize is the length of struct nfgenmsg, with which each message begins.
const headerSize = 4

// message returns a request about the objects of a family.
func message(typ uint16, flags netlink.HeaderFlags, f family, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   append([]byte{uint8(f), unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}

// attributes encodes what fill adds. Numbers are in network order.
func attributes(fill func(*netlink.AttributeEncoder)) []byte {
	encoder := netlink.NewAttributeEncoder()
	encoder.ByteOrder = binary.BigEndian
	fill(encoder)
	encoded, err := encoder.Encode()
	if err != nil {
		panic(err) // a name is longer than an attribute can be, and they all came from the kernel
	}
	return encoded
}

// eachAttribute calls back for each attribute of an object. Numbers are in network order.
func eachAttribute(data []byte, visit func(*netlink.AttributeDecoder) error) error {
	decoder, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	decoder.ByteOrder = binary.BigEndian
	return visitAll(decoder, visit)
}

func visitAll(decoder *netlink.AttributeDecoder, visit func(*netlink.AttributeDecoder) error) error {
	for decoder.Next() {
		if err := visit(decoder); err != nil {
			return err
		}
	}
	return decoder.Err()
}

// list returns the attributes of each object that the kernel lists.
func (k *kernel) list(typ uint16, f family, attributes []byte) (objects [][]byte, err error) {
	replies, err := k.execute(message(typ, netlink.Dump, f, attributes))
	if errors.Is(err, unix.EINTR) {
		return nil, errChanged
	}
	for _, reply := range replies {
		if reply.Header.Flags&netlink.DumpInterrupted != 0 {
			return nil, errChanged
		}
		if len(reply.Data) > headerSize {
			objects = append(objects, reply.Data[headerSize:])
		}
	}
	return objects, err
}

// chains returns all chains of the tables that iptables-nft writes.
func (k *kernel) chains(f family) (chains []chain, err error) {
	objects, err := k.list(unix.NFT_MSG_GETCHAIN, f, nil)
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		c, err := decodeChain(f, object)
		if err != nil {
			return nil, fmt.Errorf("read a chain: %w", err)
		}
		if slices.Contains(iptablesTables, c.table) {
			chains = append(chains, c)
		}
	}
	return chains, nil
}

// jumps returns the rules of a table that lead to other chains.
func (k *kernel) jumps(f family, table string) (rules []rule, err error) {
	objects, err := k.list(unix.NFT_MSG_GETRULE, f, attributes(func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_RULE_TABLE, table) }))
	if errors.Is(err, unix.ENOENT) {
		return nil, errChanged
	}
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		r, err := decodeRule(object)
		if err != nil {
			return nil, fmt.Errorf("read a rule: %w", err)
		}
		if r.to != "" {
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// generation returns the number that the kernel counts up with every commit.
func (k *kernel) generation() (id uint32, err error) {
	replies, err := k.execute(message(unix.NFT_MSG_GETGEN, 0, 0, nil))
	if err != nil {
		return 0, err
	}
	for _, reply := range replies {
		if len(reply.Data) <= headerSize {
			continue
		}
		if err := eachAttribute(reply.Data[headerSize:], func(d *netlink.AttributeDecoder) error {
			if d.Type() == unix.NFTA_GEN_ID {
				id = d.Uint32()
			}
			return nil
		}); err != nil {
			return 0, err
		}
	}
	return id, nil
}

// nfnlBatchGenID is NFNL_BATCH_GENID (kernel 4.12): the kernel refuses a batch that was made for another generation.
const nfnlBatchGenID = 1

// commit has the kernel carry out all messages or none, provided that the ruleset is still of the generation.
func (k *kernel) commit(generation uint32, messages []netlink.Message) error {
	size := 0
	for _, m := range messages {
		size += unix.NLMSG_HDRLEN + len(m.Data)
	}
	// A batch must reach the kernel in a single send.
	if err := k.nl.SetWriteBuffer(2*size + 1<<16); err != nil {
		return fmt.Errorf("make room for a batch of %d bytes: %w", size, err)
	}
	begin, end := batchMarker(unix.NFNL_MSG_BATCH_BEGIN), batchMarker(unix.NFNL_MSG_BATCH_END)
	begin.Data = append(begin.Data, attributes(func(e *netlink.AttributeEncoder) { e.Uint32(nfnlBatchGenID, generation) })...)
	messages[len(messages)-1].Header.Flags |= netlink.Acknowledge
	if _, err := k.nl.SendMessages(slices.Concat([]netlink.Message{begin}, messages, []netlink.Message{end})); err != nil {
		return err
	}
	// The kernel answers what it refuses, and the last message.
	_, err := k.receive()
	if errors.Is(err, unix.ERESTART) {
		return errChanged
	}
	return err
}

func batchMarker(typ uint16) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
	}
}
