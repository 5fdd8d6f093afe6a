package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/nftproxy/nftproxy/internal/protocol"
)

// admission bounds connections, calls, and the memory of large batches under way, for each peer and in total.
type admission struct {
	options *Options
	batches *semaphore.Weighted

	// mu guards the fields below, the fields of each peerLoad except its semaphore, and the state of each conn.
	mu sync.Mutex
	// handshakes holds the connections whose peer is not known yet, oldest first.
	handshakes []*conn
	// connections counts all other connections, streams the calls.
	connections, streams int
	peers                map[string]*peerLoad
}

// peerLoad counts the connections, the calls and the memory of one peer.
type peerLoad struct {
	name                 string
	connections, streams int
	batches              *semaphore.Weighted
}

const (
	// maxHandshakes bounds the connections whose peer is not known yet. Each has some 20 kB.
	maxHandshakes = 1000
	// maxHandshakesPerAddress bounds the handshakes from one address, perhaps a load balancer's.
	maxHandshakesPerAddress = 250
	// peerShare is the divisor of Options.BatchMemory for one peer.
	peerShare = 8
	// smallBatch is the number of changed Services up to which a batch needs no reservation.
	smallBatch = 100
	// serviceMemory is about the memory of a changed Service in a batch beside its encoding, in bytes.
	serviceMemory = 400
)

func newAdmission(options *Options) *admission {
	return &admission{options: options, batches: semaphore.NewWeighted(options.BatchMemory), peers: map[string]*peerLoad{}}
}

// begin starts the time until the first call of a connection.
func (a *admission) begin(c *conn, late func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.firstCall = time.AfterFunc(a.options.FirstCall, late)
}

// shake counts a connection whose peer is not known yet. If there are too many, it returns the connection to close for
// c: the oldest one from the same address, or of all. If it refused new connections instead, an attacker without a
// certificate could lock out all clients.
func (a *admission) shake(c *conn) (evicted *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handshakes = append(a.handshakes, c)
	if len(a.handshakes) > maxHandshakes {
		evicted = a.handshakes[0]
	}
	sameAddress := 0
	for _, other := range slices.Backward(a.handshakes) {
		if other.name != c.name {
			continue
		}
		if sameAddress++; sameAddress > maxHandshakesPerAddress {
			return other
		}
	}
	return evicted
}

// join counts a connection for its peer. It returns false beyond the limit of the peer or of all.
func (a *admission) join(c *conn, peer string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endHandshake(c)
	load := a.peers[peer]
	if c.closed || a.connections >= a.options.MaxConnections || load != nil && load.connections >= a.options.MaxConnectionsPerPeer {
		return false
	}
	if load == nil {
		load = &peerLoad{name: peer, batches: semaphore.NewWeighted(a.peerMemory())}
		a.peers[peer] = load
	}
	a.connections++
	load.connections++
	c.load = load
	return true
}

func (a *admission) endHandshake(c *conn) {
	if i := slices.Index(a.handshakes, c); i >= 0 {
		a.handshakes = slices.Delete(a.handshakes, i, i+1)
	}
}

// part forgets a connection. It returns false for a forgotten one.
func (a *admission) part(c *conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.closed {
		return false
	}
	c.closed = true
	c.firstCall.Stop()
	a.endHandshake(c)
	if c.load != nil {
		a.connections--
		if c.load.connections--; c.load.connections == 0 {
			delete(a.peers, c.load.name)
		}
	}
	return true
}

// enter counts a call on a connection. It returns false beyond the limit of the peer or of all.
func (a *admission) enter(c *conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams >= a.options.MaxStreams || c.load.streams >= a.options.MaxStreamsPerPeer {
		return false
	}
	c.firstCall.Stop()
	a.streams++
	c.load.streams++
	a.options.Hooks.OnWatchers(a.streams)
	return true
}

func (a *admission) leave(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams--
	c.load.streams--
	a.options.Hooks.OnWatchers(a.streams)
}

func (a *admission) peerMemory() int64 { return max(a.options.BatchMemory/peerShare, 1) }

// reserve waits for memory for a batch of Services. After Options.BatchWait the error is errBusy; other errors come
// from ctx. The caller must call free when the client has received the batch.
func (a *admission) reserve(ctx context.Context, load *peerLoad, services int) (free func(), err error) {
	if services <= smallBatch {
		return func() {}, nil
	}
	waiting, cancel := context.WithTimeoutCause(ctx, a.options.BatchWait, errBusy)
	defer cancel()
	need := int64(services)*serviceMemory + protocol.PartSize
	all, ofPeer := min(need, a.options.BatchMemory), min(need, a.peerMemory())
	// The peer's share first, so that its waiting streams take nothing from other peers.
	if err := load.batches.Acquire(waiting, ofPeer); err != nil {
		return nil, context.Cause(waiting)
	}
	if err := a.batches.Acquire(waiting, all); err != nil {
		load.batches.Release(ofPeer)
		return nil, context.Cause(waiting)
	}
	return func() {
		a.batches.Release(all)
		load.batches.Release(ofPeer)
	}, nil
}
