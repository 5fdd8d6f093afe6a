package metrics

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
)

var (
	serviceConnections   = newServiceDesc("nftables_service_connections_total", "Connections that were sent to an endpoint, by Service port; without labels, those of all Service ports beyond the first 1000")
	serviceBytes         = newServiceDesc("nftables_service_bytes_total", "Bytes of connections to Services in both directions, by Service port; without labels, those of all Service ports beyond the first 1000")
	serviceRefused       = newDesc("nftables_service_refused_packets_total", "Packets of clients that were refused or dropped, each try again, by Service port and reason; without the labels of a Service port, those of all beyond the first 1000 and of addresses that no Service holds", "namespace", "service", "port", "reason")
	serviceCountsTooMany = newDesc("nftables_service_counters_unread", "Sets whose counters are not read, because they have too many elements")
)

func newServiceDesc(name, help string) *metrics.Desc {
	return newDesc(name, help, "namespace", "service", "port")
}

// CountsOfServices gives the metrics of Services their values. ServiceCounts implements it.
type CountsOfServices interface {
	// Each calls each with every count: that of a Service port, or that of all others.
	Each(each func(ServiceCount))
	// TooLarge returns how many sets are not read.
	TooLarge() int
}

// ShowServiceCounts makes the metrics of Services show these counts.
func ShowServiceCounts(c CountsOfServices) { serviceCollector.source.Store(&c) }

var serviceCollector = &collector[CountsOfServices]{
	descs: []*metrics.Desc{serviceConnections, serviceBytes, serviceRefused, serviceCountsTooMany},
	collect: func(counts *CountsOfServices, ch chan<- metrics.Metric) {
		(*counts).Each(func(n ServiceCount) {
			namespace, service, _ := strings.Cut(n.ServicePort, "/")
			service, port, _ := strings.Cut(service, ":")
			if n.Connections > 0 || n.Bytes > 0 { // a gate may count refusals alone, and no connection has an unknown port
				ch <- metrics.NewLazyConstMetric(serviceConnections, metrics.CounterValue, float64(n.Connections), namespace, service, port)
				ch <- metrics.NewLazyConstMetric(serviceBytes, metrics.CounterValue, float64(n.Bytes), namespace, service, port)
			}
			for reason, packets := range n.Refused {
				if packets > 0 {
					ch <- metrics.NewLazyConstMetric(serviceRefused, metrics.CounterValue, float64(packets), namespace, service, port, compiler.Counted(reason).String())
				}
			}
		})
		ch <- metrics.NewLazyConstMetric(serviceCountsTooMany, metrics.GaugeValue, float64((*counts).TooLarge()))
	},
}

const (
	// countInterval is the least time between two readings. countShare limits reading to one part in this many of the time.
	countInterval = 15 * time.Second
	countShare    = 50
	// maxCountedElements is the largest number of elements of a set that is read. A listing takes the kernel time in
	// proportion to the square of the size: some 0.8 s for that many.
	maxCountedElements = 50_000
	// maxCountedPorts bounds the Service ports with a count of their own. All others share one.
	maxCountedPorts = 1000
)

// ServiceCounts reads the counters of the tables (compiler.Config.CountServices and CountRefused) and adds them up by Service port. Each
// reading has a connection of its own, so no Sync waits for it.
type ServiceCounts struct {
	conn *nft.Conn
	// view calls its argument with the tables that the kernel has, which do not change during the call.
	view   func(func(tables []*nft.Table))
	mu     sync.Mutex // guards totals
	totals countTotals
	// left counts the sets that the last reading left out, because they are too large.
	left atomic.Int64
	// maxElements is maxCountedElements; tests change it.
	maxElements int
}

// NewServiceCounts returns counts, which are zero before Run. view is proxy.Backend.View.
func NewServiceCounts(conn *nft.Conn, view func(func(tables []*nft.Table))) *ServiceCounts {
	return &ServiceCounts{conn: conn, view: view, totals: newCountTotals(maxCountedPorts), maxElements: maxCountedElements}
}

// Run reads the counters every 15 s until ctx ends; less often if that took more than one part in fifty of the time.
func (c *ServiceCounts) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	failing := false
	for ctx.Err() == nil {
		begin := time.Now()
		err := c.Read(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			logger.Info("Cannot read the counters of Services; trying again", "in", countInterval, "reason", err.Error())
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-time.After(max(countInterval, countShare*time.Since(begin))):
		}
	}
}

// Read reads the counters once.
func (c *ServiceCounts) Read(ctx context.Context) error {
	sets := c.sets()
	if len(sets) == 0 {
		return nil
	}
	conn, err := c.conn.Another()
	if err != nil {
		return err
	}
	defer conn.Close()
	for set, size := range sets {
		reading := make(countReading, size)
		whole := true
		if size > 0 { // in an empty set the next element counts in full
			whole, err = conn.Counts(ctx, set.family, set.table, set.name, func(e nft.Element, n nft.Count) { reading.add(set.name, e, n) })
		}
		if err != nil {
			return fmt.Errorf("count Services: %w", err)
		}
		c.mu.Lock()
		c.totals.addReading(set, reading, whole)
		c.mu.Unlock()
	}
	return nil
}

// Each implements CountsOfServices, for Service ports that had a connection or a packet. It reads nothing from the kernel.
func (c *ServiceCounts) Each(each func(ServiceCount)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.totals.each(each)
}

// TooLarge implements CountsOfServices.
func (c *ServiceCounts) TooLarge() int { return int(c.left.Load()) }

// countSet is a set whose elements count.
type countSet struct {
	family      nft.Family
	table, name string
}

// sets returns the sets that count, with the number of their elements, without those that are too large.
func (c *ServiceCounts) sets() map[countSet]int {
	sets, left := map[countSet]int{}, 0
	c.view(func(tables []*nft.Table) {
		for _, t := range tables {
			for _, s := range t.Sets {
				switch {
				case !s.Counter:
				case s.Len() > c.maxElements:
					left++
				default:
					sets[countSet{t.Family, t.Name, s.Name}] = s.Len()
				}
			}
		}
	})
	c.left.Store(int64(left))
	return sets
}
