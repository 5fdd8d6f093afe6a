package stress

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// greet serves every address of the host: it tells each client where it arrived, and then
// sends back what it gets.
func greet(t *testing.T, h *lab.Host) {
	t.Helper()
	lab.ServeTCP(t, h, fmt.Sprint(":", targetPort), func(conn net.Conn) {
		fmt.Fprintln(conn, addrOf(conn.LocalAddr()))
		lab.Echo(conn)
	})
}

func addrOf(a net.Addr) netip.Addr { return netip.MustParseAddrPort(a.String()).Addr().Unmap() }

// tcpClient dials one address from one host.
type tcpClient struct {
	from *lab.Host
	// source is the address to dial from; the zero Addr leaves that to the kernel.
	source netip.Addr
	to     netip.AddrPort
}

func (c tcpClient) String() string { return fmt.Sprintf("%s to %s", c.from.Name, c.to) }

// connection is one that was greeted.
type connection struct {
	net.Conn
	lines   *bufio.Reader
	reached netip.Addr
}

// open must be called inside the host.
func (c tcpClient) open() (*connection, error) {
	dialer := net.Dialer{Timeout: patience}
	if c.source.IsValid() {
		dialer.LocalAddr = &net.TCPAddr{IP: c.source.AsSlice()}
	}
	conn, err := dialer.Dial("tcp", c.to.String())
	if err != nil {
		return nil, err
	}
	opened := &connection{Conn: conn, lines: bufio.NewReader(conn)}
	line, err := opened.read()
	if err == nil {
		opened.reached, err = netip.ParseAddr(line)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("no greeting: %w", err)
	}
	return opened, nil
}

func (c *connection) read() (string, error) {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	line, err := c.lines.ReadString('\n')
	return line[:max(0, len(line)-1)], err
}

// echo sends a line and gets it back.
func (c *connection) echo(line string) error {
	if _, err := fmt.Fprintln(c, line); err != nil {
		return err
	}
	got, err := c.read()
	if err == nil && got != line {
		err = fmt.Errorf("sent %q, got %q back", line, got)
	}
	return err
}

// abort ends the connection with a reset, which leaves no state behind that would be in the
// way of thousands more.
func (c *connection) abort() {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// traffic is the connections that run in the background.
type traffic struct {
	stop    chan struct{}
	running sync.WaitGroup
	// progress gets a value for each short connection, as long as there is room.
	progress chan struct{}

	// mu guards what follows while traffic is running.
	mu       sync.Mutex
	short    int
	slowest  time.Duration
	echoes   int
	failures []error
}

func newTraffic() *traffic {
	return &traffic{stop: make(chan struct{}), progress: make(chan struct{}, 1000)}
}

// every calls do inside the client's host again and again, until traffic ends or do fails.
func (tr *traffic) every(pause time.Duration, c tcpClient, do func() error) {
	tr.running.Add(1)
	go func() {
		defer tr.running.Done()
		err := c.from.Do(func() error {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for {
				select {
				case <-tr.stop:
					return nil
				case <-tick.C:
					if err := do(); err != nil {
						return err
					}
				}
			}
		})
		if err != nil {
			tr.fail(fmt.Errorf("%s: %w", c, err))
		}
	}()
}

func (tr *traffic) fail(err error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.failures = append(tr.failures, err)
}

func (tr *traffic) countShort(took time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.short++
	tr.slowest = max(tr.slowest, took)
	select {
	case tr.progress <- struct{}{}:
	default:
	}
}

func (tr *traffic) countEcho() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.echoes++
}

// await waits for so many short connections, and returns the first failure.
func (tr *traffic) await(connections int) error {
	for range connections {
		select {
		case <-tr.progress:
		case <-time.After(patience):
			return errors.New("nobody connects any more")
		}
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.failures) > 0 {
		return tr.failures[0]
	}
	return nil
}

// end lets all connections come to their end.
func (tr *traffic) end() {
	close(tr.stop)
	tr.running.Wait()
}
