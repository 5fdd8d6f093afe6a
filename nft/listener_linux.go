package nft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Notice says that somebody committed to the nf_tables of a network namespace.
type Notice struct {
	// Generation is the ruleset's number after the commit.
	Generation uint32
	// TID is the id, in the initial PID namespace, of the thread that committed. The kernel tells of the thread alone.
	TID uint32
	// PID is the id of the thread's process, from /proc/TID. It is 0 if the thread has ended before the notice was read, or
	// if /proc is not that of the initial PID namespace, as in a container without hostPID.
	PID uint32
	// Process is the name of the process, at most 15 bytes; where PID is 0, the name of the thread, which in most programs
	// is the same.
	Process string
	// Lost says that notices were lost, because more came than the socket holds. The other fields are empty then.
	Lost bool
}

// String returns the notice in a few words, for logs.
func (n Notice) String() string {
	if n.Lost {
		return "notices were lost"
	}
	return fmt.Sprintf("generation %d by %s", n.Generation, n.Who())
}

// Who returns the process that committed, as in "nft (pid 4711)". Where the process is not known, it is the thread, as in
// "nft (thread 4711)".
func (n Notice) Who() string {
	if n.PID == 0 {
		return fmt.Sprintf("%s (thread %d)", n.Process, n.TID)
	}
	return fmt.Sprintf("%s (pid %d)", n.Process, n.PID)
}

// Listener hears of each commit to the nf_tables of one network namespace, whoever makes it. It hears of them between
// Join and Leave. A new Listener has not joined.
//
// While anybody in the namespace has joined, the kernel describes all elements of each commit to the group. A filter
// keeps the descriptions away from the Listener, but making them takes time: a commit of 60,000 elements took a third
// to two thirds longer (docs/measurements.md). So leave before your own commits, and join again after them. The
// Listener does not hear of commits of others in between. To find out whether there were any, compare the Generation
// after Join with the one before, plus one for each of your own commits.
//
// Join, Leave and Close may be called while another goroutine is in Next. Only one goroutine may be in Next.
type Listener struct {
	socket *socket
	closed atomic.Bool
}

// Listen opens a listener in the connection's network namespace. The connection may be closed while the listener is in
// use. The process needs CAP_NET_ADMIN for Join.
func (c *Conn) Listen() (*Listener, error) {
	s, err := c.namespace.openSocket()
	if err != nil {
		return nil, err
	}
	l := &Listener{socket: s}
	filter, err := bpf.Assemble(onlyGenerations)
	if err == nil {
		err = s.conn.SetBPF(filter)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nft: filter notices: %w", err), l.Close())
	}
	return l, nil
}

// onlyGenerations lets messages pass that tell of a new generation. The kernel sends each in a datagram of its own,
// after the descriptions of the commit.
var onlyGenerations = []bpf.Instruction{
	// nlmsg_type is at offset 4, in the byte order of the host; BPF loads in network byte order.
	bpf.LoadAbsolute{Off: 4, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(networkOrder(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN)), SkipFalse: 1},
	bpf.RetConstant{Val: datagramSize},
	bpf.RetConstant{Val: 0},
}

// Join begins to hear of commits. Being joined already is no error.
func (l *Listener) Join() error { return l.membership(unix.NETLINK_ADD_MEMBERSHIP, "join") }

// Leave ends hearing of commits. Notices that are there already stay.
func (l *Listener) Leave() error { return l.membership(unix.NETLINK_DROP_MEMBERSHIP, "leave") }

func (l *Listener) membership(option int, what string) error {
	if err := l.socket.conn.SetsockoptInt(unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("nft: %s the group of notices: %w", what, withPrivilege(err))
	}
	return nil
}

// Next waits for the next commit. It ends with ctx's error when ctx is done, and with net.ErrClosed after Close. After
// any other error the listener is unusable: close it and open another.
func (l *Listener) Next(ctx context.Context) (Notice, error) { return l.next(ctx, func(reply) {}) }

// next is Next, and calls other for each message that is not a notice.
func (l *Listener) next(ctx context.Context, other func(reply)) (n Notice, err error) {
	defer l.socket.interruptible(ctx)()
	for ended := false; !ended; {
		err := l.socket.receiveUntil(ctx, noDeadline, func(r reply) error {
			if r.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
				ended = true
				err := decodeAttributes(r.Data, n.take)
				n.findProcess()
				return err
			}
			other(r)
			return nil
		})
		switch {
		case err != nil && l.closed.Load():
			return Notice{}, fmt.Errorf("nft: wait for a commit: %w", net.ErrClosed)
		case errors.Is(err, unix.ENOBUFS):
			return Notice{Lost: true}, nil
		case err != nil:
			return Notice{}, fmt.Errorf("nft: wait for a commit: %w", err)
		}
	}
	return n, nil
}

func (n *Notice) take(typ uint16, b []byte) (err error) {
	switch typ {
	case unix.NFTA_GEN_ID:
		n.Generation, err = netlinkattr.Uint32(b)
	case unix.NFTA_GEN_PROC_PID:
		n.TID, err = netlinkattr.Uint32(b)
	case unix.NFTA_GEN_PROC_NAME:
		n.Process = netlinkattr.Text(b)
	}
	return err
}

// initialPIDNamespace is the target of /proc/self/ns/pid in the initial PID namespace: its inode has a fixed number,
// PROC_PID_INIT_INO of linux/proc_ns.h.
const initialPIDNamespace = "pid:[4026531836]"

// findProcess fills in the process of the thread. The thread may have ended, and its id may belong to another one by now,
// so the name has to be the same.
func (n *Notice) findProcess() {
	if namespace, err := os.Readlink("/proc/self/ns/pid"); err != nil || namespace != initialPIDNamespace {
		return
	}
	if commOf(n.TID) != n.Process {
		return
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.TID))
	if err != nil {
		return
	}
	_, after, _ := strings.Cut(string(status), "\nTgid:\t")
	text, _, _ := strings.Cut(after, "\n")
	pid, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return
	}
	if name := commOf(uint32(pid)); name != "" {
		n.PID, n.Process = uint32(pid), name
	}
}

// commOf returns the name of a thread; empty if it has ended.
func commOf(tid uint32) string {
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	return strings.TrimSuffix(string(comm), "\n")
}

// Close closes the listener. A Next that waits ends with net.ErrClosed.
func (l *Listener) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.socket.conn.Close()
}
