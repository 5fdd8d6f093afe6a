package leftovers

import (
	"iter"
	"os"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// slowKernel is a socket of a kernel that takes longer for each system call than it may be silent: any deadline that was
// set before the last call has passed.
type slowKernel struct {
	netlink.Socket
	// answer are the parts of the answer.
	answer []netlink.Message
	// sequence is that of the last request.
	sequence uint32
	passed   bool
}

func (s *slowKernel) SetReadDeadline(time.Time) error {
	s.passed = false
	return nil
}

func (s *slowKernel) SetDeadline(t time.Time) error    { return s.SetReadDeadline(t) }
func (s *slowKernel) SetWriteDeadline(time.Time) error { return nil }
func (s *slowKernel) SetReadBuffer(int) error          { return nil }
func (s *slowKernel) SetWriteBuffer(int) error         { return nil }
func (s *slowKernel) ReadBuffer() (int, error)         { return 0, nil }
func (s *slowKernel) WriteBuffer() (int, error)        { return 0, nil }

func (s *slowKernel) Send(m netlink.Message) error { return s.SendMessages([]netlink.Message{m}) }

func (s *slowKernel) SendMessages(list []netlink.Message) error {
	s.passed, s.sequence = true, list[len(list)-1].Header.Sequence
	return nil
}

// ReceiveIter returns one part of the answer.
func (s *slowKernel) ReceiveIter() iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		if s.passed {
			yield(netlink.Message{}, os.ErrDeadlineExceeded)
			return
		}
		next := s.answer[0]
		s.answer, s.passed = s.answer[1:], true
		next.Header.Sequence = s.sequence
		yield(next, nil)
	}
}

func TestSlowKernel(t *testing.T) {
	connected := func(parts ...netlink.Header) *kernel {
		s := &slowKernel{}
		for _, header := range parts {
			s.answer = append(s.answer, netlink.Message{Header: header, Data: make([]byte, headerSize+4)})
		}
		return &kernel{netlink.NewConn(s, 0)}
	}
	t.Run("may list for longer than it may be silent", func(t *testing.T) {
		object := netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES << 8, Flags: netlink.Multi}
		k := connected(object, object, object, netlink.Header{Type: netlink.Done, Flags: netlink.Multi})
		objects, err := k.list(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_IPV4, nil)
		if err != nil || len(objects) != 3 {
			t.Errorf("%d objects of three, %v", len(objects), err)
		}
	})
	t.Run("may commit for longer than it may be silent", func(t *testing.T) {
		k := connected(netlink.Header{Type: netlink.Error})
		if err := k.commit(1, []netlink.Message{message(unix.NFT_MSG_DELCHAIN, 0, unix.NFPROTO_IPV4, nil)}); err != nil {
			t.Error(err)
		}
	})
}
