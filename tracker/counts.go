package tracker

// Counts counts the events of a Tracker, for metrics.
type Counts struct {
	// Services and EndpointSlices count how many times an object of the kind was set or
	// deleted, whether that changed anything or not.
	Services, EndpointSlices uint64
	// PendingServices and PendingEndpointSlices count how many of those changed something since
	// the last Take of any view.
	PendingServices, PendingEndpointSlices int
	// UnguardedServices counts the Services that have loadBalancerSourceRanges and, in one family at
	// least, load balancer IPs that everybody may dial: no range is of that family, or one
	// has length 0.
	UnguardedServices int
}

// Counts returns the current counts.
func (t *Tracker) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}
