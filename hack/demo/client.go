package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// patience bounds each wait of a client. A client tries nothing twice: the kernel sends a
// lost packet again after a second, and so shows the loss.
const patience = 900 * time.Millisecond

// client opens connections to one Service address.
type client struct {
	host *lab.Host
	// network is "tcp" or "udp".
	network string
	to      netip.AddrPort
}

// reply is the answer of a server.
type reply struct {
	// reached is the endpoint, seen the client's address as the endpoint saw it, own the client's own address.
	reached     netip.AddrPort
	seen, own   netip.Addr
	answered    time.Time
	conn        net.Conn
	fromTheConn *bufio.Reader
}

// ask opens a connection, gets the reply and closes. It must be called inside the host.
func (c client) ask(patience time.Duration) (reply, error) {
	r, err := c.open(patience)
	if err == nil {
		r.close()
	}
	return r, err
}

// open leaves the connection open for more.
func (c client) open(patience time.Duration) (reply, error) {
	conn, err := net.DialTimeout(c.network, c.to.String(), patience)
	if err != nil {
		return reply{}, err
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return reply{}, err
	}
	r := reply{conn: conn, fromTheConn: bufio.NewReader(conn), own: addrPort(conn.LocalAddr()).Addr()}
	if c.network == "udp" {
		fmt.Fprintln(conn, "hello")
	}
	if err := r.read(); err != nil {
		r.close()
		return r, err
	}
	return r, nil
}

func (r *reply) read() error {
	line, err := r.fromTheConn.ReadString('\n')
	if err != nil {
		return err
	}
	r.answered = time.Now()
	var reached, seen string
	if _, err := fmt.Sscan(line, &reached, &seen); err != nil {
		return fmt.Errorf("%q is no answer: %w", line, err)
	}
	at, err := netip.ParseAddrPort(reached)
	if err != nil {
		return err
	}
	peer, err := netip.ParseAddrPort(seen)
	if err != nil {
		return err
	}
	r.reached, r.seen = at, peer.Addr().Unmap()
	return nil
}

// close ends a TCP connection with a reset: it leaves no state behind that would be in the
// way of thousands more.
func (r *reply) close() {
	if tcp, ok := r.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	r.conn.Close()
}

func addrPort(addr net.Addr) netip.AddrPort {
	a := netip.MustParseAddrPort(addr.String())
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// burst opens n connections one after the other.
func (c client) burst(ctx context.Context, n int) (*tally, error) {
	t := newTally()
	err := c.host.Do(func() error {
		for range n {
			if err := ctx.Err(); err != nil {
				return err
			}
			r, err := c.ask(patience)
			if err != nil {
				return fmt.Errorf("%s to %s: %w", c.host.Name, c.to, err)
			}
			t.add(r)
		}
		return nil
	})
	return t, err
}

// outcomeOfOne returns how a single connection ends. It waits for the kernel's second try:
// with all hosts on one machine the refusal of an IPv6 SYN arrives while the client is still
// sending it, and TCP then only takes note of the refusal of the next one, a second later.
func (c client) outcomeOfOne() (took time.Duration, outcome error) {
	begin := time.Now()
	outcome = c.host.Do(func() error {
		_, err := c.ask(3 * patience)
		return err
	})
	return time.Since(begin), outcome
}

// lasting is a TCP connection that is used all through the change.
type lasting struct{ reply }

// openLasting connects to the Service until it gets a pod that stays.
func (d *demo) openLasting(ctx context.Context, leaving pod) (lasting, error) {
	c := client{d.lab.Client, "tcp", webClusterIP[0]}
	for range 100 {
		var l lasting
		err := d.lab.Client.Do(func() (err error) {
			l.reply, err = c.open(patience)
			return err
		})
		if err := errors.Join(ctx.Err(), err); err != nil {
			return l, err
		}
		if !leaving.has(l.reached.Addr()) {
			return l, nil
		}
		l.close()
	}
	return lasting{}, fmt.Errorf("100 connections to %s all reached %s", c.to, leaving.name)
}

// echoResult has the numbers of lines that were sent and that came back.
type echoResult struct {
	sent, returned int
	err            error
}

// keepUsing sends a line every 20 ms and waits for it to come back, until ctx ends or it does not.
func (l lasting) keepUsing(ctx context.Context) <-chan echoResult {
	done := make(chan echoResult, 1)
	go func() {
		var result echoResult
		for result.err == nil && sleep(ctx, 20*time.Millisecond) == nil {
			result.sent++
			if result.err = l.echo(result.sent); result.err == nil {
				result.returned++
			}
		}
		done <- result
	}()
	return done
}

func (l lasting) echo(number int) error {
	if err := l.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	sent := fmt.Sprintf("line %d\n", number)
	if _, err := l.conn.Write([]byte(sent)); err != nil {
		return err
	}
	got, err := l.fromTheConn.ReadString('\n')
	if err == nil && got != sent {
		err = fmt.Errorf("sent %q, got %q back", sent, got)
	}
	return err
}
