package localnodeport_test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/localnodeport"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/model"
)

func TestForwarder(t *testing.T) {
	t.Run("serves a node port while it has endpoints", testNodePortIsServedWhileItHasEndpoints)
	t.Run("listens on the given addresses only", testListenersUseTheGivenAddressesOnly)
	t.Run("listens for TCP node ports only", testListenersNeedATCPNodePort)
	t.Run("serves local endpoints only under policy Local", testEndpointsUnderPolicyLocal)
	t.Run("gives a contested node port to the first Service by name", testFirstServiceByNameHasAContestedNodePort)
	t.Run("connections spread or stick", testConnectionsSpreadOrStick)
	t.Run("established connections outlive every change", testEstablishedConnectionsOutliveEveryChange)
	t.Run("passes on the end of a direction", testEndOfADirectionIsPassedOn)
	t.Run("passes on a reset", testResetIsPassedOn)
	t.Run("passes on data both ways at once", testDataBothWaysAtOnce)
	t.Run("connections give their sockets back", testConnectionsGiveTheirSocketsBack)
	t.Run("passes over an endpoint that refuses", testEndpointThatRefusesIsPassedOver)
	t.Run("tries a taken port again", testPortThatIsTakenIsTriedAgain)
	t.Run("forgets a Service that goes while its port is taken", testServiceThatGoesWhileItsPortIsTaken)
	t.Run("ends with its context", testEndOfTheContextEndsListening)
	t.Run("beside the rules", testForwarderBesideTheRules)
	t.Run("resets clients that are not loopback", testClientsThatAreNotLoopbackAreReset)
	t.Run("outlives a lack of file descriptors", testOutOfFileDescriptors)
	t.Run("limits the connections at a time", testConnectionsAreLimited)
	t.Run("leaves slots to other node ports", testOneNodePortLeavesSlots)
}

func testNodePortIsServedWhileItHasEndpoints(t *testing.T) {
	forEachFamily(t, func(t *testing.T, f family) {
		n := start(t, localnodeport.Options{})
		first, second := f.echo(t, 1, 8080), f.echo(t, 2, 8080)
		web := f.service("web", 30080, first)

		expectRefused(t, f.at(30080))
		n.Apply(n.ctx, &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{web.ID: web}})
		expect(t, f.at(30080), first)
		n.apply(f.service("web", 30080, second))
		expect(t, f.at(30080), second)
		n.apply(f.service("web", 30080))
		expectRefused(t, f.at(30080))
		n.apply(f.service("web", 30080, first))
		expect(t, f.at(30080), first)
		n.apply(f.service("web", 30081, first))
		expectRefused(t, f.at(30080))
		expect(t, f.at(30081), first)
		n.Apply(n.ctx, &model.Changes{Ports: map[model.PortID]*model.ServicePort{web.ID: nil}})
		expectRefused(t, f.at(30081))
		n.apply(f.service("web", 0, first))
		n.apply(f.service("web", 30080, first))
		expect(t, f.at(30080), first)
		n.Apply(n.ctx, &model.Changes{Full: true})
		expectRefused(t, f.at(30080))
	})
}

func testListenersUseTheGivenAddressesOnly(t *testing.T) {
	server := families[0].echo(t, 1, 8080)
	n := start(t, localnodeport.Options{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.5")}})
	n.apply(families[0].service("web", 30080, server))
	expect(t, "127.0.0.1:30080", server)
	expect(t, "127.0.0.5:30080", server)
	for _, other := range []string{"127.0.0.2:30080", "192.168.0.1:30080", "10.244.1.1:30080"} {
		expectRefused(t, other)
	}
}

func testListenersNeedATCPNodePort(t *testing.T) {
	f := families[0]
	n := start(t, localnodeport.Options{OnListeners: func(_ model.Family, count int) { t.Errorf("%d listeners", count) }})
	server := f.echo(t, 1, 8080)
	udp := f.service("dns", 30080, server)
	udp.ID.Protocol = model.UDP
	n.apply(udp, f.service("without", 0, server), f.service("empty", 30081))
	expectRefused(t, f.at(30080))
}

func testEndpointsUnderPolicyLocal(t *testing.T) {
	forEachFamily(t, func(t *testing.T, f family) {
		n := start(t, localnodeport.Options{})
		elsewhere, here := f.echo(t, 1, 8080), f.echo(t, 2, 8080)
		web := f.service("web", 30080, elsewhere)
		web.ExternalPolicy = model.PolicyLocal
		n.apply(web)
		expectRefused(t, f.at(30080))
		web = f.service("web", 30080, elsewhere, here)
		web.ExternalPolicy = model.PolicyLocal
		web.Local = []model.Endpoint{{AddrPort: here, Local: true}}
		n.apply(web)
		for range 20 {
			expect(t, f.at(30080), here)
		}
	})
}

func testFirstServiceByNameHasAContestedNodePort(t *testing.T) {
	f := families[0]
	n := start(t, localnodeport.Options{})
	a, b := f.echo(t, 1, 8080), f.echo(t, 2, 8080)
	n.apply(f.service("b", 30080, b))
	expect(t, f.at(30080), b)
	n.apply(f.service("a", 30080, a))
	expect(t, f.at(30080), a)
	gone := f.service("a", 30080)
	n.Apply(n.ctx, &model.Changes{Ports: map[model.PortID]*model.ServicePort{gone.ID: nil}})
	expect(t, f.at(30080), b)
}

func testConnectionsSpreadOrStick(t *testing.T) {
	f := families[0]
	n := start(t, localnodeport.Options{})
	spread := f.service("spread", 30080, f.echo(t, 1, 8080), f.echo(t, 2, 8080), f.echo(t, 3, 8080))
	sticky := f.service("sticky", 30081, spread.Cluster[0].AddrPort, spread.Cluster[1].AddrPort, spread.Cluster[2].AddrPort)
	sticky.AffinityTimeout = 3 * time.Hour
	n.apply(spread, sticky)
	for port, want := range map[uint16]int{30080: 3, 30081: 1} {
		seen := map[string]bool{}
		for range 60 { // one of three is left out once in 10^10 runs
			who, err := ask(f.at(port))
			if err != nil {
				t.Fatal(err)
			}
			seen[who] = true
		}
		if len(seen) != want {
			t.Errorf("port %d: %d endpoints were reached, want %d", port, len(seen), want)
		}
	}
}

func testEstablishedConnectionsOutliveEveryChange(t *testing.T) {
	forEachFamily(t, func(t *testing.T, f family) {
		n := start(t, localnodeport.Options{})
		first, second := f.echo(t, 1, 8080), f.echo(t, 2, 8080)
		web := f.service("web", 30080, first)
		n.apply(web)
		conn := dial(t, f.at(30080))
		from := bufio.NewReader(conn)
		if who, err := converse(conn, from); who != first.String() || err != nil {
			t.Fatalf("got %q, error %v", who, err)
		}
		for _, change := range []struct {
			name string
			make func()
		}{
			{"another endpoint came", func() { n.apply(f.service("web", 30080, first, second)) }},
			{"its endpoint went", func() { n.apply(f.service("web", 30080, second)) }},
			{"all endpoints went", func() { n.apply(f.service("web", 30080)) }},
			{"the Service went", func() { n.Apply(n.ctx, &model.Changes{Full: true}) }},
		} {
			change.make()
			if err := repeat(conn, from); err != nil {
				t.Fatalf("after %s: %v", change.name, err)
			}
		}
	})
}

func testEndOfADirectionIsPassedOn(t *testing.T) {
	forEachFamily(t, func(t *testing.T, f family) {
		n := start(t, localnodeport.Options{})
		// Answers when it has heard everything.
		n.apply(f.service("client-first", 30080, f.serve(t, 1, 8080, func(conn *net.TCPConn) {
			request, _ := io.ReadAll(conn)
			fmt.Fprintf(conn, "heard %q", request)
		})))
		// Has said everything before it listens.
		heard := make(chan string, 1)
		n.apply(f.service("server-first", 30081, f.serve(t, 1, 8081, func(conn *net.TCPConn) {
			fmt.Fprint(conn, "that is all")
			conn.CloseWrite()
			request, _ := io.ReadAll(conn)
			heard <- string(request)
		})))

		conn := dial(t, f.at(30080))
		fmt.Fprint(conn, "hello")
		conn.CloseWrite()
		if got, err := io.ReadAll(conn); string(got) != `heard "hello"` || err != nil {
			t.Errorf("got %q, error %v", got, err)
		}

		conn = dial(t, f.at(30081))
		if got, err := io.ReadAll(conn); string(got) != "that is all" || err != nil {
			t.Errorf("got %q, error %v", got, err)
		}
		fmt.Fprint(conn, "I see")
		conn.Close()
		if got := receive(t, heard); got != "I see" {
			t.Errorf("the server heard %q", got)
		}
	})
}

func testResetIsPassedOn(t *testing.T) {
	forEachFamily(t, func(t *testing.T, f family) {
		n := start(t, localnodeport.Options{})
		n.apply(f.service("resets", 30080, f.serve(t, 1, 8080, func(conn *net.TCPConn) {
			conn.Read(make([]byte, 1))
			conn.SetLinger(0)
		})))
		conn := dial(t, f.at(30080))
		fmt.Fprint(conn, "x")
		if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client got error %v, want a reset", err)
		}

		noticed := make(chan error, 1)
		n.apply(f.service("is-reset", 30081, f.serve(t, 1, 8081, func(conn *net.TCPConn) {
			fmt.Fprint(conn, "x")
			_, err := io.ReadAll(conn)
			noticed <- err
		})))
		conn = dial(t, f.at(30081))
		conn.Read(make([]byte, 1))
		conn.SetLinger(0)
		conn.Close()
		if err := receive(t, noticed); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server got error %v, want a reset", err)
		}
	})
}

func testDataBothWaysAtOnce(t *testing.T) {
	f := families[0]
	n := start(t, localnodeport.Options{})
	n.apply(f.service("echo", 30080, f.serve(t, 1, 8080, func(conn *net.TCPConn) { io.Copy(conn, conn) })))
	const size = 4 << 20
	var clients sync.WaitGroup
	for seed := range byte(8) {
		conn := dial(t, f.at(30080))
		sent := make(chan []byte, 1)
		clients.Go(func() {
			hash := sha256.New()
			io.CopyN(io.MultiWriter(conn, hash), rand.NewChaCha8([32]byte{seed}), size)
			conn.CloseWrite()
			sent <- hash.Sum(nil)
		})
		clients.Go(func() {
			hash := sha256.New()
			if n, err := io.Copy(hash, conn); n != size || err != nil {
				t.Errorf("client %d: got %d bytes, error %v", seed, n, err)
			}
			if !slices.Equal(<-sent, hash.Sum(nil)) {
				t.Errorf("client %d: got other bytes than it sent", seed)
			}
		})
	}
	clients.Wait()
}

func testConnectionsGiveTheirSocketsBack(t *testing.T) {
	f := families[0]
	n := start(t, localnodeport.Options{})
	greets := func(conn *net.TCPConn) { fmt.Fprint(conn, "hello") }
	resets := func(conn *net.TCPConn) { conn.SetLinger(0) }
	n.apply(f.service("greets", 30080, f.serve(t, 1, 8080, greets)), f.service("resets", 30081, f.serve(t, 1, 8081, resets)))
	// The garbage collector closes what was forgotten.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before := openSockets(t)
	for range 50 {
		for _, port := range []uint16{30080, 30081} {
			if conn, err := net.DialTimeout("tcp", f.at(port), patience); err == nil {
				conn.SetDeadline(time.Now().Add(patience))
				io.Copy(io.Discard, conn)
				conn.Close()
			}
		}
	}
	await.Until(t, "as many sockets as before", func() error {
		if now := openSockets(t); now > before {
			return fmt.Errorf("%d sockets, %d before", now, before)
		}
		return nil
	})
}

func openSockets(t *testing.T) (count int) {
	t.Helper()
	const dir = "/proc/self/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if target, err := os.Readlink(dir + entry.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			count++
		}
	}
	return count
}

// An endpoint that is gone while the Service still names it.
func testEndpointThatRefusesIsPassedOver(t *testing.T) {
	f := families[0]
	n := start(t, localnodeport.Options{})
	alive := f.echo(t, 1, 8080)
	dead := netip.AddrPortFrom(netip.MustParseAddr(f.pod(2)), 8080)
	other := netip.AddrPortFrom(netip.MustParseAddr(f.pod(3)), 8080)
	sticky := f.service("sticky", 30081, alive, dead)
	sticky.AffinityTimeout = time.Hour
	n.apply(f.service("web", 30080, alive, dead, other), sticky, f.service("dead", 30082, dead, other))
	for range 20 {
		expect(t, f.at(30080), alive)
		expect(t, f.at(30081), alive)
	}
	if who, err := ask(f.at(30082)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("no endpoint answers: got %q, error %v, want a reset", who, err)
	}
	await.Until(t, "a line in the log", func() error {
		if len(n.log.with(`"service"="shop/dead:http"`, "connection refused")) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
}

func testPortThatIsTakenIsTriedAgain(t *testing.T) {
	forEachFamily(t, func(t *testing.T, f family) {
		taken, err := net.Listen("tcp", f.at(30080))
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		var mu sync.Mutex
		counts, failures := []int{}, 0
		n := start(t, localnodeport.Options{
			OnListeners: func(family model.Family, count int) {
				mu.Lock()
				defer mu.Unlock()
				if counts = append(counts, count); family != f.Family {
					t.Errorf("%d listeners in %s", count, family)
				}
			},
			OnListenFailure: func(family model.Family) {
				mu.Lock()
				defer mu.Unlock()
				if failures++; family != f.Family {
					t.Errorf("a failure in %s", family)
				}
			},
		})
		server := f.echo(t, 1, 8080)
		n.apply(f.service("web", 30080, server), f.service("other", 30081, server))
		expect(t, f.at(30081), server)
		failed := n.log.with("Cannot listen for a node port on loopback; trying again", `"service"="shop/web:http"`, fmt.Sprintf("%q", f.at(30080)), "address already in use")
		if len(failed) != 1 {
			t.Errorf("%d lines name the Service, the address and the reason, want 1: %q", len(failed), n.log.with(""))
		}
		await.Until(t, "a second try", func() error {
			mu.Lock()
			defer mu.Unlock()
			if failures < 2 {
				return fmt.Errorf("%d failures", failures)
			}
			return nil
		})
		taken.Close()
		await.Until(t, "the port to be served", func() error {
			_, err := ask(f.at(30080))
			return err
		})
		expect(t, f.at(30080), server)
		if got := n.log.with("Listening for a node port on loopback after all", `"service"="shop/web:http"`); len(got) != 1 {
			t.Errorf("%d lines say that it works now, want 1", len(got))
		}
		n.Apply(n.ctx, &model.Changes{Full: true})
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff([]int{1, 2, 1, 0}, counts); diff != "" {
			t.Errorf("listeners (-want +got):\n%s", diff)
		}
	})
}

func testServiceThatGoesWhileItsPortIsTaken(t *testing.T) {
	f := families[0]
	taken, err := net.Listen("tcp", f.at(30080))
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan bool, 1000)
	n := start(t, localnodeport.Options{OnListenFailure: func(model.Family) { failed <- true }})
	n.apply(f.service("web", 30080, f.echo(t, 1, 8080)))
	receive(t, failed)
	receive(t, failed) // it tries again
	n.Apply(n.ctx, &model.Changes{Full: true})
	taken.Close()
	// Whoever still tried would have it now.
	free, err := net.Listen("tcp", f.at(30080))
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
}

func testEndOfTheContextEndsListening(t *testing.T) {
	forEachFamily(t, func(t *testing.T, f family) {
		n := start(t, localnodeport.Options{})
		n.apply(f.service("web", 30080, f.echo(t, 1, 8080)))
		conn := dial(t, f.at(30080))
		from := bufio.NewReader(conn)
		if _, err := converse(conn, from); err != nil {
			t.Fatal(err)
		}
		n.stop()
		await.Until(t, "a refusal", func() error {
			if _, err := ask(f.at(30080)); !errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Errorf("got error %v", err)
			}
			return nil
		})
		if err := repeat(conn, from); err != nil {
			t.Errorf("the established connection: %v", err)
		}
	})
}

// All node ports share the limit. Clients above it are served when others end.
func testConnectionsAreLimited(t *testing.T) {
	const limit, clients = 2, 20
	f := families[0]
	n := start(t, localnodeport.Options{MaxConnections: limit})
	release := make(chan struct{})
	var now, most atomic.Int32
	server := f.serve(t, 1, 8080, func(conn *net.TCPConn) {
		c := now.Add(1)
		for m := most.Load(); c > m && !most.CompareAndSwap(m, c); m = most.Load() {
		}
		<-release
		now.Add(-1)
		fmt.Fprintln(conn, "served")
	})
	ports := []uint16{30080, 30081}
	for i, port := range ports {
		n.apply(f.service(fmt.Sprint("web-", i), port, server))
	}
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			conn, err := net.Dial("tcp", f.at(ports[i%len(ports)]))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(2 * patience))
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
				t.Errorf("client %d got %q, %v", i, line, err)
			}
		})
	}
	for _, port := range ports {
		await.True(t, "the log tells of clients that wait", func() bool {
			return len(n.log.with("Too many connections to node ports on loopback", fmt.Sprint(port))) == 1
		})
	}
	close(release)
	all.Wait()
	if m := most.Load(); m > limit {
		t.Errorf("%d connections at a time, want at most %d", m, limit)
	}
}

// Idle connections to one node port keep their slots. Clients of another node port are served.
func testOneNodePortLeavesSlots(t *testing.T) {
	const limit = 4
	f := families[0]
	n := start(t, localnodeport.Options{MaxConnections: limit})
	server := f.echo(t, 1, 8080)
	n.apply(f.service("web-0", 30080, server))
	n.apply(f.service("web-1", 30081, server))
	expect(t, f.at(30080), server)
	for range 2 * limit {
		fmt.Fprintln(dial(t, f.at(30080)), "hello")
	}
	await.True(t, "the clients of one node port wait", func() bool {
		return len(n.log.with("Too many connections to node ports on loopback", "30080")) == 1
	})
	expect(t, f.at(30081), server)
}
