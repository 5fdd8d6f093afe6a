package metrics

import (
	"context"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/nftproxy/nftproxy/conntrack"
)

var (
	contestedAddresses = newGauge("contested_addresses",
		"Addresses and node ports that several Service ports claim; one of them gets the packets. A node port counts for each IP family")
	detectLocalUnfit = newGauge("detect_local_unfit",
		"1 while detectLocal fits nothing on this node: no route or address is in clusterCIDR, or no interface has the name, so pods are taken for clients outside of the cluster; else 0")
)

// SetContestedAddresses records how many addresses several Service ports claim.
func SetContestedAddresses(n int) { contestedAddresses.Set(float64(n)) }

// SetDetectLocalUnfit records whether detectLocal fits nothing on this node.
func SetDetectLocalUnfit(yes bool) { detectLocalUnfit.Set(oneIf(yes)) }

var (
	conntrackEntries      = newDesc("conntrack_entries", "Entries of the connection tracking table")
	conntrackLimit        = newDesc("conntrack_limit", "Entries that the connection tracking table may have (nf_conntrack_max); 0 for no limit")
	conntrackInsertFailed = newDesc("conntrack_insert_failed_total", "Packets dropped because their connection tracking entry collided with another, counted by the kernel")
	conntrackDropped      = newDesc("conntrack_drop_total", "Packets dropped because the connection tracking table was full, counted by the kernel")
	conntrackEarlyDropped = newDesc("conntrack_early_drop_total", "Connection tracking entries removed before their time to make room, counted by the kernel")
)

// tableStatsPatience bounds the time that a scrape waits for the kernel.
const tableStatsPatience = time.Second

// ShowConntrack makes the metrics of the connection tracking table show that of c. Each scrape asks the kernel for a few
// numbers, which takes as long for a large table as for a small one.
func ShowConntrack(c *conntrack.Conn) { conntrackCollector.source.Store(c) }

var conntrackCollector = &collector[conntrack.Conn]{
	descs: []*metrics.Desc{conntrackEntries, conntrackLimit, conntrackInsertFailed, conntrackDropped, conntrackEarlyDropped},
	collect: func(c *conntrack.Conn, ch chan<- metrics.Metric) {
		ctx, cancel := context.WithTimeout(context.Background(), tableStatsPatience)
		defer cancel()
		stats, err := c.TableStats(ctx)
		if err != nil {
			return // the metrics are absent
		}
		ch <- metrics.NewLazyConstMetric(conntrackEntries, metrics.GaugeValue, float64(stats.Entries))
		ch <- metrics.NewLazyConstMetric(conntrackLimit, metrics.GaugeValue, float64(stats.Limit))
		ch <- metrics.NewLazyConstMetric(conntrackInsertFailed, metrics.CounterValue, float64(stats.InsertFailed))
		ch <- metrics.NewLazyConstMetric(conntrackDropped, metrics.CounterValue, float64(stats.Drop))
		ch <- metrics.NewLazyConstMetric(conntrackEarlyDropped, metrics.CounterValue, float64(stats.EarlyDrop))
	},
}

var unansweredEndpoints = newDesc("unanswered_endpoints",
	"Endpoints to which at least three TCP connections of this node wait for a first answer, at the last look, at most one in a minute. Absent while the connection tracking table has more than 200,000 entries")

// SetUnansweredEndpoints records how many endpoints do not answer; a negative number stands for not known.
func SetUnansweredEndpoints(n int) {
	known := &n
	if n < 0 {
		known = nil
	}
	unansweredCollector.source.Store(known)
}

var unansweredCollector = &collector[int]{
	descs: []*metrics.Desc{unansweredEndpoints},
	collect: func(n *int, ch chan<- metrics.Metric) {
		ch <- metrics.NewLazyConstMetric(unansweredEndpoints, metrics.GaugeValue, float64(*n))
	},
}
