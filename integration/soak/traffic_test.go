package soak

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// echoPort is the port on which anchors and the flapping Service's pods echo, over TCP and UDP.
const echoPort = 9000

// traffic is the clients: each flow of testdata/flows.yaml again and again, TCP connections that last, and UDP sockets
// that keep their port.
type traffic struct {
	lab     *lab.Lab
	runner  *flows.Runner
	flows   []flows.Flow
	stop    chan struct{}
	clients sync.WaitGroup

	// mu guards what follows.
	mu       sync.Mutex
	excuses  []span
	failures []failure
	rounds   int // of short connections
	lines    int // over lasting TCP connections
	answers  int // to UDP sockets with a fixed port
	lost     int // datagrams to steady endpoints that nothing excuses
	excused  int // failures while the rules were broken by somebody else
}

// answersForOneLost is the number of datagrams to steady endpoints of which one may be lost.
const answersForOneLost = 2000

var errLost = errors.New("a datagram was lost")

type span struct{ begin, end time.Time }

// A failure is a client's, at some time between begin and end.
type failure struct {
	span
	err error
}

// grace is the time after a repair in which clients may still fail: a UDP flow that was never translated is removed
// once connection tracking was searched, and TCP sends a lost segment again.
const grace = 5 * time.Second

func newTraffic(t *testing.T, l *lab.Lab) *traffic {
	t.Helper()
	data, err := os.ReadFile("testdata/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	endpoints, err := flows.Endpoints(data)
	if err != nil {
		t.Fatal(err)
	}
	for i := range endpoints {
		// These are served here: what echoes has to keep its connections.
		endpoints[i].Ports = slices.DeleteFunc(endpoints[i].Ports, func(p flows.Port) bool { return p.Number == echoPort })
	}
	tr := &traffic{lab: l, stop: make(chan struct{})}
	if tr.flows, err = flows.Load("testdata/flows.yaml"); err != nil {
		t.Fatal(err)
	}
	if tr.runner, err = flows.NewRunner(l, endpoints); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.runner.Close() })
	for _, e := range endpoints {
		at := netip.AddrPortFrom(e.Addr, echoPort)
		lab.ServeTCP(t, l.HostOf(e.Addr), at.String(), lab.Echo)
		lab.AnswerUDP(t, l.HostOf(e.Addr), at, slices.Clone)
	}
	for _, n := range flappers {
		addrs := []netip.Addr{netip.MustParseAddr(podAddress("IPv4", n)), netip.MustParseAddr(podAddress("IPv6", n))}
		pod, err := l.AddPod(fmt.Sprint("flapper-", n), addrs...)
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range addrs {
			lab.AnswerUDP(t, pod, netip.AddrPortFrom(addr, echoPort), slices.Clone)
		}
	}
	return tr
}

// start lets all clients run.
func (tr *traffic) start(t *testing.T) {
	t.Helper()
	for _, flow := range tr.flows {
		tr.every(200*time.Millisecond, func() error {
			err := tr.runner.Run([]flows.Flow{flow})
			if err == nil {
				tr.count(&tr.rounds)
			}
			return err
		})
	}
	for _, c := range []struct {
		from *lab.Host
		to   string
	}{{tr.lab.Client, "10.96.0.14:80"}, {tr.lab.Node, "[fd00:10:96::14]:80"}, {tr.lab.Outside, "192.0.2.14:80"}, {tr.lab.Outside, "[fd00:1::1]:30041"}} {
		tr.lastingTCP(t, c.from, c.to)
	}
	for _, c := range []struct {
		from *lab.Host
		to   string
	}{{tr.lab.Client, "10.96.0.14:80"}, {tr.lab.Outside, "[2001:db8:192::14]:80"}, {tr.lab.Node, "10.96.0.14:80"}} {
		tr.fixedUDP(t, c.from, c.to, true)
	}
	for i, frontend := range flappingFrontends {
		tr.fixedUDP(t, []*lab.Host{tr.lab.Client, tr.lab.Node, tr.lab.Outside, tr.lab.Outside}[i], frontend.String(), false)
	}
}

// every calls do again and again until the traffic ends, and notes failures.
func (tr *traffic) every(pause time.Duration, do func() error) {
	tr.clients.Go(func() {
		for {
			begin := time.Now()
			if err := do(); err != nil {
				tr.fail(begin, err)
			}
			select {
			case <-tr.stop:
				return
			case <-time.After(pause):
			}
		}
	})
}

func (tr *traffic) count(n *int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	*n++
}

func (tr *traffic) fail(begin time.Time, err error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.failures = append(tr.failures, failure{span{begin, time.Now()}, err})
}

// excuse says that somebody else had broken the rules between begin and end.
func (tr *traffic) excuse(begin, end time.Time) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.excuses = append(tr.excuses, span{begin, end.Add(grace)})
}

// takeFailures returns the failures so far that nothing excuses.
func (tr *traffic) takeFailures() (errs []error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, f := range tr.failures {
		if tr.isExcused(f.span) {
			tr.excused++
			continue
		}
		if errors.Is(f.err, errLost) {
			tr.lost++
			continue
		}
		errs = append(errs, fmt.Errorf("%s to %s: %w", f.begin.Format(time.TimeOnly+".000"), f.end.Format("05.000"), f.err))
	}
	tr.failures = nil
	return errs
}

func (tr *traffic) isExcused(f span) bool {
	for _, e := range tr.excuses {
		if f.begin.Before(e.end) && f.end.After(e.begin) {
			return true
		}
	}
	return false
}

func (tr *traffic) end(t *testing.T) {
	t.Helper()
	close(tr.stop)
	tr.clients.Wait()
	for _, err := range tr.takeFailures() {
		t.Error(err)
	}
	if tr.rounds == 0 || tr.lines == 0 || tr.answers == 0 {
		t.Errorf("some clients did nothing: %s", tr.summary())
	}
	if tr.lost*answersForOneLost > tr.answers {
		t.Errorf("more than one datagram of %d was lost: %s", answersForOneLost, tr.summary())
	}
}

func (tr *traffic) summary() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return fmt.Sprintf("%d rounds of short connections, %d lines over lasting ones, %d answers to fixed UDP ports and %d lost, %d failures while somebody else had broken the rules, %d otherwise",
		tr.rounds, tr.lines, tr.answers, tr.lost, tr.excused, len(tr.failures))
}

// lastingTCP keeps one connection busy. When it breaks that is a failure, and another one is made.
func (tr *traffic) lastingTCP(t *testing.T, from *lab.Host, to string) {
	t.Helper()
	var conn net.Conn
	var lines *bufio.Reader
	t.Cleanup(func() {
		if conn != nil {
			conn.Close()
		}
	})
	sent := 0
	tr.every(100*time.Millisecond, func() (err error) {
		defer func() {
			if err != nil && conn != nil {
				conn.Close()
				conn = nil
				err = fmt.Errorf("lasting connection from %s to %s, after %d lines: %w", from.Name, to, sent, err)
			}
		}()
		if conn == nil {
			if conn, err = dial(from, "tcp", to); err != nil {
				conn = nil
				return err
			}
			lines, sent = bufio.NewReader(conn), 0
		}
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(conn, "%d\n", sent); err != nil {
			return err
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		if line != fmt.Sprintf("%d\n", sent) {
			return fmt.Errorf("sent %d, got %q back", sent, line)
		}
		sent++
		tr.count(&tr.lines)
		return nil
	})
}

// fixedUDP sends datagrams from one socket. With steady endpoints each must be answered, or a repetition: a machine that
// is busy with other tests may lose one in thousands. Otherwise some may be lost with the endpoint that they went to,
// but in the end somebody answers.
func (tr *traffic) fixedUDP(t *testing.T, from *lab.Host, to string, steady bool) {
	t.Helper()
	conn, err := dial(from, "udp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	sent := 0
	exchange := func(patience time.Duration) error {
		sent++
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := fmt.Fprint(conn, sent); err != nil {
			return err
		}
		for buffer := make([]byte, 64); ; {
			n, err := conn.Read(buffer)
			if err != nil {
				return err
			}
			if string(buffer[:n]) == fmt.Sprint(sent) {
				tr.count(&tr.answers)
				return nil
			}
		}
	}
	tr.every(50*time.Millisecond, func() error {
		tries, patience := 20, 500*time.Millisecond
		if steady {
			tries, patience = 3, 5*time.Second
		}
		var errs []error
		for range tries {
			err := exchange(patience)
			if err == nil {
				return nil
			}
			if errs = append(errs, err); steady {
				tr.fail(time.Now().Add(-patience), errLost)
			}
			time.Sleep(50 * time.Millisecond)
		}
		return fmt.Errorf("UDP from %s to %s, steady endpoints %v: no answer to %d datagrams: %w",
			from.Name, to, steady, len(errs), errors.Join(errs[0], errs[len(errs)-1]))
	})
}

func dial(from *lab.Host, network, to string) (conn net.Conn, err error) {
	err = from.Do(func() error {
		conn, err = net.DialTimeout(network, to, 10*time.Second)
		return err
	})
	return conn, err
}
