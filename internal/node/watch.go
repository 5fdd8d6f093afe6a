package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/tracker"
)

// watch is the Sink between the guarded Source and the next Sink.
type watch struct {
	tracker.Sink
	options *Options
	logger  klog.Logger
	// cancel ends the guarded Source.
	cancel func()

	// mu guards the fields below, and keeps calls of the next Sink's SetNode in order.
	mu    sync.Mutex
	timer *time.Timer
	// object is the Source's last Node; nil for none.
	object *corev1.Node
	// known are the facts of the Node as last published.
	known facts
	// listed says that the Source called Synced, givenUp that the wait for missing facts is over.
	listed, givenUp bool
	// reported is the last argument of OnMissing; nil for none. announced says that the log has said that
	// the Node is known.
	reported  *Missing
	announced bool
	// keeping holds the addresses and pod CIDRs that the log last said are kept.
	keeping string
	// stopped says that nothing must be published any more. reason is why; nil if the Source ended.
	stopped bool
	reason  error
}

// SetNode implements tracker.Sink.
func (w *watch) SetNode(obj *corev1.Node) {
	if obj == nil || obj.Name != w.options.NodeName {
		w.Sink.SetNode(obj)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.object = obj
	w.publish(obj)
	w.updateMissing()
}

// publish passes the Node with its facts to the next Sink, unless that takes a restart.
func (w *watch) publish(obj *corev1.Node) {
	next := w.known.next(w.options.factsOf(obj), w.options)
	if err := w.changed(next); err != nil {
		w.fail(err)
	}
	if w.stopped {
		return
	}
	w.logKept(next)
	w.known = next
	w.Sink.SetNode(next.applyTo(obj, w.options))
}

// changed returns an error for a change that takes a restart: a new fact in place of one that the Node
// itself had confirmed. Before the wait is over, every change is accepted.
func (w *watch) changed(next facts) error {
	if !w.waitOver() {
		return nil
	}
	const format = "node %s: its %s changed from %s to %s; exiting, so that a restart sets up everything anew"
	was, is := w.options.counted(w.known.ips), w.options.counted(next.ips)
	if w.known.ipsConfirmed && hasNew(was, is) {
		return fmt.Errorf(format, w.options.NodeName, "addresses", text(was), text(is))
	}
	if w.options.NodeCIDR && w.known.cidrsConfirmed && hasNew(w.known.podCIDRs, next.podCIDRs) {
		return fmt.Errorf(format, w.options.NodeName, "pod CIDRs", text(w.known.podCIDRs), text(next.podCIDRs))
	}
	return nil
}

// logKept logs when the Node loses facts that stay in force, and when it has all again.
func (w *watch) logKept(next facts) {
	if !w.listed || !next.ipsConfirmed && !next.cidrsConfirmed || next.kept == w.keeping {
		return
	}
	w.keeping = next.kept
	if next.kept == "" {
		w.logger.Info("The Node has again what it had lost", "node", w.options.NodeName)
		return
	}
	w.logger.Info("The Node has lost addresses or pod CIDRs; keeping them in force", "node", w.options.NodeName, "kept", next.kept)
}

// Synced implements tracker.Sink. It does not wait for missing facts of the Node, which are added later.
func (w *watch) Synced() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.object == nil && len(w.options.overrides()) > 0 {
		w.logger.Info("There is no Node of this name yet; going on with the addresses that override its own", "node", w.options.NodeName, "ips", text(w.options.overrides()))
		w.publishAgain()
	}
	if w.missing().any() {
		w.usePrevious()
	}
	w.listed = true
	switch missing := w.missing(); {
	case missing.any() && w.options.Wait > 0:
		w.logger.Info("Waiting for the Node; programming Services meanwhile", "node", w.options.NodeName, "missing", missing.String(), "upTo", w.options.Wait.String())
		w.timer = time.AfterFunc(w.options.Wait, w.waited)
	case missing.any():
		w.giveUp()
	}
	w.updateMissing()
	if !w.stopped {
		w.Sink.Synced()
	}
}

// usePrevious takes the facts of the previous run that the Node lacks.
func (w *watch) usePrevious() {
	if w.options.PreviousNode == nil {
		return
	}
	last, err := w.options.PreviousNode()
	if errors.Is(err, context.Canceled) {
		return // the process stops
	}
	if err != nil {
		w.logger.Error(err, "Cannot read the previous run's facts about the Node", "node", w.options.NodeName)
		return
	}
	missing := w.missing()
	if missing.Addresses && len(last.IPs) > 0 {
		w.known.ips, w.known.previous = keepIPs(last.IPs, w.known.ips, w.options), true
	}
	if missing.PodCIDRs && len(last.PodCIDRs) > 0 {
		w.known.podCIDRs, w.known.previous = last.PodCIDRs, true
	}
	if !w.known.previous {
		return
	}
	w.logger.Info("The Node lacks facts; going on with those of the previous run", "node", w.options.NodeName,
		"missing", missing.String(), "ips", text(w.known.ips), "podCIDRs", text(w.known.podCIDRs))
	w.publishAgain()
}

// publishAgain publishes the Node again with the known facts, also if there is no object.
func (w *watch) publishAgain() {
	obj := w.object
	if obj == nil {
		obj = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.options.NodeName}}
	}
	w.publish(obj)
}

// waitOver reports whether the proxy no longer waits for the Node.
func (w *watch) waitOver() bool { return w.listed && (w.givenUp || !w.missing().any()) }

// updateMissing calls OnMissing if the missing facts changed. When the wait is over, it checks the families.
func (w *watch) updateMissing() {
	defer w.announce()
	if !w.listed || w.stopped {
		return
	}
	missing := w.missing()
	missing.Waiting = missing.any() && !w.givenUp
	if w.reported != nil && *w.reported == missing {
		return
	}
	w.reported = &missing
	if !missing.Waiting {
		if err := w.options.checkFamilies(w.options.counted(w.known.ips)); err != nil {
			w.fail(err)
			return
		}
	}
	if w.options.OnMissing != nil {
		w.options.OnMissing(missing)
	}
}

// announce logs that the Node itself has all facts that count.
func (w *watch) announce() {
	known := w.listed && !w.stopped && !w.missing().any() && !w.known.previous
	if known && !w.announced {
		w.logger.Info("Node is known", "node", w.options.NodeName, "ips", text(w.options.counted(w.known.ips)), "podCIDRs", text(w.known.podCIDRs))
	}
	w.announced = known
}

// waited ends the wait.
func (w *watch) waited() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.waitOver() {
		return
	}
	w.giveUp()
	w.updateMissing()
}

// giveUp continues without the missing facts.
func (w *watch) giveUp() {
	w.givenUp = true
	w.logMissing(w.missing())
}

// fail ends the guarded Source. Of several reasons the first counts.
func (w *watch) fail(reason error) {
	if !w.stopped {
		w.stopped, w.reason = true, reason
		w.cancel()
	}
}

// stop ends publishing and returns the reason for which the Source was ended.
func (w *watch) stop() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
	return w.reason
}

// hasNew reports whether is has an element that was does not have.
func hasNew[T comparable](was, is []T) bool {
	return slices.ContainsFunc(is, func(v T) bool { return !slices.Contains(was, v) })
}

// text returns a list as people read it.
func text[T netip.Addr | netip.Prefix](list []T) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ", ")
}
