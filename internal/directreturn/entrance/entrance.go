// Package entrance is what direct return knows of the node that packets enter: whether packets that the node forwards as
// they are would reach other nodes (Obstacle), which packets it must translate (Inside), and what else may lose packets
// (Findings).
package entrance

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
)

// Rules forward packets. They are those of a compiler.Compiler.
type Rules interface {
	// ForwardsTo returns the addresses to which they forward, sorted.
	ForwardsTo() []netip.Addr
	// LimitForwarding makes them forward nothing (mute), or nothing that enters by the devices inside.
	LimitForwarding(mute bool, inside []string)
}

// Entrance limits what rules forward, as the node's routes, policies and devices demand. It looks again when they may have
// changed.
type Entrance struct {
	// ObstacleTo and DevicesInside are Obstacle and Inside. Tests replace them.
	ObstacleTo    func(to []netip.Addr) (string, error)
	DevicesInside func(own []netip.Addr) ([]string, error)
	onObstacle    func(string)
	// to has the addresses that were looked at, and own those of the Node.
	to, own []netip.Addr
	// known says that a look succeeded.
	known bool
	// obstacle and inside are the last answers. Empty obstacle: nothing is in the way.
	obstacle string
	inside   []string
}

// New returns an Entrance that calls onObstacle with each new obstacle of the node, and with "" if nothing is in the way any
// more.
func New(onObstacle func(string)) *Entrance {
	return &Entrance{ObstacleTo: Obstacle, DevicesInside: Inside, onObstacle: onObstacle}
}

// Look looks at the routes to the addresses to which rules forward, before the rules are committed: for the changes of a
// Sync at the routes to new addresses alone, because a Sync must not pay for all others; for nil at all.
func (e *Entrance) Look(ctx context.Context, rules Rules, changes *model.Changes) {
	if changes != nil && changes.Node != nil {
		e.own = changes.Node.IPs
	}
	before := e.to
	e.to = rules.ForwardsTo()
	look := e.to
	if changes != nil {
		look = slices.DeleteFunc(slices.Clone(e.to), func(addr netip.Addr) bool {
			_, is := slices.BinarySearchFunc(before, addr, netip.Addr.Compare)
			return is
		})
		if len(look) == 0 {
			return
		}
	}
	obstacle, inside, err := e.look(look, changes == nil || !e.known)
	if changes != nil && err == nil {
		obstacle = cmp.Or(e.obstacle, obstacle)
		if e.known {
			inside = e.inside
		}
	}
	e.limit(klog.FromContext(ctx), rules, obstacle, inside, err)
}

func (e *Entrance) look(to []netip.Addr, devices bool) (obstacle string, inside []string, err error) {
	if len(to) > 0 {
		obstacle, err = e.ObstacleTo(to)
	}
	if len(to) > 0 && devices && err == nil {
		inside, err = e.DevicesInside(e.own)
	}
	return obstacle, inside, err
}

// limit applies the answers of a look. After a failure they stay as they were; a first failure is an obstacle.
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
	if blocked {
		if obstacle != "" {
			logger.Info("Direct return: this node forwards nothing; clients that enter by it are masqueraded", "reason", obstacle)
		} else {
			logger.Info("Direct return: nothing keeps this node from forwarding any more")
		}
		e.onObstacle(obstacle)
	}
	if moved && len(inside) > 0 {
		logger.Info("Direct return: clients that enter by these devices are masqueraded: this node is the gateway of their networks",
			"devices", inside[:min(len(inside), maxNamed)], "count", len(inside))
	}
	if blocked || moved {
		rules.LimitForwarding(obstacle != "", inside)
	}
}

// maxNamed bounds the names in a line of the log.
const maxNamed = 10
