package metrics

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

var (
	compileDuration = newPhaseDuration("nftables_compile_duration_seconds",
		"Seconds that a sync took to compute the change of the rules")
	encodeDuration = newPhaseDuration("nftables_encode_duration_seconds",
		"Seconds that a sync took to encode its transaction as netlink messages")
	commitDuration = newPhaseDuration("nftables_commit_duration_seconds",
		"Seconds that the kernel took to apply a transaction")

	commitBytes    = newCommitSize("nftables_commit_bytes", "Bytes of a transaction that the kernel applied", 256)
	commitElements = newCommitSize("nftables_commit_elements",
		"Elements added and deleted by a transaction that the kernel applied", 1)
	commitChains = newCommitSize("nftables_commit_chains",
		"Chains added, rewritten and deleted by a transaction that the kernel applied", 1)

	foreignChanges = newCounter("nftables_foreign_changes_total", "External changes found in the proxy's tables")
	repairs        = newCounter("nftables_foreign_changes_repaired_total",
		"Repairs of the proxy's tables, after an external change or after a commit that failed")
	directReturnBlocked = newGauge("nftables_direct_return_blocked",
		"1 while this node forwards nothing by direct return, because packets would not reach other nodes or leave unencrypted, else 0")
	directReturnDenied = newGauge("nftables_direct_return_denied",
		"Service ports that ask for direct return and have none, because of the limits of addresses and endpoints; their external clients are masqueraded")
	divergedTables = newGauge("nftables_diverged",
		"1 while the proxy's tables differ from the wanted ones and the kernel refuses the repair, else 0")
)

// newPhaseDuration has buckets from 0.1 ms to 13 s.
func newPhaseDuration(name, help string) *metrics.Histogram {
	return newHistogram(name, help, metrics.ExponentialBuckets(0.0001, 2, 18))
}

// newCommitSize has ten buckets, from smallest up, each four times the one before.
func newCommitSize(name, help string, smallest float64) *metrics.Histogram {
	return newHistogram(name, help, metrics.ExponentialBuckets(smallest, 4, 10))
}

// ObserveCompile records the time that a sync took to compute its transaction.
func ObserveCompile(took time.Duration) { compileDuration.Observe(took.Seconds()) }

// ObserveCommit records a transaction that the kernel applied.
func ObserveCommit(s nft.CommitStats) {
	encodeDuration.Observe(s.Encode.Seconds())
	commitDuration.Observe(s.Kernel.Seconds())
	commitBytes.Observe(float64(s.Bytes))
	commitElements.Observe(float64(s.Elements))
	commitChains.Observe(float64(s.Chains))
}

// CountForeignChange counts an external change of the tables.
func CountForeignChange() { foreignChanges.Inc() }

// CountRepair counts a repair of the tables.
func CountRepair() { repairs.Inc() }

// SetDirectReturnBlocked records whether this node forwards nothing by direct return because of an obstacle.
func SetDirectReturnBlocked(yes bool) { directReturnBlocked.Set(oneIf(yes)) }

// SetDirectReturnDenied records how many Service ports ask for direct return in vain.
func SetDirectReturnDenied(n int) { directReturnDenied.Set(float64(n)) }

// SetDiverged records whether the kernel refuses to repair the tables.
func SetDiverged(yes bool) { divergedTables.Set(oneIf(yes)) }

var (
	conntrackDuration = newFamilyDuration("conntrack_reconciler_sync_duration_seconds",
		"Seconds that it took to find and delete stale connection tracking entries")
	conntrackDeleted = newCounterVec("conntrack_reconciler_deleted_entries_total",
		"Stale connection tracking entries that were deleted", ipFamily)
	conntrackFailures = newCounterVec("conntrack_reconciler_failures_total", "Searches for stale connection tracking entries that failed, or left entries that the kernel refused to delete; each is tried again", ipFamily)
)

// ObserveConntrack records a search for stale entries of a family in the connection tracking table.
func ObserveConntrack(family model.Family, took time.Duration, deleted int) {
	conntrackDuration.WithLabelValues(family.String()).Observe(took.Seconds())
	conntrackDeleted.WithLabelValues(family.String()).Add(float64(deleted))
}

// CountConntrackFailure counts a search for stale entries of a family that could not remove all of them.
func CountConntrackFailure(family model.Family) {
	conntrackFailures.WithLabelValues(family.String()).Inc()
}

var (
	leftoverRules     = newGaugeVec("other_modes_leftovers", "Leftovers of kube-proxy's iptables and ipvs modes on the node: the number of chains of iptables-nft and of iptables-legacy, and of ipvs the number of sets, and 1 for the device", "kind")
	draining          = newGaugeVec("other_modes_draining", "What stays of kube-proxy's mode ipvs for the sake of established connections: these, its virtual servers, and its addresses on the node", "kind")
	leftoversConflict = newGauge("other_modes_conflict", "1 if another kube-proxy on the node put the rules of its mode back each time that this one removed them; this one leaves them then")
)

// SetLeftovers records the leftovers of a kind (leftovers.Kind) of another mode of kube-proxy.
func SetLeftovers(kind string, count int) { leftoverRules.WithLabelValues(kind).Set(float64(count)) }

// SetDraining records what stays of the mode ipvs for the sake of established connections.
func SetDraining(virtualServers, connections, addresses int) {
	draining.WithLabelValues("virtual-servers").Set(float64(virtualServers))
	draining.WithLabelValues("connections").Set(float64(connections))
	draining.WithLabelValues("addresses").Set(float64(addresses))
}

// SetLeftoversConflict records whether another kube-proxy puts its rules back.
func SetLeftoversConflict(yes bool) { leftoversConflict.Set(oneIf(yes)) }
