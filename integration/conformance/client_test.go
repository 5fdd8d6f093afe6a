package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"golang.org/x/sys/unix"
)

// client dials from a host of the lab.
type client struct {
	c    *cluster
	name string
	host *lab.Host
	// from is the address that it insists on; not valid: the kernel chooses.
	from lab.Addrs
}

// How long to wait for an answer that should come, where one may try again, and until silence is silence.
const (
	answerTimeout  = 3 * time.Second
	silenceTimeout = 300 * time.Millisecond
)

// reaches expects that connections end at every one of pods and nowhere else, in each family.
func (cl *client) reaches(to address, pods ...*pod) {
	cl.c.t.Helper()
	var names []string
	for _, p := range pods {
		names = append(names, p.name)
	}
	cl.eventually(to, "reaches "+strings.Join(names, ", "), func(to target) error { return to.spread(names) })
}

// isRefused expects an error instead of a connection.
func (cl *client) isRefused(to address) {
	cl.c.t.Helper()
	cl.eventually(to, "is refused", func(to target) error { return to.fails(unix.ECONNREFUSED, answerTimeout) })
}

// hearsNothing expects that no answer comes at all.
func (cl *client) hearsNothing(to address) {
	cl.c.t.Helper()
	cl.eventually(to, "hears nothing", func(to target) error { return to.fails(os.ErrDeadlineExceeded, silenceTimeout) })
}

// isSeenAsItself expects that pods see the client's own address.
func (cl *client) isSeenAsItself(to address) {
	cl.c.t.Helper()
	cl.isSeen(to, "is seen as itself", func(a answer, local netip.AddrPort) bool { return a.sees == local })
}

// isMasqueraded expects that pods see an address of node1 instead.
func (cl *client) isMasqueraded(to address) {
	cl.c.t.Helper()
	cl.isSeen(to, "is masqueraded", func(a answer, local netip.AddrPort) bool {
		return a.sees.Addr() != local.Addr() && cl.c.lab.Node.Has(a.sees.Addr())
	})
}

func (cl *client) isSeen(to address, how string, right func(a answer, local netip.AddrPort) bool) {
	cl.c.t.Helper()
	cl.eventually(to, how, func(to target) error {
		a, local, err := to.ask(answerTimeout)
		if err == nil && !right(a, local) {
			err = fmt.Errorf("%s saw %s, which is %s", a.pod, a.sees, local)
		}
		return err
	})
}

// gets expects a page of a web server to have a status.
func (cl *client) gets(to address, path string, status int) {
	cl.c.t.Helper()
	cl.eventually(to, fmt.Sprint("gets ", path, " with status ", status), func(to target) error {
		code, _, err := to.get(path)
		if err == nil && code != status {
			err = fmt.Errorf("got %d", code)
		}
		return err
	})
}

// get asks a web server for a page, over a connection of its own.
func (t target) get(path string) (status int, body string, err error) {
	web := http.Client{
		Timeout:   answerTimeout,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: t.client.host.DialContext},
	}
	response, err := web.Get("http://" + t.addr.String() + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, string(content), err
}

// affinityChecks is the number of connections in a row that tell affinity from chance, as in the e2e suite.
const affinityChecks = 15

// sticks expects that connections end at the same one of pods, in each family.
func (cl *client) sticks(to address, pods ...*pod) {
	cl.c.t.Helper()
	cl.eventually(to, "sticks to one pod", func(to target) error {
		first, _, err := to.ask(answerTimeout)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(pods, func(p *pod) bool { return p.name == first.pod }) {
			return fmt.Errorf("reached %s", first.pod)
		}
		for range affinityChecks {
			if next, _, err := to.ask(answerTimeout); err != nil || next.pod != first.pod {
				return fmt.Errorf("reached %s and then %s, %v", first.pod, next.pod, err)
			}
		}
		return nil
	})
}

// target is one address that a client dials.
type target struct {
	client  *client
	network string
	addr    netip.AddrPort
}

func (t target) String() string { return t.addr.String() + "/" + t.network }

func (cl *client) targets(a address) []target {
	cl.c.t.Helper()
	var list []target
	for _, addr := range a.each() {
		list = append(list, target{cl, a.network, addr})
	}
	if len(list) == 0 {
		cl.c.t.Fatalf("%s has no address to dial", cl.name)
	}
	return list
}

// eventually checks both families at the same time: much of it is waiting.
func (cl *client) eventually(to address, what string, check func(target) error) {
	cl.c.t.Helper()
	targets := cl.targets(to)
	failures := make([]error, len(targets))
	var all sync.WaitGroup
	for i, to := range targets {
		all.Go(func() {
			if err := await.Poll(await.Patience, func() error { return check(to) }); err != nil {
				failures[i] = fmt.Errorf("%s, dialling %s, %s: %w", cl.name, to, what, err)
			}
		})
	}
	all.Wait()
	if err := errors.Join(failures...); err != nil {
		cl.c.t.Fatal(err)
	}
}

// spread makes enough connections to meet every one of the pods if all of them serve.
func (t target) spread(pods []string) error {
	missing := slices.Clone(pods)
	for range 4 + 8*len(pods) {
		a, _, err := t.ask(answerTimeout)
		if err != nil {
			return err
		}
		if !slices.Contains(pods, a.pod) {
			return fmt.Errorf("reached %s", a.pod)
		}
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == a.pod })
	}
	if len(missing) > 0 {
		return fmt.Errorf("did not reach %v", missing)
	}
	return nil
}

// fails makes one connection that must fail in a certain way.
func (t target) fails(wanted error, patience time.Duration) error {
	a, _, err := t.ask(patience)
	if errors.Is(err, wanted) {
		return nil
	}
	return fmt.Errorf("reached %q, error %v", a.pod, err)
}

// ask makes one connection, and returns what a pod says and where the connection came from.
func (t target) ask(patience time.Duration) (a answer, local netip.AddrPort, err error) {
	conn, err := t.dial(patience)
	if err != nil {
		return a, local, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	text, err := t.hello(conn)
	if err != nil {
		return a, local, err
	}
	a, err = parseAnswer(text)
	return a, addrPort(conn.LocalAddr()), err
}

// hello gets a pod to answer.
func (t target) hello(conn net.Conn) (string, error) {
	if t.network == "tcp" {
		// A reset instead of a farewell leaves nothing behind.
		conn.(*net.TCPConn).SetLinger(0)
		return bufio.NewReader(conn).ReadString('\n')
	}
	// A node whose own rules drop a packet of its own is told so, with EPERM.
	if _, err := conn.Write([]byte("hello")); err != nil && !errors.Is(err, unix.EPERM) {
		return "", err
	}
	buffer := make([]byte, 1<<16)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

func (t target) dial(patience time.Duration) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: patience, LocalAddr: t.client.localAddr(t.network, t.addr.Addr())}
	err = t.client.host.Do(func() error {
		conn, err = dialer.Dial(t.network, t.addr.String())
		return err
	})
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		err = os.ErrDeadlineExceeded
	}
	return conn, err
}

func (cl *client) localAddr(network string, to netip.Addr) net.Addr {
	from := cl.from.Like(to)
	switch {
	case !from.IsValid():
		return nil
	case network == "tcp":
		return &net.TCPAddr{IP: from.AsSlice()}
	}
	return &net.UDPAddr{IP: from.AsSlice()}
}

func addrPort(a net.Addr) netip.AddrPort {
	parsed := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port())
}
