package localnodeport

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

// choice draws endpoints for the connections to one node port. All its clients have the
// loopback address, so with session affinity they are one client with one endpoint.
type choice struct {
	mu        sync.Mutex
	endpoints []netip.AddrPort
	// affinity is how long an endpoint is kept after the last new connection; 0 is not at all.
	affinity time.Duration
	// kept is the endpoint to keep, used when it was last drawn.
	kept netip.AddrPort
	used time.Time
}

// update replaces the endpoints. The kept one stays while it is among them.
func (c *choice) update(endpoints []model.Endpoint, affinity time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoints = make([]netip.AddrPort, len(endpoints))
	for i, e := range endpoints {
		c.endpoints[i] = e.AddrPort
	}
	c.affinity = affinity
}

// draw returns an endpoint for a connection now, other than those that were tried for it in
// vain; false when there is none. With affinity it is the one to keep from now on.
func (c *choice) draw(now time.Time, tried []netip.AddrPort) (netip.AddrPort, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := make([]netip.AddrPort, 0, len(c.endpoints))
	for _, e := range c.endpoints {
		if !slices.Contains(tried, e) {
			left = append(left, e)
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
