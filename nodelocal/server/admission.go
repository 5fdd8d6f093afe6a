package server

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/nftproxy/nftproxy/internal/protocol"
)

// admission counts streams and refuses those that are too many. It also bounds the memory of large batches under way.
type admission struct {
	mu      *sync.Mutex
	total   int
	peers   map[string]*peerLoad
	options *Options
	batches *semaphore.Weighted
}

// peerLoad is what the calls of one peer take.
type peerLoad struct {
	streams int
	batches *semaphore.Weighted
}

const (
	// peerShare is which part of Options.BatchMemory one peer may use, as a divisor.
	peerShare = 8
	// smallBatch is how many Services may have changed in a batch that does not count.
	smallBatch = 100
	// serviceMemory is about what a changed Service takes in a batch beside its encoding, in bytes.
	serviceMemory = 400
)

func newAdmission(options *Options) admission {
	return admission{mu: &sync.Mutex{}, peers: map[string]*peerLoad{}, options: options, batches: semaphore.NewWeighted(options.BatchMemory)}
}

// enter counts a stream of a peer. It returns nil if there are too many.
func (a *admission) enter(peer string) *peerLoad {
	a.mu.Lock()
	defer a.mu.Unlock()
	load := a.peers[peer]
	if load == nil {
		load = &peerLoad{batches: semaphore.NewWeighted(a.peerMemory())}
	}
	if a.total >= a.options.MaxStreams || load.streams >= a.options.MaxStreamsPerPeer {
		return nil
	}
	a.total++
	load.streams++
	a.peers[peer] = load
	a.options.Hooks.OnWatchers(a.total)
	return load
}

func (a *admission) leave(peer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	load := a.peers[peer]
	if load.streams--; load.streams == 0 {
		delete(a.peers, peer)
	}
	a.options.Hooks.OnWatchers(a.total)
}

func (a *admission) peerMemory() int64 { return max(a.options.BatchMemory/peerShare, 1) }

// reserve waits until there is memory for a batch with so many Services, for Options.BatchWait at most: then the error is
// errBusy, else it is that of ctx. The caller must call free when the client has taken the batch.
func (a *admission) reserve(ctx context.Context, load *peerLoad, services int) (free func(), err error) {
	if services <= smallBatch {
		return func() {}, nil
	}
	waiting, cancel := context.WithTimeoutCause(ctx, a.options.BatchWait, errBusy)
	defer cancel()
	need := int64(services)*serviceMemory + protocol.PartSize
	all, ofPeer := min(need, a.options.BatchMemory), min(need, a.peerMemory())
	// First the peer's own, so that those of its streams that wait take nothing from others.
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
