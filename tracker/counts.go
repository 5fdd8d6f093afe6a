package tracker

// Counts is what a Tracker has been told so far, for metrics.
type Counts struct {
	// Services and EndpointSlices is how many times an object of the kind was set or
	// deleted, whether anything changed by it or not.
	Services, EndpointSlices uint64
	// PendingServices and PendingEndpointSlices is how many of those changed something and
	// have not been looked at by Changes yet.
	PendingServices, PendingEndpointSlices int
	// UnguardedServices is how many Services have loadBalancerSourceRanges and, in one family at
	// least, load balancer IPs that everybody may dial: no range is of that family, or one
	// has length 0.
	UnguardedServices int
}

// Counts returns the counts of this moment.
func (t *Tracker) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}
