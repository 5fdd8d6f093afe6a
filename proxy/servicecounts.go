package proxy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

const (
	// CountInterval is the least time between two readings of the counters.
	CountInterval = 15 * time.Second
	// countShare limits reading to one part in this many of the time.
	countShare = 50
	// MaxCountedElements is the largest number of elements of a set that is read. A listing takes the kernel time in
	// proportion to the square of the size: some 0.8 s for that many.
	MaxCountedElements = 50_000
	// MaxCountedPorts is how many Service ports have a count of their own. All others share one.
	MaxCountedPorts = 1000
)

// ServiceCounts reads the counters of the tables (compiler.Config.CountServices) and adds them up by Service port. It
// has a connection of its own and holds no lock while the kernel lists, so no Sync waits for it.
type ServiceCounts struct {
	backend *Backend
	mu      sync.Mutex // guards totals
	totals  countTotals
	// left counts the sets that the last reading left out, because they are too large.
	left atomic.Int64
	// maxElements is MaxCountedElements; tests change it.
	maxElements int
}

// NewServiceCounts returns the counts of a backend, which are zero before Run.
func NewServiceCounts(b *Backend) *ServiceCounts {
	return &ServiceCounts{backend: b, totals: newCountTotals(MaxCountedPorts), maxElements: MaxCountedElements}
}

// Run reads the counters every CountInterval until ctx ends; less often if that would take more than one part in fifty
// of the time.
func (c *ServiceCounts) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	failing := false
	for ctx.Err() == nil {
		begin := time.Now()
		err := c.Read(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			logger.Info("Cannot read the counters of Services; trying again", "in", CountInterval, "reason", err.Error())
		}
		failing = err != nil
		sleep(ctx, max(CountInterval, countShare*time.Since(begin)))
	}
}

// Read reads the counters once.
func (c *ServiceCounts) Read(ctx context.Context) error {
	sets, left := c.backend.countSets(c.maxElements)
	c.left.Store(int64(left))
	if len(sets) == 0 {
		return nil
	}
	conn, err := c.backend.conn.Another()
	if err != nil {
		return err
	}
	defer conn.Close()
	for set, size := range sets {
		if err := c.read(ctx, conn, set, size); err != nil {
			return err
		}
	}
	return nil
}

func (c *ServiceCounts) read(ctx context.Context, conn *nft.Conn, set countSet, size int) error {
	reading := make(countReading, size)
	whole, err := conn.Counts(ctx, set.family, compiler.TableNameFor(c.backend.serviceProxyName), set.name, reading.add)
	if err != nil {
		return fmt.Errorf("count Services: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.totals.addReading(set, reading, whole)
	return nil
}

// Each calls each with the count of each Service port that had a connection or a packet, in no order. It takes
// microseconds, and reads nothing from the kernel.
func (c *ServiceCounts) Each(each func(ServiceCount)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.totals.each(each)
}

// TooLarge returns the number of sets that the last reading left out, because they have more than MaxCountedElements
// elements.
func (c *ServiceCounts) TooLarge() int { return int(c.left.Load()) }

// countSet is a set whose elements count.
type countSet struct {
	family nft.Family
	name   string
}

// countSets returns the sets that count and have elements, with the number of these. left counts the sets that it left
// out because they have more than maxElements.
func (b *Backend) countSets(maxElements int) (sets map[countSet]int, left int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.kind != stateApplied {
		return nil, 0
	}
	sets = map[countSet]int{}
	for _, t := range b.compiler.Tables() {
		for _, s := range t.Sets {
			switch {
			case !s.Counter || s.Len() == 0:
			case s.Len() > maxElements:
				left++
			default:
				sets[countSet{t.Family, s.Name}] = s.Len()
			}
		}
	}
	return sets, left
}
