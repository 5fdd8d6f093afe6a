package process

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// NetlinkFault has one netlink system call of a function go wrong: the first, the second, and so on, so that a test
// can try all of them. It works beneath the code under test, with a real kernel.
type NetlinkFault struct {
	// Name says it in a few words.
	Name string
	// call is the system call (unix.SYS_…) that goes wrong.
	call uint32
	// strike has the call go wrong. It returns false if this one cannot go wrong in that way.
	strike func(i *injection, c *Call) (v Verdict, struck bool)
	// refuse, if not 0, is the error with which the opening of a socket fails.
	refuse unix.Errno
	// lasting has all later calls go wrong too.
	lasting bool
}

// Lasting is the fault that does not go away.
func (f NetlinkFault) Lasting() NetlinkFault {
	f.lasting = true
	return f
}

// Fails is a system call that fails with an error.
func Fails(name string, call uint32, errno unix.Errno) NetlinkFault {
	return NetlinkFault{Name: name + ": " + unix.ErrnoName(errno), call: call, strike: func(*injection, *Call) (Verdict, bool) {
		return Fail(errno), true
	}}
}

// noSocket has all opening of sockets fail. There is no n-th: the runtime of Go does not expect that a call to open one
// waits, so nobody can judge it.
func noSocket(errno unix.Errno) NetlinkFault {
	return NetlinkFault{Name: "no socket: " + unix.ErrnoName(errno), refuse: errno}
}

// refusedRequest is a request, or a batch as a whole, that the kernel answers with an error.
func refusedRequest(errno unix.Errno) NetlinkFault {
	return NetlinkFault{Name: "the kernel answers " + unix.ErrnoName(errno), call: unix.SYS_SENDMSG, strike: func(i *injection, c *Call) (Verdict, bool) {
		request := c.Message()
		i.forge(c, refusal(request, sequence(request), errno))
		return Return(len(request)), true
	}}
}

// RefusedStep is a step in the middle of a batch that the kernel refuses.
func RefusedStep(errno unix.Errno) NetlinkFault {
	return NetlinkFault{Name: "the kernel refuses a step with " + unix.ErrnoName(errno), call: unix.SYS_SENDMSG, strike: func(i *injection, c *Call) (Verdict, bool) {
		batch := c.Message()
		if messageType(batch) != unix.NFNL_MSG_BATCH_BEGIN {
			return Pass, false
		}
		steps := messages(batch)
		steps = steps[1 : len(steps)-1]
		middle, last := sequence(steps[len(steps)/2]), sequence(steps[len(steps)-1])
		answer := refusal(batch, middle, errno)
		if last != middle {
			answer = append(answer, refusal(batch, last, 0)...)
		}
		i.forge(c, answer)
		return Return(len(batch)), true
	}}
}

// mangled is an answer that arrives otherwise than the kernel sent it.
func mangled(name string, mangle func(datagram []byte) (rest []byte, flags int)) NetlinkFault {
	return NetlinkFault{Name: name, call: unix.SYS_RECVMSG, strike: func(_ *injection, c *Call) (Verdict, bool) {
		buffer := make([]byte, 1<<16)
		n, _, _, _, err := unix.Recvmsg(c.FD(), buffer, nil, unix.MSG_DONTWAIT)
		if err != nil {
			return Pass, false // nothing has come yet
		}
		return c.Received(mangle(buffer[:n])), true
	}}
}

// repeated is an answer that somebody has read already, or an old one that nobody read: it comes again.
var repeated = NetlinkFault{Name: "an old answer comes again", call: unix.SYS_RECVMSG, strike: func(i *injection, c *Call) (Verdict, bool) {
	if i.last == nil {
		return Pass, false
	}
	return c.Received(i.last, 0), true
}}

// NetlinkFaults are the faults that every user of netlink has to cope with.
func NetlinkFaults() []NetlinkFault {
	half := func(datagram []byte) ([]byte, int) { return datagram[:len(datagram)/2], 0 }
	bit := func(datagram []byte) ([]byte, int) { return datagram[:unix.NLMSG_HDRLEN/2], 0 }
	faults := []NetlinkFault{
		noSocket(unix.EMFILE),
		noSocket(unix.ENOBUFS),
		Fails("cannot bind", unix.SYS_BIND, unix.ENOMEM),
		Fails("cannot set an option", unix.SYS_SETSOCKOPT, unix.ENOBUFS),
		Fails("cannot send", unix.SYS_SENDMSG, unix.ENOBUFS),
		Fails("cannot send", unix.SYS_SENDMSG, unix.ENOMEM),
		Fails("cannot send", unix.SYS_SENDMSG, unix.EINTR),
		Fails("cannot send", unix.SYS_SENDMSG, unix.EPERM),
		Fails("the socket is closed: cannot send", unix.SYS_SENDMSG, unix.EBADF),
		Fails("cannot receive", unix.SYS_RECVMSG, unix.ENOBUFS),
		Fails("cannot receive", unix.SYS_RECVMSG, unix.ENOMEM),
		Fails("cannot receive", unix.SYS_RECVMSG, unix.EINTR),
		Fails("the socket is closed: cannot receive", unix.SYS_RECVMSG, unix.EBADF),
		RefusedStep(unix.ENFILE),
		RefusedStep(unix.ENOMEM),
		mangled("a short answer", half),
		mangled("an answer shorter than its header", bit),
		mangled("an answer without a meaning", func(datagram []byte) ([]byte, int) {
			for i := range datagram {
				datagram[i] = 0xff
			}
			return datagram, 0
		}),
		mangled("an answer that did not fit", func(datagram []byte) ([]byte, int) { return datagram, unix.MSG_TRUNC }),
		repeated,
	}
	for _, errno := range []unix.Errno{unix.ENOBUFS, unix.EINTR, unix.EAGAIN, unix.ENOMEM, unix.ERESTART, unix.EPERM, unix.ENFILE, unix.EBUSY} {
		faults = append(faults, refusedRequest(errno))
	}
	return faults
}

// injection has the n-th call go wrong.
type injection struct {
	fault NetlinkFault
	n     int

	mu sync.Mutex
	// seen counts the calls that could go wrong.
	seen   int
	struck bool
	// forged has the message that each socket receives next; last is the message that one received last.
	forged map[int][]byte
	last   []byte
}

// Run runs f on a thread of its own, whose n-th call that can has the fault; the first is
// 1. It reports whether there was such a call.
func (f NetlinkFault) Run(n int, run func()) (struck bool, err error) {
	if f.refuse != 0 {
		return n == 1, Behind(NetfilterSockets(Refused(f.refuse)), nil, run)
	}
	i := injection{fault: f, n: n, forged: map[int][]byte{}}
	err = Behind(Calls(Judged, Netlink...), i.judge, run)
	return i.struck, err
}

func (i *injection) judge(c *Call) Verdict {
	i.mu.Lock()
	defer i.mu.Unlock()
	if forged := i.forged[c.FD()]; forged != nil && c.Number() == unix.SYS_RECVMSG {
		delete(i.forged, c.FD())
		return c.Received(forged, 0)
	}
	if c.Number() == int(i.fault.call) && (!i.struck || i.fault.lasting) {
		if i.seen++; i.seen >= i.n {
			if v, struck := i.fault.strike(i, c); struck {
				i.struck = true
				return v
			}
		}
	}
	if c.Number() == unix.SYS_RECVMSG {
		i.peek(c.FD())
	}
	return Pass
}

// peek notes what is about to be received.
func (i *injection) peek(fd int) {
	buffer := make([]byte, 1<<16)
	if n, _, _, _, err := unix.Recvmsg(fd, buffer, nil, unix.MSG_DONTWAIT|unix.MSG_PEEK); err == nil {
		i.last = buffer[:n]
	}
}

func (i *injection) forge(c *Call, answer []byte) { i.forged[c.FD()] = answer }

func messageType(b []byte) uint16 { return binary.NativeEndian.Uint16(b[4:]) }

func sequence(b []byte) uint32 { return binary.NativeEndian.Uint32(b[8:]) }

// messages splits a datagram.
func messages(b []byte) (all [][]byte) {
	for len(b) >= unix.NLMSG_HDRLEN {
		length := int(binary.NativeEndian.Uint32(b))
		all = append(all, b[:length])
		b = b[min(len(b), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return all
}

// refusal is the kernel's answer to the message with a sequence number; errno 0 says that all is well.
func refusal(request []byte, sequence uint32, errno unix.Errno) (b []byte) {
	const capped = 0x100 // NLM_F_CAPPED
	b = binary.NativeEndian.AppendUint32(b, unix.NLMSG_HDRLEN+4+unix.NLMSG_HDRLEN)
	b = binary.NativeEndian.AppendUint16(b, unix.NLMSG_ERROR)
	b = binary.NativeEndian.AppendUint16(b, capped)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = append(b, request[12:16]...) // the port
	b = binary.NativeEndian.AppendUint32(b, uint32(-int32(errno)))
	return append(b, request[:unix.NLMSG_HDRLEN]...)
}
