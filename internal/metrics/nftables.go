package metrics

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/nftproxy/nftproxy/nft"
)

var (
	compileDuration = newPhaseDuration("nftables_compile_duration_seconds", "Seconds that a sync took to compute the change of the rules")
	encodeDuration  = newPhaseDuration("nftables_encode_duration_seconds", "Seconds that a sync took to encode its transaction as netlink messages")
	commitDuration  = newPhaseDuration("nftables_commit_duration_seconds", "Seconds that the kernel took to apply a transaction")

	commitBytes    = newCommitSize("nftables_commit_bytes", "Bytes of a transaction that the kernel applied", 256)
	commitElements = newCommitSize("nftables_commit_elements", "Elements added and deleted by a transaction that the kernel applied", 1)
	commitChains   = newCommitSize("nftables_commit_chains", "Chains added, rewritten and deleted by a transaction that the kernel applied", 1)

	foreignChanges = newCounter("nftables_foreign_changes_total", "Foreign changes found in the proxy's tables")
	repairs        = newCounter("nftables_foreign_changes_repaired_total", "Repairs of the proxy's tables, after a foreign change or after a commit that failed")
	divergedTables = newGauge("nftables_diverged", "1 while the proxy's tables differ from the wanted ones and the kernel refuses the repair, else 0")
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

// CountForeignChange counts a foreign change that was found in the tables.
func CountForeignChange() { foreignChanges.Inc() }

// CountRepair counts a repair of the tables.
func CountRepair() { repairs.Inc() }

// SetDiverged says whether the kernel refuses to have the tables repaired.
func SetDiverged(yes bool) { divergedTables.Set(oneIf(yes)) }
