// Package node guards the Node object of the node that the proxy runs on. It supplies facts that the Node lacks at the
// start, ends the process when the Node changes in a way that a running proxy cannot follow, and posts events on the
// Node. The tracker reads zone, addresses and pod CIDRs.
package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/model"
)

// guard decides which Node the proxy works with:
//
//   - It overrides the Node's addresses (Options.Override, Options.FamilyPolicy).
//   - It keeps addresses and pod CIDRs in force that the Node has lost. The machine still runs while its Node is
//     registered anew, or loses its addresses.
//   - If the Node lacks required facts at the start, it uses the previous run's (Options.PreviousNode), else none, and
//     reports missing facts after Options.Wait. The proxy programs Services in between. Later facts are accepted.
//   - As in kube-proxy v1.37, it fails when the Node gets new addresses or pod CIDRs, so that a restart sets up
//     everything anew.
type guard struct {
	options Options
	logger  klog.Logger
	// publish receives the Node to work with. Its calls never overlap.
	publish func(model.Node)
	// cancel is called when the guard fails.
	cancel func()

	// mu guards the fields below. The callers of set and synced hold it.
	mu    sync.Mutex
	timer *time.Timer
	// said is the source's last Node; nil for none.
	said *model.Node
	// known are the last published facts.
	known facts
	// listed says that synced was called, givenUp that the wait for missing facts is over.
	listed, givenUp bool
	// reported is the last argument of OnMissing; nil for none. announced says that the log has the line about the
	// known Node.
	reported  *Missing
	announced bool
	// keeping holds the kept addresses and pod CIDRs of the last log line.
	keeping string
	// stopped says that no Node may be published any more, for the reason; nil if the source ended.
	stopped bool
	reason  error
}

// set takes a Node from the source.
func (g *guard) set(said model.Node) {
	g.said = &said
	g.update()
	g.report()
}

// update publishes the Node with its facts, unless they require a restart.
func (g *guard) update() {
	node := model.Node{Name: g.options.NodeName}
	if g.said != nil {
		node = *g.said
	}
	next := g.known.next(node, &g.options)
	if err := g.restart(next); err != nil {
		g.fail(err)
	}
	if g.stopped {
		return
	}
	g.logKept(next)
	g.known = next
	node.IPs, node.PodCIDRs = g.options.counted(next.ips), next.podCIDRs
	g.publish(node)
}

// restart returns an error for a change that requires a restart: a new fact in place of a confirmed fact. During the
// wait it accepts every change.
func (g *guard) restart(next facts) error {
	if !g.waitOver() {
		return nil
	}
	const format = "node %s: its %s changed from %s to %s; exiting, so that a restart sets up everything anew"
	was, is := g.options.counted(g.known.ips), g.options.counted(next.ips)
	if g.known.ipsConfirmed && hasNew(was, is) {
		return fmt.Errorf(format, g.options.NodeName, "addresses", text(was), text(is))
	}
	if g.options.NodeCIDR && g.known.cidrsConfirmed && hasNew(g.known.podCIDRs, next.podCIDRs) {
		return fmt.Errorf(format, g.options.NodeName, "pod CIDRs", text(g.known.podCIDRs), text(next.podCIDRs))
	}
	return nil
}

// logKept logs when the Node loses facts that stay in force, and when it has all facts again.
func (g *guard) logKept(next facts) {
	switch {
	case !g.listed || !next.ipsConfirmed && !next.cidrsConfirmed || next.kept == g.keeping:
		return
	case next.kept == "":
		g.logger.Info("The Node has again what it had lost", "node", g.options.NodeName)
	default:
		g.logger.Info("The Node has lost addresses or pod CIDRs; keeping them in force",
			"node", g.options.NodeName, "kept", next.kept)
	}
	g.keeping = next.kept
}

// synced records that the source has listed everything. It does not wait for missing facts of the Node.
func (g *guard) synced() {
	if overrides := g.options.overrides(); g.said == nil && len(overrides) > 0 {
		g.logger.Info("There is no Node of this name yet; going on with the addresses that override its own",
			"node", g.options.NodeName, "ips", text(overrides))
		g.update()
	}
	if g.missing().any() {
		g.usePrevious()
	}
	g.listed = true
	switch missing := g.missing(); {
	case missing.any() && g.options.Wait > 0:
		g.logger.Info("Waiting for the Node; programming Services meanwhile",
			"node", g.options.NodeName, "missing", missing.String(), "upTo", g.options.Wait.String())
		g.timer = time.AfterFunc(g.options.Wait, g.waited)
	case missing.any():
		g.giveUp()
	}
	g.report()
}

// usePrevious takes the facts of the previous run that the Node lacks.
func (g *guard) usePrevious() {
	if g.options.PreviousNode == nil {
		return
	}
	last, err := g.options.PreviousNode()
	if errors.Is(err, context.Canceled) {
		return // the process stops
	}
	if err != nil {
		g.logger.Error(err, "Cannot read the previous run's facts about the Node", "node", g.options.NodeName)
		return
	}
	missing := g.missing()
	if missing.Addresses && len(last.IPs) > 0 {
		g.known.ips, g.known.previous = keepIPs(last.IPs, g.known.ips, &g.options), true
	}
	if missing.PodCIDRs && len(last.PodCIDRs) > 0 {
		g.known.podCIDRs, g.known.previous = last.PodCIDRs, true
	}
	if !g.known.previous {
		return
	}
	g.logger.Info("The Node lacks facts; going on with those of the previous run", "node", g.options.NodeName,
		"missing", missing.String(), "ips", text(g.known.ips), "podCIDRs", text(g.known.podCIDRs))
	g.update()
}

// waitOver reports whether the proxy no longer waits for the Node.
func (g *guard) waitOver() bool { return g.listed && (g.givenUp || !g.missing().any()) }

func (g *guard) missing() Missing {
	return Missing{
		Node:      g.said == nil,
		Addresses: len(g.known.ips) == 0 || g.options.requireDual() && len(g.known.ips) < 2,
		PodCIDRs:  g.options.NodeCIDR && len(g.known.podCIDRs) == 0,
	}
}

// report calls OnMissing if the missing facts changed, and checks the families when the wait is over. It logs when the
// Node has all required facts.
func (g *guard) report() {
	if !g.listed || g.stopped {
		return
	}
	missing := g.missing()
	missing.Waiting = missing.any() && !g.givenUp
	if g.reported == nil || *g.reported != missing {
		g.reported = &missing
		if !missing.Waiting {
			if err := g.options.checkFamilies(g.options.counted(g.known.ips)); err != nil {
				g.fail(err)
				return
			}
		}
		if g.options.OnMissing != nil {
			g.options.OnMissing(missing)
		}
	}
	known := !missing.any() && !g.known.previous
	if known && !g.announced {
		g.logger.Info("Node is known",
			"node", g.options.NodeName, "ips", text(g.options.counted(g.known.ips)), "podCIDRs", text(g.known.podCIDRs))
	}
	g.announced = known
}

// waited ends the wait.
func (g *guard) waited() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped || g.waitOver() {
		return
	}
	g.giveUp()
	g.report()
}

// giveUp continues without the missing facts. The log names the consequences and the remedy.
func (g *guard) giveUp() {
	g.givenUp = true
	missing := g.missing()
	about := []any{"node", g.options.NodeName, "waited", g.options.Wait.String()}
	if missing.Node {
		g.logger.Error(nil, "Going on without a Node, because there is none of this name. If it has another one, set hostnameOverride: endpoints on it are not known as local", about...)
	}
	if missing.Addresses {
		g.logger.Error(nil, "Going on without the node's addresses; node ports do not answer on them until the Node has them", about...)
	}
	if missing.PodCIDRs {
		g.logger.Error(nil, "Going on without the node's pod CIDRs, which detectLocalMode NodeCIDR needs; until the Node has them, nothing to a ClusterIP is masqueraded, and pods have no short-circuit under policy Local. "+
			"Have the controller manager allocate them (--allocate-node-cidrs), or set another detectLocalMode", about...)
	}
}

// fail ends the source. The first reason counts.
func (g *guard) fail(reason error) {
	if !g.stopped {
		g.stopped, g.reason = true, reason
		g.cancel()
	}
}

// stop ends publishing and returns the reason of a failure.
func (g *guard) stop() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	if g.timer != nil {
		g.timer.Stop()
	}
	return g.reason
}

// hasNew reports whether the list is has an element that the list was lacks.
func hasNew[T comparable](was, is []T) bool {
	return slices.ContainsFunc(is, func(v T) bool { return !slices.Contains(was, v) })
}
