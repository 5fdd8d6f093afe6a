package server

import "sync"

// admission counts streams and refuses those that are too many.
type admission struct {
	mu      *sync.Mutex
	total   int
	peers   map[string]int
	options *Options
}

func newAdmission(options *Options) admission {
	return admission{mu: &sync.Mutex{}, peers: map[string]int{}, options: options}
}

// enter counts a stream of a peer, unless there are too many.
func (a *admission) enter(peer string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.total >= a.options.MaxStreams || a.peers[peer] >= a.options.MaxStreamsPerPeer {
		return false
	}
	a.total++
	a.peers[peer]++
	a.options.Hooks.OnWatchers(a.total)
	return true
}

func (a *admission) leave(peer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	if a.peers[peer]--; a.peers[peer] == 0 {
		delete(a.peers, peer)
	}
	a.options.Hooks.OnWatchers(a.total)
}
