package takeover

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"golang.org/x/sys/unix"
)

const (
	// patience bounds the time of a connection on a busy machine. It is no measure of a gap: a packet
	// that got lost shows as a retransmission, and a wrong rule as a refusal or a wrong endpoint.
	patience = 20 * time.Second
	// silence is the wait of a client that must not get through.
	silence = 100 * time.Millisecond
	// enough is the number of connections that each stream makes before a change, and after it.
	enough = 30
	// unlucky bounds the connections that may go wrong in one exchange of rulesets. The kernel lets a packet that is on
	// its way through the old rules at that very instant look into the new, or emptied, maps: it cost a connection
	// in 2 of 544 exchanges before there were temporary tables, and going back to kube-proxy has none.
	unlucky = 1
)

// errMoved is about a client that did not keep its endpoint, despite session affinity.
var errMoved = errors.New("the client has moved")

// outcome is the required result of every connection of a stream.
type outcome int

const (
	served outcome = iota
	refused
	dropped
)

// stream is a client that dials one address again and again, each time from another port.
type stream struct {
	from    *lab.Host
	network string
	to      string
	want    outcome
	// endpoints are the addresses that the connections may reach.
	endpoints []string
	// sticky says that all connections must end at the same endpoint, which is at reached, unless moving.
	sticky  bool
	reached atomic.Pointer[string]
	moving  atomic.Bool

	made atomic.Int64
}

func (s *stream) String() string { return fmt.Sprintf("%s to %s %s", s.from.Name, s.network, s.to) }

// run dials until stop is closed, and reports each connection that did not become what it must.
func (s *stream) run(stop <-chan struct{}, report func(error)) error {
	return s.from.Do(func() error {
		for {
			select {
			case <-stop:
				return nil
			case <-time.After(2 * time.Millisecond):
			}
			if err := s.once(); err != nil {
				report(fmt.Errorf("%s, connection %d: %w", s, s.made.Load()+1, err))
			}
			s.made.Add(1)
		}
	})
}

func (s *stream) once() error {
	switch s.want {
	case refused:
		conn, err := net.DialTimeout(s.network, s.to, patience)
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("%v, want it refused", err)
		}
		return nil
	case dropped:
		conn, err := net.DialTimeout(s.network, s.to, silence)
		if err == nil {
			conn.Close()
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			return fmt.Errorf("%v, want silence", err)
		}
		return nil
	}
	c, err := s.dial()
	if err == nil {
		c.close()
	}
	return err
}

// connection is one that an endpoint of the right Service answered.
type connection struct {
	net.Conn
	lines *bufio.Reader
	echos atomic.Int64
}

func (s *stream) dial() (*connection, error) {
	conn, err := net.DialTimeout(s.network, s.to, patience)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, lines: bufio.NewReader(conn)}
	if err := s.check(c); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (s *stream) check(c *connection) error {
	if lost := retransmitted(c.Conn); lost > 0 {
		return fmt.Errorf("%d packets were lost before it was there", lost)
	}
	reached, err := c.ask("hello\n")
	if err != nil {
		return err
	}
	if !slices.Contains(s.endpoints, reached) {
		return fmt.Errorf("it reached %s, want one of %v", reached, s.endpoints)
	}
	if before := s.reached.Swap(&reached); s.sticky && !s.moving.Load() && before != nil && *before != reached {
		return fmt.Errorf("%w: it reached %s, and the one before %s", errMoved, reached, *before)
	}
	return nil
}

// retransmitted returns how many packets of a TCP connection the client's kernel had to send again.
func retransmitted(conn net.Conn) uint32 {
	raw, ok := conn.(*net.TCPConn)
	if !ok {
		return 0
	}
	access, err := raw.SyscallConn()
	if err != nil {
		return 0
	}
	var count uint32
	_ = access.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			count = info.Total_retrans
		}
	})
	return count
}

// ask sends a line and returns the endpoint's answer, which is its address.
func (c *connection) ask(line string) (string, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte(line)); err != nil {
		return "", err
	}
	answer, err := c.lines.ReadString('\n')
	return strings.TrimSuffix(answer, "\n"), err
}

// keepAsking uses the connection until stop is closed. The endpoint must stay the same.
func (c *connection) keepAsking(stop <-chan struct{}) error {
	var endpoint string
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(2 * time.Millisecond):
		}
		reached, err := c.ask("still here\n")
		if err != nil {
			return fmt.Errorf("after %d lines: %w", c.echos.Load(), err)
		}
		if endpoint == "" {
			endpoint = reached
		}
		if reached != endpoint {
			return fmt.Errorf("it moved from %s to %s", endpoint, reached)
		}
		c.echos.Add(1)
	}
}

// close ends a TCP connection with a reset, which leaves no state behind that would be in the way of more.
func (c *connection) close() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Conn.Close()
}
