package node

import (
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

	// mu guards what follows, and keeps what is said of the Node to the next Sink in order.
	mu    sync.Mutex
	timer *time.Timer
	// object is the Node as the Source last had it; nil if it never had one.
	object *corev1.Node
	// known is what counts of the Node, as last handed on.
	known facts
	// listed says that the Source said Synced, givenUp that what is missing is not waited for any more.
	listed, givenUp bool
	// reported is what the Options were last told; nil before the first time. announced says that the
	// log has said that the Node is known.
	reported  *Missing
	announced bool
	// keeping is the addresses and pod CIDRs that the log last said are kept.
	keeping string
	// stopped says that nothing must be handed on any more, reason is why; nil is the Source.
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
	w.handOn(obj)
	w.settle()
}

// handOn gives the next Sink the Node with what counts of it, unless that takes a restart.
func (w *watch) handOn(obj *corev1.Node) {
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

// changed returns an error for a change that only a restart takes up: something new where the Node
// itself had said something before. Until then, what it says is taken as it comes.
func (w *watch) changed(next facts) error {
	if !w.settled() {
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

// logKept says when the Node loses something that stays in force, and when it has everything again.
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

// Synced implements tracker.Sink. It holds nothing back: what is missing of the Node is added later.
func (w *watch) Synced() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.object == nil && len(w.options.overrides()) > 0 {
		w.logger.Info("There is no Node of this name yet; going on with the addresses that override its own", "node", w.options.NodeName, "ips", text(w.options.overrides()))
		w.handOnAgain()
	}
	if w.missing().any() {
		w.recall()
	}
	w.listed = true
	switch missing := w.missing(); {
	case missing.any() && w.options.Wait > 0:
		w.logger.Info("Waiting for the Node; programming Services meanwhile", "node", w.options.NodeName, "missing", missing.String(), "upTo", w.options.Wait.String())
		w.timer = time.AfterFunc(w.options.Wait, w.waited)
	case missing.any():
		w.giveUp()
	}
	w.settle()
	if !w.stopped {
		w.Sink.Synced()
	}
}

// recall takes what the run before knew in place of what the Node does not say.
func (w *watch) recall() {
	if w.options.Recall == nil {
		return
	}
	last, err := w.options.Recall()
	if err != nil {
		w.logger.Error(err, "Cannot read the previous run's facts about the Node", "node", w.options.NodeName)
		return
	}
	missing := w.missing()
	if missing.Addresses && len(last.IPs) > 0 {
		w.known.ips, w.known.recalled = keepIPs(last.IPs, w.known.ips, w.options), true
	}
	if missing.PodCIDRs && len(last.PodCIDRs) > 0 {
		w.known.podCIDRs, w.known.recalled = last.PodCIDRs, true
	}
	if !w.known.recalled {
		return
	}
	w.logger.Info("The Node lacks facts; going on with those of the previous run", "node", w.options.NodeName,
		"missing", missing.String(), "ips", text(w.known.ips), "podCIDRs", text(w.known.podCIDRs))
	w.handOnAgain()
}

// handOnAgain hands the Node on with what is known apart from it, also if there is none.
func (w *watch) handOnAgain() {
	obj := w.object
	if obj == nil {
		obj = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.options.NodeName}}
	}
	w.handOn(obj)
}

// settled reports whether nothing is waited for any more.
func (w *watch) settled() bool { return w.listed && (w.givenUp || !w.missing().any()) }

// settle says what is missing, if that changed, and ends the wait if nothing is.
func (w *watch) settle() {
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

// announce logs that the Node itself has said all that counts.
func (w *watch) announce() {
	known := w.listed && !w.stopped && !w.missing().any() && !w.known.recalled
	if known && !w.announced {
		w.logger.Info("Node is known", "node", w.options.NodeName, "ips", text(w.options.counted(w.known.ips)), "podCIDRs", text(w.known.podCIDRs))
	}
	w.announced = known
}

// waited ends the wait.
func (w *watch) waited() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.settled() {
		return
	}
	w.giveUp()
	w.settle()
}

// giveUp goes on without what is missing.
func (w *watch) giveUp() {
	w.givenUp = true
	w.logMissing(w.missing())
}

// fail ends the guarded Source with a reason, the first one.
func (w *watch) fail(reason error) {
	if !w.stopped {
		w.stopped, w.reason = true, reason
		w.cancel()
	}
}

// stop makes sure that nothing is handed on any more and returns why the Source was ended.
func (w *watch) stop() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
	return w.reason
}

// hasNew reports whether is has something that was has not.
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
