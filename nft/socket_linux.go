package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	socketpkg "github.com/mdlayher/socket"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// socket is one netlink socket to nf_tables: sending, receiving and the framing of messages. mdlayher/netlink's Conn
// hides the message that ends a listing, which says whether the listing is inconsistent; it cannot give up in the
// middle of a listing; and it copies each batch and each reply once more than needed.
type socket struct {
	conn Socket
	// port is the socket's netlink port id, by which the kernel knows the owner of a table.
	port uint32
	// sequence is the number of the message that was sent last.
	sequence uint32
	// patience bounds the wait for each datagram.
	patience time.Duration
	buffer   []byte
}

// Socket is a netlink socket to nf_tables, in place of the kernel's: see Config. Its methods are those of
// github.com/mdlayher/socket, and these:
type Socket interface {
	// Port is the netlink port id.
	Port() uint32
	// Send sends a datagram, which is the concatenation of the parts.
	Send(parts ...[]byte) error
	// Receive waits for a datagram, and reports whether the buffer was too short for it.
	Receive(buffer []byte) (n int, truncated bool, err error)

	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
	SetWriteBuffer(bytes int) error
	WriteBuffer() (int, error)
	SetsockoptInt(level, option, value int) error
	Close() error
}

type kernelConn struct {
	*socketpkg.Conn
	// raw is Conn for sending and receiving.
	raw  syscall.RawConn
	port uint32
}

func (c *kernelConn) Port() uint32 { return c.port }

func (c *kernelConn) Send(parts ...[]byte) error {
	if len(parts) > maxParts {
		parts = [][]byte{slices.Concat(parts...)}
	}
	return whenReady("sendmsg", c.raw.Write, func(fd int) error {
		_, err := unix.SendmsgBuffers(fd, parts, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0)
		return err
	})
}

// maxParts is the kernel's bound for the parts of one datagram (UIO_MAXIOV).
const maxParts = 1024

func (c *kernelConn) Receive(buffer []byte) (n int, truncated bool, err error) {
	flags := 0
	err = whenReady("recvmsg", c.raw.Read, func(fd int) (err error) {
		n, _, flags, _, err = unix.Recvmsg(fd, buffer, nil, 0)
		return err
	})
	return n, flags&unix.MSG_TRUNC != 0, err
}

// datagramSize is more than the largest datagram. Refusals do not repeat the refused message (NETLINK_CAP_ACK), and the
// kernel sends a listing in parts of up to 32 KiB.
const datagramSize = 1 << 16

// patience bounds a call's wait for each part of the kernel's answer. The kernel does the work during the system calls,
// so an answer that is not there at once hardly ever comes.
const patience = 10 * time.Second

// reply is one message from the kernel. Its Data is valid until the next datagram is received.
type reply syscall.NetlinkMessage

// kind is the message's type within nf_tables.
func (r reply) kind() uint16 { return r.Header.Type & 0xff }

func (r reply) has(flag netlink.HeaderFlags) bool { return r.Header.Flags&uint16(flag) != 0 }

// kernelError is an answer of the kernel that refuses a message.
type kernelError struct {
	errno    unix.Errno
	sequence uint32
	// message is the kernel's explanation, empty if it gave none. offset is the place in the refused message that it is
	// about, 0 for none.
	message string
	offset  int
}

func (e *kernelError) Error() string {
	if e.message == "" {
		return e.errno.Error()
	}
	return fmt.Sprintf("%v (%s)", e.errno, e.message)
}

func (e *kernelError) Unwrap() error { return e.errno }

// openKernel opens a socket in the namespace. Only where the thread is in another namespace does it
// have to move there, which takes CAP_SYS_ADMIN.
func (n *namespace) openKernel() (Socket, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	config := &socketpkg.Config{}
	if !n.isCurrent() {
		config.NetNS = int(n.file.Fd())
	}
	conn, err := socketpkg.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER, "netlink", config)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("%w; the kernel needs nf_tables (CONFIG_NETFILTER_NETLINK, CONFIG_NF_TABLES)", err)
	}
	if err != nil {
		return nil, err
	}
	c := &kernelConn{Conn: conn}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func (c *kernelConn) prepare() (err error) {
	if c.raw, err = c.SyscallConn(); err != nil {
		return err
	}
	if err := c.Bind(&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	address, err := c.Getsockname()
	if err != nil {
		return err
	}
	c.port = address.(*unix.SockaddrNetlink).Pid
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		if err := c.SetsockoptInt(unix.SOL_NETLINK, option, 1); err != nil {
			return err
		}
	}
	// Room for the answers to a batch with many refused steps. Best effort: with too little room the commit returns an error,
	// never a false success.
	_ = c.SetReadBuffer(1 << 22)
	return nil
}

// namespace is a network namespace, kept open so that sockets can be opened in it later and by other threads.
type namespace struct {
	file *os.File
	// open, if set, opens the sockets instead. Then there is no file.
	open func() (Socket, error)
}

func (n *namespace) openSocket() (*socket, error) {
	open := n.open
	if open == nil {
		open = n.openKernel
	}
	conn, err := open()
	if err != nil {
		return nil, fmt.Errorf("nft: open netlink socket: %w", err)
	}
	return &socket{conn: conn, port: conn.Port(), patience: patience, buffer: make([]byte, datagramSize)}, nil
}

func holdNamespace(config Config) (*namespace, error) {
	if config.Open != nil {
		return &namespace{open: config.Open}, nil
	}
	if config.NetNS == 0 {
		file, err := os.Open(currentNamespace)
		if err != nil {
			return nil, fmt.Errorf("nft: find the network namespace: %w", err)
		}
		return &namespace{file: file}, nil
	}
	held, err := unix.FcntlInt(uintptr(config.NetNS), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("nft: keep the network namespace: %w", err)
	}
	return &namespace{file: os.NewFile(uintptr(held), "network namespace")}, nil
}

const currentNamespace = "/proc/thread-self/ns/net"

func (n *namespace) isCurrent() bool {
	mine, err := n.file.Stat()
	if err != nil {
		return false
	}
	current, err := os.Stat(currentNamespace)
	return err == nil && os.SameFile(mine, current)
}

func (n *namespace) Close() error {
	if n.file == nil {
		return nil
	}
	return n.file.Close()
}

// appendMessage appends a message, and gives it the next sequence number.
func (s *socket) appendMessage(b []byte, m *netlink.Message) []byte {
	b = append(s.appendHeader(b, m), m.Data...)
	return append(b, make([]byte, netlinkattr.Padded(len(b))-len(b))...)
}

// appendHeader appends the header of a message, and gives it the next sequence number.
func (s *socket) appendHeader(b []byte, m *netlink.Message) []byte {
	s.sequence++
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+len(m.Data)))
	b = binary.NativeEndian.AppendUint16(b, uint16(m.Header.Type))
	b = binary.NativeEndian.AppendUint16(b, uint16(m.Header.Flags))
	b = binary.NativeEndian.AppendUint32(b, s.sequence)
	return binary.NativeEndian.AppendUint32(b, s.port)
}

// send sends messages of appendMessage in one datagram. The kernel has carried them out when send returns.
func (s *socket) send(parts ...[]byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.patience)); err != nil {
		return err
	}
	return s.conn.Send(parts...)
}

// whenReady makes a system call as soon as the socket is ready, and again at once when a signal interrupts it.
// (mdlayher/socket waits until the socket becomes ready again, which it is already.)
func whenReady(name string, wait func(func(fd uintptr) (done bool)) error, call func(fd int) error) (err error) {
	waited := wait(func(fd uintptr) bool {
		for err = unix.EINTR; err == unix.EINTR; {
			err = call(int(fd))
		}
		return err != unix.EAGAIN
	})
	if waited != nil {
		return waited
	}
	return os.NewSyscallError(name, err)
}

// receive waits for the next datagram and calls each for its messages, until each returns an error. It gives up after
// patience, and when ctx is done if interruptible was called with it.
func (s *socket) receive(ctx context.Context, each func(reply) error) error {
	return s.receiveUntil(ctx, time.Now().Add(s.patience), each)
}

var noDeadline time.Time

func (s *socket) receiveUntil(ctx context.Context, deadline time.Time, each func(reply) error) error {
	if err := s.conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	n, truncated, err := s.conn.Receive(s.buffer)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no answer from the kernel for %v: %w", s.patience, err)
	case err != nil:
		return err
	case truncated:
		return fmt.Errorf("a datagram of more than %d bytes from the kernel", len(s.buffer))
	}
	return eachMessage(s.buffer[:n], each)
}

// interruptible makes a receive that waits give up when ctx is done, until the returned function is called.
func (s *socket) interruptible(ctx context.Context) (end func() bool) {
	return context.AfterFunc(ctx, func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) })
}

func eachMessage(b []byte, each func(reply) error) error {
	messages, err := syscall.ParseNetlinkMessage(b)
	whole := 0
	for _, m := range messages {
		whole += netlinkattr.Padded(int(m.Header.Len))
	}
	if err == nil && whole < len(b) { // ParseNetlinkMessage leaves out what is shorter than a header
		err = netlinkattr.ErrShort
	}
	if err != nil {
		return fmt.Errorf("a datagram that is not of netlink: %w", err)
	}
	for _, m := range messages {
		if err := each(reply(m)); err != nil {
			return err
		}
	}
	return nil
}

// refusal returns the refusal in a message of type NLMSG_ERROR or NLMSG_DONE; nil for success.
func (r reply) refusal() *kernelError {
	if len(r.Data) < 4 {
		return nil // NLMSG_DONE may be empty
	}
	errno := -int32(binary.NativeEndian.Uint32(r.Data))
	if errno == 0 {
		return nil
	}
	e := &kernelError{errno: unix.Errno(errno), sequence: r.Header.Seq}
	if r.has(netlink.AcknowledgeTLVs) {
		// Best effort: the kernel's explanation is for people.
		_ = netlinkattr.Each(r.explanation(), e.explain)
	}
	return e
}

func (r reply) explanation() []byte {
	at := 4
	if r.Header.Type == unix.NLMSG_ERROR {
		at += unix.NLMSG_HDRLEN
		if !r.has(netlink.Capped) && len(r.Data) >= 8 {
			at = 4 + netlinkattr.Padded(int(min(binary.NativeEndian.Uint32(r.Data[4:]), datagramSize)))
		}
	}
	return r.Data[min(at, len(r.Data)):]
}

func (e *kernelError) explain(typ uint16, b []byte) error {
	switch {
	case typ == unix.NLMSGERR_ATTR_MSG:
		e.message = netlinkattr.Text(b)
	case typ == unix.NLMSGERR_ATTR_OFFS && len(b) == 4:
		e.offset = int(binary.NativeEndian.Uint32(b))
	}
	return nil
}
