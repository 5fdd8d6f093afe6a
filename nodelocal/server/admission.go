package server

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/nftproxy/nftproxy/internal/protocol"
)

// admission bounds the number of streams, and the memory of large batches under way.
type admission struct {
	options *Options
	batches *semaphore.Weighted

	mu    sync.Mutex
	total int
	peers map[string]*peerLoad
}

// peerLoad counts the streams and the memory of one peer.
type peerLoad struct {
	streams int
	batches *semaphore.Weighted
}

const (
	// peerShare is the divisor of Options.BatchMemory for one peer.
	peerShare = 8
	// smallBatch is the highest number of changed Services in a batch that does not count.
	smallBatch = 100
	// serviceMemory is about the memory of a changed Service in a batch beside its encoding, in bytes.
	serviceMemory = 400
)

func newAdmission(options *Options) *admission {
	return &admission{options: options, batches: semaphore.NewWeighted(options.BatchMemory), peers: map[string]*peerLoad{}}
}

// enter counts a stream of a peer. It returns nil if there are too many.
func (a *admission) enter(peer string) *peerLoad {
	a.mu.Lock()
	defer a.mu.Unlock()
	load := a.peers[peer]
	if a.total >= a.options.MaxStreams || load != nil && load.streams >= a.options.MaxStreamsPerPeer {
		return nil
	}
	if load == nil {
		load = &peerLoad{batches: semaphore.NewWeighted(a.peerMemory())}
		a.peers[peer] = load
	}
	a.total++
	load.streams++
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

// reserve waits for memory for a batch of Services. After Options.BatchWait the error is errBusy; other errors are
// those of ctx. The caller must call free when the client has received the batch.
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
