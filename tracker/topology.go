package tracker

import "slices"

// nearby returns a function that reports whether topology leaves a ready endpoint for this node: the
// endpoints hinted for it (KEP-4444, trafficDistribution PreferSameNode), else those hinted for its
// zone (KEP-2433), else all. Hints count only if every ready endpoint has one and at least one
// matches. Otherwise a cluster in the middle of an update would lose endpoints.
func nearby(candidates []candidate, zone string) func(candidate) bool {
	allNode, anyNode := true, false
	allZone, anyZone := true, false
	for _, c := range candidates {
		if !c.ready {
			continue
		}
		allNode = allNode && len(c.nodes) > 0
		anyNode = anyNode || c.hintsThisNode
		allZone = allZone && len(c.zones) > 0
		anyZone = anyZone || c.hintsZone(zone)
	}
	switch {
	case allNode && anyNode:
		return func(c candidate) bool { return c.hintsThisNode }
	case allZone && anyZone:
		return func(c candidate) bool { return c.hintsZone(zone) }
	}
	return func(candidate) bool { return true }
}

func (c candidate) hintsZone(zone string) bool {
	return zone != "" && slices.Contains(c.zones, zone)
}
