package stress

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// every is the time between two datagrams of one client. Some fifty clients send at once: a machine
// that is too slow for that loses some of them.
var every = flag.Duration("datagram-every", 10*time.Millisecond, "time between two datagrams of one UDP client")

// answerDatagrams answers every datagram with the pod's name and what it said.
func answerDatagrams(t *testing.T, pod *lab.Host, at netip.AddrPort) {
	t.Helper()
	lab.AnswerUDP(t, pod, at, func(datagram []byte) []byte { return fmt.Appendf(nil, "%s %s", pod.Name, datagram) })
}

// udpClient sends numbered datagrams from one socket and remembers who answered each.
type udpClient struct {
	name   string
	conn   *net.UDPConn
	dialed netip.AddrPort
	// stop and stopped end keepSending.
	stop, stopped chan struct{}

	// mu guards what follows.
	mu sync.Mutex
	// sent counts the datagrams that the kernel took.
	sent     int
	refused  int
	answered map[int]string
}

func dialUDP(t *testing.T, from *lab.Host, to netip.AddrPort) *udpClient {
	t.Helper()
	c := &udpClient{name: fmt.Sprintf("%s to %s", from.Name, to), dialed: to, stop: make(chan struct{}), stopped: make(chan struct{}), answered: map[int]string{}}
	if err := from.Do(func() (err error) {
		c.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	lab.LongQueue(t, c.conn)
	go c.listen()
	return c
}

// source returns the source address of the datagrams.
func (c *udpClient) source() netip.AddrPort { return c.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (c *udpClient) listen() {
	for {
		b := make([]byte, 64)
		n, err := c.conn.Read(b)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			c.refuse()
			continue
		}
		var who string
		var number int
		if _, err := fmt.Sscan(string(b[:n]), &who, &number); err != nil {
			who = err.Error()
		}
		c.mu.Lock()
		c.answered[number] += who
		c.mu.Unlock()
	}
}

// send sends the next datagram. After a refusal the kernel takes none but tells of that; then
// the number is sent the next time.
func (c *udpClient) send() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := fmt.Fprint(c.conn, c.sent); err != nil {
		c.refused++
		return
	}
	c.sent++
}

func (c *udpClient) refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused++
}

// keepSending sends datagrams until stop is closed.
func (c *udpClient) keepSending() {
	defer close(c.stopped)
	tick := time.NewTicker(*every)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
			c.send()
		}
	}
}

// expectNone checks that nobody answers what the clients send from now on.
func expectNone(t *testing.T, clients []*udpClient) {
	t.Helper()
	from, tried := mark(clients), map[*udpClient]int{}
	for _, c := range clients {
		tried[c] = c.tried()
	}
	for _, c := range clients {
		c.eventually(t, func() bool { return c.tried() >= tried[c]+enough })
		got := c.answers(from[c], c.count())
		delete(got, "")
		if len(got) > 0 {
			t.Errorf("%s: still answered: %v", c.name, got)
		}
	}
}

// tried returns the number of datagrams that were sent, and of refusals.
func (c *udpClient) tried() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent + c.refused
}

// count returns the number of datagrams sent so far: later ones have at least this number.
func (c *udpClient) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// answers returns who answered the datagrams from one number up to another, each once.
func (c *udpClient) answers(from, to int) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	who := map[string]int{}
	for number := from; number < to; number++ {
		who[c.answered[number]]++
	}
	return who
}

// await waits until all datagrams from one number up to another were answered.
func (c *udpClient) await(t *testing.T, from, to int) {
	t.Helper()
	c.eventually(t, func() bool { return c.answers(from, to)[""] == 0 })
}

func (c *udpClient) awaitSent(t *testing.T, n int) {
	t.Helper()
	c.eventually(t, func() bool { return c.count() >= n })
}

// awaitRefusal waits until the client is refused once more.
func (c *udpClient) awaitRefusal(t *testing.T) {
	t.Helper()
	refused := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.refused
	}
	before := refused()
	c.eventually(t, func() bool { return refused() > before })
}

func (c *udpClient) eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: sent %d datagrams, and these were answered: %v", c.name, c.count(), c.answers(0, c.count()))
		}
	}
}
