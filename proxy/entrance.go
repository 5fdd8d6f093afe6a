package proxy

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
)

// Entrance is what direct return has to know of the node that packets enter.
type Entrance struct {
	// Obstacle says why packets that this node forwards as they are would not reach endpoints on other nodes, or would
	// leave unencrypted. Then it forwards none. Empty if nothing is in the way.
	Obstacle string
	// Inside has the devices by which packets come from inside the node, or from networks for which it is the gateway. The
	// node translates them, so they are not forwarded as they are.
	Inside []string
}

// entrance is the Entrance in force.
type entrance struct {
	Entrance
	// to has the addresses of endpoints that were looked at, and own those of the Node.
	to, own []netip.Addr
	known   bool
}

// lookAtEntrance applies the Entrance to what was compiled. Unless again is set, it looks only if there are other endpoints
// than before. After a failure the Entrance stays as it was; a first failure is an obstacle.
func (b *Backend) lookAtEntrance(logger klog.Logger, changes *model.Changes, again bool) {
	e := &b.entrance
	if changes.Node != nil {
		e.own = changes.Node.IPs
	}
	to := b.compiler.ForwardsTo()
	if b.hooks.Entrance == nil || !again && slices.Equal(to, e.to) {
		return
	}
	e.to = to
	var now Entrance
	if len(to) > 0 {
		var err error
		if now, err = b.hooks.Entrance(to, e.own); err != nil {
			logger.Error(err, "Direct return: cannot look at the routes to other nodes")
			if now = e.Entrance; !e.known {
				now.Obstacle = err.Error()
			}
		}
		e.known = e.known || err == nil
	}
	if now.Obstacle != e.Obstacle {
		if now.Obstacle != "" {
			logger.Info("Direct return: this node forwards nothing; clients that enter by it are masqueraded", "reason", now.Obstacle)
		} else {
			logger.Info("Direct return: nothing keeps this node from forwarding any more")
		}
		call(b.hooks.OnObstacle, now.Obstacle)
	} else if slices.Equal(now.Inside, e.Inside) {
		return
	}
	if len(now.Inside) > 0 && !slices.Equal(now.Inside, e.Inside) {
		logger.Info("Direct return: clients that enter by these devices are masqueraded: this node is the gateway of their networks",
			"devices", now.Inside[:min(len(now.Inside), maxNamed)], "count", len(now.Inside))
	}
	e.Entrance = now
	b.compiler.LimitForwarding(now.Obstacle != "", now.Inside)
	b.compiler.Apply(&model.Changes{})
}
