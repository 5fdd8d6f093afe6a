package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

// exchange sends datagrams from one socket in each family all the time, and never gives up.
type exchange struct {
	c        *cluster
	families []*familyExchange
}

// familyExchange is one IP family of an exchange.
type familyExchange struct {
	to   target
	conn net.Conn

	// mu guards who answered last, empty for nobody, and how often in a row.
	mu     sync.Mutex
	last   string
	streak int
}

// certain is the number of datagrams in a row that rules out a late answer.
const certain = 5

// keepsSending begins to send to an address, until the test ends.
func (cl *client) keepsSending(to address) *exchange {
	cl.c.t.Helper()
	x := &exchange{c: cl.c}
	var ended sync.WaitGroup
	for _, to := range cl.targets(to) {
		conn, err := to.dial(await.Patience)
		if err != nil {
			cl.c.t.Fatal(err)
		}
		v := &familyExchange{to: to, conn: conn}
		x.families = append(x.families, v)
		ended.Go(v.run)
	}
	cl.c.t.Cleanup(func() {
		for _, v := range x.families {
			v.conn.Close()
		}
		ended.Wait()
	})
	return x
}

// hears expects that a pod, and no other, answers from now on.
func (t *exchange) hears(p *pod) {
	t.c.t.Helper()
	t.expect(p.name)
}

// hearsNobody expects that no pod answers from now on.
func (t *exchange) hearsNobody() {
	t.c.t.Helper()
	t.expect("")
}

func (t *exchange) expect(pod string) {
	t.c.t.Helper()
	for _, v := range t.families {
		v.restart()
		t.c.eventually(fmt.Sprintf("%s, sending to %s all the time, hears %q", v.to.client.name, v.to, pod), func() error {
			v.mu.Lock()
			defer v.mu.Unlock()
			if v.last != pod || v.streak < certain {
				return fmt.Errorf("hears %q", v.last)
			}
			return nil
		})
	}
}

// run sends and listens until the connection is closed.
func (v *familyExchange) run() {
	for {
		v.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		text, err := v.to.hello(v.conn)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var a answer
		if err == nil {
			a, _ = parseAnswer(text)
		}
		v.heard(a.pod)
		time.Sleep(10 * time.Millisecond)
	}
}

func (v *familyExchange) heard(pod string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last != pod {
		v.streak = 0
	}
	v.last = pod
	v.streak++
}

// restart makes only later datagrams count.
func (v *familyExchange) restart() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.streak = 0
}

// lasting is one TCP connection in each family that stays open.
type lasting struct {
	c     *cluster
	conns []net.Conn
	read  []*bufio.Reader
	// pods has the name of the pod that answered, for each connection.
	pods []string
}

// opens connects for as long as the test runs.
func (cl *client) opens(to address) *lasting {
	cl.c.t.Helper()
	l := &lasting{c: cl.c}
	for _, to := range cl.targets(to) {
		conn, err := to.dial(await.Patience)
		if err != nil {
			cl.c.t.Fatal(err)
		}
		cl.c.t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(await.Patience))
		reader := bufio.NewReader(conn)
		hello, err := reader.ReadString('\n')
		if err != nil {
			cl.c.t.Fatal(err)
		}
		a, err := parseAnswer(hello)
		if err != nil {
			cl.c.t.Fatal(err)
		}
		l.conns, l.read, l.pods = append(l.conns, conn), append(l.read, reader), append(l.pods, a.pod)
	}
	return l
}

// works expects that what is sent comes back, in each family.
func (l *lasting) works() {
	l.c.t.Helper()
	for i, conn := range l.conns {
		conn.SetDeadline(time.Now().Add(await.Patience))
		if _, err := io.WriteString(conn, "still there?\n"); err != nil {
			l.c.t.Fatalf("connection to %s through %s: %v", l.pods[i], conn.RemoteAddr(), err)
		}
		if line, err := l.read[i].ReadString('\n'); err != nil || line != "still there?\n" {
			l.c.t.Fatalf("connection to %s through %s: %q came back, %v", l.pods[i], conn.RemoteAddr(), line, err)
		}
	}
}

// getsBack expects that a pod sends back size bytes.
func (cl *client) getsBack(to address, size int) {
	cl.c.t.Helper()
	sent := strings.Repeat("o", size)
	cl.eventually(to, "gets everything back", func(to target) error {
		conn, err := to.dial(answerTimeout)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(answerTimeout))
		if _, err := io.WriteString(conn, sent); err != nil {
			return err
		}
		var back []byte
		buffer := make([]byte, 1<<16)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return fmt.Errorf("%d bytes came back: %w", len(back), err)
			}
			if back = append(back, buffer[:n]...); strings.HasSuffix(string(back), "\n"+sent) {
				return nil
			}
		}
	})
}
