package localnodeport

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/model"
)

const (
	// dialTimeout bounds the time in which an endpoint accepts a connection, as in kube-proxy.
	dialTimeout = 5 * time.Second
	// maxDials bounds the endpoints that are tried for one connection. An endpoint that died refuses connections until it
	// is gone from the EndpointSlices.
	maxDials = 3
)

// listener serves one node port on one address.
type listener struct {
	forwarder *Forwarder
	at        netip.AddrPort
	choice    choice
	// own holds those slots of the Forwarder that the listener has taken. There is room for half of them, so that idle
	// connections to one node port leave some to the others. waits is for the log.
	own    chan struct{}
	waits  sync.Once
	cancel func()

	// mu guards the fields below.
	mu     sync.Mutex
	id     model.PortID
	socket *net.TCPListener // nil while the port is taken
	closed bool
}

// listen returns a listener that is open, unless the port is taken: then it retries.
func (f *Forwarder) listen(ctx context.Context, at netip.AddrPort, port *model.ServicePort) *listener {
	ctx, cancel := context.WithCancel(ctx)
	l := &listener{forwarder: f, at: at, cancel: cancel, own: make(chan struct{}, max(cap(f.slots)/2, 1))}
	l.update(port)
	context.AfterFunc(ctx, l.close)
	err := l.open(ctx)
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot listen for a node port on loopback; trying again", l.about()...)
	}
	go l.run(ctx, err)
	return l
}

// run tries to listen until that works, after a failure, and then accepts connections.
func (l *listener) run(ctx context.Context, failure error) {
	waits := backoff.ExponentialBackOff{InitialInterval: 100 * time.Millisecond, Multiplier: 2, MaxInterval: 10 * time.Second}
	for failure != nil {
		if !sleep(ctx, waits.NextBackOff()) {
			return
		}
		if failure = l.open(ctx); failure == nil {
			klog.FromContext(ctx).Info("Listening for a node port on loopback after all", l.about()...)
		}
	}
	l.accept(ctx)
}

// about names the Service and the address in log lines.
func (l *listener) about() []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	return []any{"service", l.id.ServicePortName(), "address", l.at}
}

func (l *listener) update(port *model.ServicePort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id = port.ID
	l.choice.update(endpoints(port), port.AffinityTimeout)
}

// close closes the socket, so that the kernel refuses connections. Accepted ones stay.
func (l *listener) close() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.socket != nil {
		l.socket.Close()
		l.forwarder.count(model.FamilyOf(l.at.Addr()), -1)
	}
	l.closed = true
}

func (l *listener) open(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false) // there is one path to loopback, and splice wants plain TCP
	socket, err := config.Listen(ctx, "tcp", l.at.String())
	if err != nil {
		if failed := l.forwarder.options.OnListenFailure; failed != nil {
			failed(model.FamilyOf(l.at.Addr()))
		}
		return err
	}
	l.socket = socket.(*net.TCPListener)
	l.forwarder.count(model.FamilyOf(l.at.Addr()), +1)
	return nil
}

// accept serves connections until the socket is closed. It waits while there are no file descriptors or as many
// connections as the limits; the kernel keeps the clients waiting.
func (l *listener) accept(ctx context.Context) {
	failing := false
	waits := backoff.ExponentialBackOff{InitialInterval: 5 * time.Millisecond, Multiplier: 2, MaxInterval: time.Second}
	for {
		client, err := l.socket.AcceptTCP()
		switch {
		case err == nil:
			failing = false
			waits.Reset()
			if !l.take(ctx, l.own) || !l.take(ctx, l.forwarder.slots) {
				reset(client)
				return
			}
			go func() {
				l.serve(ctx, client)
				<-l.forwarder.slots
				<-l.own
			}()
			continue
		case errors.Is(err, net.ErrClosed):
			return
		case !failing:
			failing = true
			klog.FromContext(ctx).Error(err, "Cannot accept connections to a node port on loopback; trying again", l.about()...)
		}
		if !sleep(ctx, waits.NextBackOff()) {
			return
		}
	}
}

// take waits until there are fewer connections than the limit. It returns false if ctx ends first.
func (l *listener) take(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
	}
	l.waits.Do(func() {
		klog.FromContext(ctx).Error(nil, "Too many connections to node ports on loopback; new ones wait until others end; this is logged once", append(l.about(), "limit", cap(slots))...)
	})
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve connects a client to an endpoint. If no endpoint answers, it resets the connection.
func (l *listener) serve(ctx context.Context, client *net.TCPConn) {
	// Only with route_localnet, left behind by another proxy, can anybody else get here.
	if peer := client.RemoteAddr().(*net.TCPAddr); !peer.IP.IsLoopback() {
		reset(client)
		return
	}
	endpoint, err := l.dial(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot connect to an endpoint of a node port on loopback",
			append(l.about(), "err", err)...)
		reset(client)
		return
	}
	relay(client, endpoint)
}

// dial connects to an endpoint, and if that fails to another one: unlike the rules, it notices the failure
// before the client has sent data.
func (l *listener) dial(ctx context.Context) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	var tried []netip.AddrPort
	failure := errors.New("no endpoint is left")
	for len(tried) < maxDials {
		to, ok := l.choice.draw(time.Now(), tried)
		if !ok {
			break
		}
		conn, err := dialer.DialContext(ctx, "tcp", to.String())
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		failure = err
		tried = append(tried, to)
	}
	return nil, failure
}

// sleep waits. It returns false as soon as ctx ends.
func sleep(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// choice draws endpoints for the connections to one node port. All its clients have the loopback address, so with
// session affinity they are one client with one endpoint.
type choice struct {
	mu        sync.Mutex
	endpoints []model.Endpoint
	// affinity is the time for which an endpoint is kept after the last new connection; 0 keeps none.
	affinity time.Duration
	// kept is the endpoint to keep, used when it was last drawn.
	kept netip.AddrPort
	used time.Time
}

// update replaces the endpoints. The kept one stays while it is among them.
func (c *choice) update(endpoints []model.Endpoint, affinity time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoints, c.affinity = endpoints, affinity
}

// draw returns an endpoint for a connection now, other than those that were tried for it in vain; false if there is
// none. With affinity it is the one to keep from now on.
func (c *choice) draw(now time.Time, tried []netip.AddrPort) (netip.AddrPort, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var left []netip.AddrPort
	for _, e := range c.endpoints {
		if !slices.Contains(tried, e.AddrPort) {
			left = append(left, e.AddrPort)
		}
	}
	if len(left) == 0 {
		return netip.AddrPort{}, false
	}
	if now.Sub(c.used) >= c.affinity || !slices.Contains(left, c.kept) {
		c.kept = left[rand.IntN(len(left))]
	}
	c.used = now
	return c.kept, true
}

// relay copies between two connections until both directions have ended, and closes both. It passes on the end of one
// direction (FIN) while the other continues. If one connection is reset, relay resets the other one.
func relay(a, b *net.TCPConn) {
	defer a.Close()
	defer b.Close()
	var both sync.WaitGroup
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
}

// pass copies in one direction. For two TCP connections io.Copy lets the kernel do it (splice).
func pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	// An error means that the connection is gone, which the other direction has noticed already.
	_ = to.CloseWrite()
}

// reset closes a connection with RST instead of FIN.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
