package nft

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// keyReader asks the kernel for elements of one set by their keys, many at a time.
//
// No poller watches its socket. The kernel carries out requests and queues the answers during the send, so nobody has
// to wait for an answer. A poller would be woken for each of them, which takes longer than to answer.
type keyReader struct {
	socket *socket
	// fd is the socket, in non-blocking mode.
	fd  int
	set *Set
	// list is the start of each request, up to its element.
	list netlinkattr.List
	// keys are those asked for last, requests the messages that did, and first the sequence number of the first one.
	keys     []Data
	requests []byte
	first    uint32
	answers  []byte
	attrs    netlinkattr.List
	element  Element
}

// askedAtOnce is how many keys are asked for in one send. The answers, a few hundred bytes each, are all in the
// socket's buffer before the first one is read.
const askedAtOnce = 128

// openKeyReader opens a keyReader for a set of the kernel.
func (n *namespace) openKeyReader(t *Table, s *Set) (*keyReader, error) {
	socket, err := n.openSocket()
	if err != nil {
		return nil, err
	}
	// The poller forgets the socket when it is closed, but the copy stays open.
	defer socket.conn.Close()
	r := &keyReader{socket: socket, set: s}
	copied := socket.raw.Control(func(fd uintptr) {
		r.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err := errors.Join(copied, err); err != nil {
		return nil, fmt.Errorf("nft: copy a netlink socket: %w", err)
	}
	r.list = append(start(t.Family, t.Name, 64), elementList(s.Name)...)
	return r, nil
}

func (r *keyReader) close() { _ = unix.Close(r.fd) }

// ask asks for the elements with r.keys and reads the answers.
func (r *keyReader) ask() error {
	if err := r.encode(); err != nil {
		return err
	}
	if err := unix.Sendmsg(r.fd, r.requests, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0); err != nil {
		return err
	}
	for r.answers = r.answers[:0]; ; {
		n, err := unix.Read(r.fd, r.socket.buffer) // recvmsg takes longer
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		r.answers = append(r.answers, r.socket.buffer[:netlinkattr.Padded(n)]...)
	}
}

// encode makes a request for each key. One request could have many keys, but the kernel ends it at the first key that
// the set does not have.
func (r *keyReader) encode() error {
	r.first = r.socket.sequence + 1
	r.requests = r.requests[:0]
	lengths := r.set.lengths()
	for i, key := range r.keys {
		r.element.Key = key
		if err := lengths.checkKey(r.set, &r.element); err != nil {
			return invalidError{err}
		}
		r.attrs = append(r.attrs[:0], r.list...)
		list := r.attrs.Begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		encodeElement(&r.attrs, r.set, lengths, &r.element, false)
		r.attrs.End(list)
		flags := netlink.Request
		if i == len(r.keys)-1 {
			flags |= netlink.Acknowledge
		}
		m := netlink.Message{Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM, Flags: flags}, Data: r.attrs}
		r.requests = r.socket.appendMessage(r.requests, &m)
	}
	return nil
}

// eachAnswer calls each for every answer with an element, and missing for every key that the set does not have.
func (r *keyReader) eachAnswer(each func(reply) error, missing func(Data)) error {
	whole := false
	err := eachMessage(r.answers, func(m reply) error {
		if m.Type != unix.NLMSG_ERROR {
			return each(m)
		}
		whole = m.Sequence == r.socket.sequence // the last request asks for an answer also if it succeeds
		refused := m.refusal()
		i := m.Sequence - r.first
		switch {
		case refused == nil:
			return nil
		case refused.errno == unix.ENOENT && i < uint32(len(r.keys)):
			missing(r.keys[i])
			return nil
		}
		return refused
	})
	if err == nil && !whole {
		err = errors.New("answers from the kernel got lost")
	}
	return err
}
