package flows

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// outcome is the result of an attempt.
type outcome struct {
	kind outcomeKind
	// local is the source address of the attempt.
	local netip.AddrPort
	// answer is set when the kind is answered.
	answer answer
	// detail says more about the other kinds.
	detail string
}

type outcomeKind int

const (
	// answered is the only kind in which all went well.
	answered outcomeKind = iota
	// refused is an ICMP port unreachable.
	refused
	// silent is nothing at all.
	silent
	// failed is all the rest.
	failed
)

func (o outcome) String() string {
	switch o.kind {
	case answered:
		return fmt.Sprintf("reached %s, which saw %s", o.answer.reached, o.answer.peer)
	case refused:
		return "was refused (" + o.detail + ")"
	case silent:
		return "got no answer"
	}
	return o.detail
}

func broken(format string, args ...any) outcome {
	return outcome{kind: failed, detail: fmt.Sprintf(format, args...)}
}

// attempt is one connection, from one source port, made once and never again: a second one
// would hide that the first reached the wrong place. A datagram that nothing answers is
// repeated, as TCP repeats its SYN; on a busy machine a new link can lose its first packet.
// Its methods must run inside the sending host.
type attempt struct {
	exchange
	// from is the source address; bound says whether the sender insists on it.
	from    netip.Addr
	bound   bool
	token   uint32
	notices <-chan notice
	// patience is the wait after which no answer counts as silence.
	patience time.Duration
	arrived  *arrivals
}

func (a *attempt) run() outcome {
	var o outcome
	switch a.protocol {
	case TCP:
		o = a.tcp()
	case UDP:
		o = a.udp()
	case SCTP:
		o = a.sctp()
	case ICMP:
		o = a.ping()
	}
	if at, arrived := a.arrived.find(a.token); o.kind == silent && arrived {
		return broken("reached %s, whose answer got lost", at)
	}
	return o
}

func (a *attempt) tcp() outcome {
	ctx, cancel := context.WithTimeout(context.Background(), a.patience)
	defer cancel()
	heard := a.hearken(ctx, cancel)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: a.boundIP(), Port: int(a.port)}}
	conn, err := dialer.DialContext(ctx, "tcp", a.to.String())
	if err != nil {
		cancel()
		if n, ok := <-heard; ok {
			return n.outcome()
		}
		return a.explain(err, "was reset")
	}
	defer conn.Close()
	// A reset instead of a farewell leaves nothing behind that could be in the way of later connections.
	conn.(*net.TCPConn).SetLinger(0)
	return a.readAnswer(conn)
}

// hearken returns the first notice that comes before ctx ends, and then ends it. A socket may
// miss an ICMP error: one that comes back while the kernel still sends the SYN finds the socket locked,
// and only the next SYN, a second later, is refused to its face.
func (a *attempt) hearken(ctx context.Context, end func()) <-chan notice {
	heard := make(chan notice, 1)
	go func() {
		defer close(heard)
		select {
		case n := <-a.notices:
			heard <- n
			end()
		case <-ctx.Done():
		}
	}()
	return heard
}

func (a *attempt) udp() outcome {
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: a.boundIP(), Port: int(a.port)}}
	conn, err := dialer.Dial("udp", a.to.String())
	if err != nil {
		return broken("cannot dial: %v", err)
	}
	defer conn.Close()
	_, err = fmt.Fprint(conn, a.token)
	// A node whose own rules drop its packet is told so, with EPERM.
	if err != nil && !errors.Is(err, unix.EPERM) {
		return a.explain(err, "was refused by no message")
	}
	defer repeat(func() { fmt.Fprint(conn, a.token) })()
	return a.readAnswer(conn)
}

// repeatAfter is the time after which an unanswered datagram is sent again: TCP's initial
// retransmission timeout (RFC 6298), and more than the patience of a flow that is to be dropped.
const repeatAfter = time.Second

// repeat calls send again and again, until stop is called.
func repeat(send func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(repeatAfter)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				send()
			}
		}
	}()
	return func() { close(done) }
}

// answerAfter bounds the wait for an answer once the attempt has arrived at an endpoint. A machine that is slow, such
// as an emulated one, takes longer than the patience of a flow that may be dropped.
const answerAfter = 2 * time.Second

// untilAnswered reads from conn. If its deadline passes although the attempt has arrived at an endpoint, the answer is
// under way, and it reads again.
func (a *attempt) untilAnswered(conn net.Conn, read func() error) error {
	err := read()
	if _, arrived := a.arrived.find(a.token); isTimeout(err) && arrived {
		conn.SetReadDeadline(time.Now().Add(answerAfter))
		err = read()
	}
	return err
}

func (a *attempt) boundIP() net.IP {
	if !a.bound {
		return nil
	}
	return a.from.AsSlice()
}

func (a *attempt) readAnswer(conn net.Conn) outcome {
	conn.SetReadDeadline(time.Now().Add(a.patience))
	buffer := make([]byte, 256)
	var n int
	err := a.untilAnswered(conn, func() (err error) {
		n, err = conn.Read(buffer)
		return err
	})
	if err != nil {
		return a.explain(err, "was connected and got no answer")
	}
	reply, err := parseAnswer(string(buffer[:n]))
	if err != nil {
		return broken("%v", err)
	}
	return outcome{kind: answered, local: addrPort(conn.LocalAddr()), answer: reply}
}

// explain finds out what is behind a socket's error. without describes a refusal that no
// ICMP message announced.
func (a *attempt) explain(err error, without string) outcome {
	if errors.Is(err, os.ErrDeadlineExceeded) || isTimeout(err) {
		return a.silence()
	}
	if errors.Is(err, unix.EADDRINUSE) {
		return broken("source port %d is taken", a.port)
	}
	select {
	case n := <-a.notices:
		return n.outcome()
	case <-time.After(a.patience): // the raw socket gets the message first, so this is only about being scheduled
		return broken("%s: %v", without, err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// silence is the end of an attempt that ran out of patience.
func (a *attempt) silence() outcome {
	select {
	case n := <-a.notices:
		return n.outcome()
	default:
		return outcome{kind: silent}
	}
}

func (n notice) outcome() outcome {
	if n.kind == portUnreachable {
		return outcome{kind: refused, detail: n.text + " from " + n.from.String()}
	}
	return broken("got %s from %s", n.text, n.from)
}

// sourceTowards asks the kernel which source address it would choose; no packet is sent.
func sourceTowards(to netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return addrPort(conn.LocalAddr()).Addr(), nil
}
