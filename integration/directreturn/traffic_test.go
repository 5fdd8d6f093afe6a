package directreturn

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
)

// flows is the number of open connections to each Service, of each family and protocol.
const flows = 250

const (
	// patience bounds the wait for the answer of a connection. Until the router and the nodes know that a node died,
	// packets are lost.
	patience = 15 * time.Second
	// directPatience is the bound for a connection with direct return. It must not be lost unless its endpoint's node
	// died, so only then, and in a test that fails, is the wait so long.
	directPatience = 40 * time.Second
	// again is the time after which a datagram without an answer is sent again.
	again = time.Second
	// pause is the time between two questions on a connection.
	pause = 2 * time.Second
)

// connection is a connection, or a UDP flow, of the client.
type connection struct {
	net.Conn
	in      *bufio.Reader
	network string
	from    netip.Addr
	// pod and source are the endpoint that answered and the address that it saw.
	pod    string
	source netip.AddrPort
	// patience bounds the wait for an answer.
	patience time.Duration
	// asked is the number of the last question.
	asked int
	// lost says that it does not answer any more, or was not opened yet, and why says how it was lost.
	lost bool
	why  string
}

type connections []*connection

// open opens connections from many addresses of the client.
func (f *fabric) open(t testing.TB, s service, networks ...string) (open connections) {
	t.Helper()
	for _, family := range families {
		for _, network := range networks {
			for i := range flows {
				open = append(open, &connection{network: network, from: clientAddr(family, i%clients), patience: s.patience(), lost: true})
			}
		}
	}
	t.Cleanup(func() {
		for _, c := range open {
			if c.Conn != nil {
				c.Close()
			}
		}
	})
	f.reopen(t, s, open)
	return open
}

func (s service) patience() time.Duration {
	if s.direct {
		return directPatience
	}
	return patience
}

// reopen opens the lost ones anew, and asks each endpoint who it is and whom it sees.
func (f *fabric) reopen(t testing.TB, s service, cs connections) {
	t.Helper()
	var opened connections
	must(t, f.client.Do(func() error {
		for _, c := range cs {
			if !c.lost {
				continue
			}
			if c.Conn != nil {
				c.Close()
			}
			if err := c.dial(s); err != nil {
				return err
			}
			opened = append(opened, c)
		}
		return nil
	}))
	failed := opened.each(func(c *connection) error {
		var err error
		c.pod, c.source, err = c.ask()
		return err
	})
	if len(failed) > 0 {
		t.Fatalf("%d of %d connections to %s do not come about, the first with: %v", len(failed), len(opened), s.name, failed[0])
	}
}

// dial connects. It runs in the client's namespace.
func (c *connection) dial(s service) error {
	to := netip.AddrPortFrom(s.addr(model.FamilyOf(c.from)), 80)
	conn, err := dial(c.network, netip.AddrPortFrom(c.from, 0), to.String())
	if err != nil {
		return err
	}
	c.Conn, c.in, c.lost = conn, bufio.NewReader(conn), false
	return nil
}

func dial(network string, from netip.AddrPort, to string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: patience, KeepAlive: -1} // tests count packets
	if network == "udp" {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(from)
	} else {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	return dialer.Dial(network, to)
}

// each calls do for all connections at once, and returns the errors.
func (cs connections) each(do func(*connection) error) (failed []error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, c := range cs {
		group.Go(func() {
			if err := do(c); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, fmt.Errorf("%s from %s: %w", c.network, c.LocalAddr(), err))
			}
		})
	}
	group.Wait()
	return failed
}

// ask asks who answers and whom it sees. Datagrams are sent several times.
func (c *connection) ask() (pod string, source netip.AddrPort, err error) {
	c.asked++
	question, answer, begin := fmt.Sprintf(" %d\n", c.asked), "", time.Now()
	longest := max(c.patience, patience)
	wait := longest
	if c.network == "udp" {
		wait = again
	}
	for timeout := net.Error(nil); ; err = nil {
		if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil { // a busy machine may come to the write later
			return "", source, err
		}
		if _, err := io.WriteString(c, question); err != nil {
			return "", source, err
		}
		for !strings.HasSuffix(answer, question) && err == nil { // nor the second answer to an earlier one
			answer, err = c.in.ReadString('\n')
		}
		if err == nil {
			break
		}
		if !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(begin) > longest-again {
			return "", source, err
		}
	}
	pod, rest, _ := strings.Cut(answer, " ")
	source, err = netip.ParseAddrPort(strings.TrimSuffix(rest, question))
	return pod, source, err
}

// outcome has the connections that no longer answered, or whose answer was from another endpoint.
type outcome struct {
	gone connections
	of   int
	// longest is the longest time until an answer of a connection that was not lost.
	longest time.Duration
	// dropped is the number of packets that the kernel dropped meanwhile because a processor's queue was full. All
	// namespaces share the queues.
	dropped uint64
}

func (o outcome) lost() int { return len(o.gone) }

func (o outcome) String() string {
	return fmt.Sprintf("%d of %d lost (TCP %d, UDP %d), longest wait %v, %d packets dropped",
		o.lost(), o.of, o.gone.count("tcp"), o.gone.count("udp"), o.longest.Round(time.Millisecond), o.dropped)
}

// count counts the connections of a network.
func (cs connections) count(network string) (n int) {
	for _, c := range cs {
		if c.network == network {
			n++
		}
	}
	return n
}

// during asks on all connections again and again while do runs, and once after it.
func (cs connections) during(do func()) outcome {
	var longest atomic.Int64
	dropped := lab.DroppedByQueues()
	done, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		cs.each(func(c *connection) error {
			for last := false; !last; {
				select {
				case <-done:
					last = true
				case <-time.After(pause):
				}
				begin := time.Now()
				pod, _, err := c.ask()
				if err == nil && pod != c.pod {
					err = fmt.Errorf("%s answers", pod)
				}
				if err != nil {
					c.lost, c.why = true, fmt.Sprintf("%s from %s to %s after %v: %v", c.network, c.LocalAddr(), c.pod, time.Since(begin).Round(time.Millisecond), err)
					return nil
				}
				took := int64(time.Since(begin))
				for old := longest.Load(); took > old && !longest.CompareAndSwap(old, took); old = longest.Load() {
				}
			}
			return nil
		})
	}()
	do()
	close(done)
	<-asked
	o := outcome{of: len(cs), longest: time.Duration(longest.Load()), dropped: lab.DroppedByQueues() - dropped}
	for _, c := range cs {
		if c.lost {
			o.gone = append(o.gone, c)
		}
	}
	return o
}

// kept counts the connections whose endpoint sees the client's own address.
func (cs connections) kept() (kept int) {
	for _, c := range cs {
		if c.source == c.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort() {
			kept++
		}
	}
	return kept
}

// byPod counts the connections of each endpoint.
func (cs connections) byPod() map[string]int {
	load := map[string]int{}
	for _, c := range cs {
		load[c.pod]++
	}
	return load
}

// bulk is the number of bytes with which a pod answers the question "bulk".
const bulk = 64 << 20

// datagrams counts the datagrams that each pod got and that ask for no answer.
type datagrams [nodes + 1]atomic.Int64

// startPods makes every pod answer each line with its name and the address that it sees, and "bulk" with much.
func (f *fabric) startPods(t testing.TB) (counted *datagrams) {
	t.Helper()
	counted = &datagrams{}
	for _, n := range f.nodes[2:] {
		lab.ServeTCP(t, n.pod, ":8080", func(c net.Conn) {
			_ = c.(*net.TCPConn).SetKeepAlive(false) // tests count packets
			for in := bufio.NewScanner(c); in.Scan(); {
				switch in.Text() {
				case "much":
					fmt.Fprintln(c, strings.Repeat("x", 1<<16))
					continue
				case "bulk":
					_, _ = c.Write(make([]byte, bulk))
					continue
				}
				fmt.Fprintf(c, "%s %s%s\n", n.pod.Name, unmapped(c.RemoteAddr()), in.Text())
			}
		})
		packets, err := n.pod.AnswerUDP(netip.MustParseAddrPort("[::]:8080"), func(datagram []byte, from netip.AddrPort) []byte {
			if datagram[0] != ' ' {
				counted[n.number].Add(1)
				return nil
			}
			return fmt.Appendf(nil, "%s %s%s", n.pod.Name, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), datagram)
		})
		must(t, err)
		t.Cleanup(func() { packets.Close() })
		lab.LongQueue(t, packets)
	}
	return counted
}

func unmapped(a net.Addr) netip.AddrPort {
	ap := a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
