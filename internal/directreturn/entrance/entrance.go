// Package entrance is what direct return knows of the node that packets enter: whether packets that the node forwards as
// they are would reach other nodes (Obstacle), which packets it must translate (Inside), and what else may lose packets
// (Doubts).
package entrance

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

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

// Entrance limits what rules forward, as the node's routes, policies and devices demand.
type Entrance struct {
	// LookAt returns the results of Obstacle and Inside. Tests replace it.
	LookAt     func(to, own []netip.Addr) (obstacle string, inside []string, err error)
	onObstacle func(string)
	// to has the addresses of the last look, and own the addresses of the Node.
	to, own []netip.Addr
	// known says that a look succeeded, and obstacle and inside are what the looks found.
	known    bool
	obstacle string
	inside   []string
}

// New returns an Entrance that calls onObstacle with each new obstacle of the node, and with "" if nothing is in the way any
// more.
func New(onObstacle func(string)) *Entrance { return &Entrance{LookAt: lookAt, onObstacle: onObstacle} }

func lookAt(to, own []netip.Addr) (obstacle string, inside []string, err error) {
	if obstacle, err = Obstacle(to); err == nil {
		inside, err = Inside(own)
	}
	return obstacle, inside, err
}

// Look looks at the node and limits the rules, before they are committed: for the changes of a Sync only at the addresses to
// which the rules forward since then, because a Sync must not pay for all others; for nil at all addresses.
func (e *Entrance) Look(ctx context.Context, rules Rules, changes *model.Changes) {
	if changes != nil && changes.Node != nil {
		e.own = changes.Node.IPs
	}
	before := e.to
	e.to = rules.ForwardsTo()
	at, found := e.to, ""
	if changes != nil {
		at, found = slices.DeleteFunc(slices.Clone(e.to), func(addr netip.Addr) bool {
			_, had := slices.BinarySearchFunc(before, addr, netip.Addr.Compare)
			return had
		}), e.obstacle
	}
	logger := klog.FromContext(ctx)
	switch {
	case changes != nil && len(at) == 0:
		return
	case len(at) == 0:
		e.limit(logger, rules, "", nil)
		return
	}
	obstacle, inside, err := e.LookAt(at, e.own)
	obstacle = cmp.Or(found, obstacle)
	if err != nil {
		logger.Error(err, "Direct return: cannot look at the routes to other nodes")
		if obstacle, inside = e.obstacle, e.inside; !e.known {
			obstacle = err.Error()
		}
	}
	e.known = e.known || err == nil
	e.limit(logger, rules, obstacle, inside)
}

func (e *Entrance) limit(logger klog.Logger, rules Rules, obstacle string, inside []string) {
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
