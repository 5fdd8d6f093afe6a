// Package entrance is what direct return knows of the node that packets enter: whether packets that the node forwards as
// they are would reach other nodes (Obstacle), which packets it must translate (Inside), and what else may lose packets
// (Doubts).
package entrance

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
)

// Rules forward packets. A compiler.Compiler implements Rules.
type Rules interface {
	// ForwardsTo returns the addresses to which they forward, sorted.
	ForwardsTo() []netip.Addr
	// LimitForwarding makes them forward nothing (mute), or nothing that enters by the devices inside.
	LimitForwarding(mute bool, inside []string)
}

// Entrance limits what rules forward, as the node's routes, policies and devices demand. Survey may run beside Look.
type Entrance struct {
	// ObstacleTo and DevicesInside are Obstacle and Inside. Tests replace them.
	ObstacleTo    func(to []netip.Addr) (string, error)
	DevicesInside func(own []netip.Addr) ([]string, error)
	onObstacle    func(string)

	// mu guards to, own and survey.
	mu sync.Mutex
	// to has the addresses to which the rules forward, and own the addresses of the Node.
	to, own []netip.Addr
	// survey is what the last Survey found.
	survey survey

	// known says that a look succeeded, and obstacle and inside are what rules are limited by.
	known    bool
	obstacle string
	inside   []string
}

// survey is a look at the routes to all addresses.
type survey struct {
	to       []netip.Addr
	obstacle string
	inside   []string
	err      error
}

// New returns an Entrance that calls onObstacle with each new obstacle of the node, and with "" if nothing is in the way any
// more.
func New(onObstacle func(string)) *Entrance {
	return &Entrance{ObstacleTo: Obstacle, DevicesInside: Inside, onObstacle: onObstacle}
}

// Survey looks at the routes to all addresses, and at the devices. It finds what changes on the node without a Sync. No Sync
// waits for it.
func (e *Entrance) Survey() {
	e.mu.Lock()
	found, own := survey{to: e.to}, e.own
	e.mu.Unlock()
	if len(found.to) > 0 {
		if found.obstacle, found.err = e.ObstacleTo(found.to); found.err == nil {
			found.inside, found.err = e.DevicesInside(own)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.survey = found
}

// Surveyed limits the rules by what Survey found, unless a Sync has brought other addresses meanwhile: then the next Survey
// looks at these.
func (e *Entrance) Surveyed(ctx context.Context, rules Rules) {
	e.mu.Lock()
	s := e.survey
	is := slices.Equal(s.to, e.to)
	e.mu.Unlock()
	if is {
		e.limit(klog.FromContext(ctx), rules, s.obstacle, s.inside, s.err)
	}
}

// Look looks at the routes to the addresses that a Sync brings, and limits the rules before they are committed. A Sync must
// not pay for all other addresses.
func (e *Entrance) Look(ctx context.Context, rules Rules, changes *model.Changes) {
	added, own := e.added(rules.ForwardsTo(), changes)
	if len(added) == 0 {
		return
	}
	obstacle, err := e.ObstacleTo(added)
	obstacle, inside := cmp.Or(e.obstacle, obstacle), e.inside
	if !e.known && err == nil {
		inside, err = e.DevicesInside(own)
	}
	e.limit(klog.FromContext(ctx), rules, obstacle, inside, err)
}

// added remembers the addresses, and returns the new ones.
func (e *Entrance) added(to []netip.Addr, changes *model.Changes) (added, own []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if changes.Node != nil {
		e.own = changes.Node.IPs
	}
	for _, addr := range to {
		if _, had := slices.BinarySearchFunc(e.to, addr, netip.Addr.Compare); !had {
			added = append(added, addr)
		}
	}
	e.to = to
	return added, e.own
}

// limit limits the rules by what a look found. After a failure the limits stay as they were; a first failure is an obstacle.
func (e *Entrance) limit(logger klog.Logger, rules Rules, obstacle string, inside []string, err error) {
	if err != nil {
		logger.Error(err, "Direct return: cannot look at the routes to other nodes")
		if obstacle, inside = e.obstacle, e.inside; !e.known {
			obstacle = err.Error()
		}
	}
	e.known = e.known || err == nil && len(e.to) > 0
	blocked, moved := obstacle != e.obstacle, !slices.Equal(inside, e.inside)
	e.obstacle, e.inside = obstacle, inside
	if blocked && obstacle != "" {
		logger.Info("Direct return: this node forwards nothing; clients that enter by it are masqueraded", "reason", obstacle)
	} else if blocked {
		logger.Info("Direct return: nothing keeps this node from forwarding any more")
	}
	if moved && len(inside) > 0 {
		logger.Info("Direct return: clients that enter by these devices are masqueraded: this node is the gateway of their networks",
			"devices", inside[:min(len(inside), maxNamed)], "count", len(inside))
	}
	if blocked {
		e.onObstacle(obstacle)
	}
	if blocked || moved {
		rules.LimitForwarding(obstacle != "", inside)
	}
}

// maxNamed bounds the names in a line of the log.
const maxNamed = 10
