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

	"github.com/nftproxy/nftproxy/model"
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
	mu     sync.Mutex
	timers []*time.Timer
	// listed says that the Source said Synced, released that the next Sink was told, givenUp
	// that addresses are not waited for any more.
	listed, released, givenUp bool
	// known is the Node as last handed on; without a Name none was.
	known model.Node
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
	w.setNode(obj)
	w.proceed()
}

func (w *watch) setNode(obj *corev1.Node) {
	obj = w.options.effective(obj)
	seen := tracker.ParseNode(obj)
	if err := w.changed(&seen); err != nil {
		w.fail(err)
	}
	if w.stopped {
		return
	}
	w.known = seen
	w.Sink.SetNode(obj)
}

// changed returns an error for a change that only a restart takes up. Until the next Sink was
// told Synced nothing was set up yet.
func (w *watch) changed(seen *model.Node) error {
	if !w.released {
		return nil
	}
	const format = "node %s: its %s changed from %s to %s; exiting, so that a restart sets up everything anew"
	if was := w.known.IPs; len(was) > 0 && !slices.Equal(was, seen.IPs) {
		return fmt.Errorf(format, seen.Name, "addresses", text(was), text(seen.IPs))
	}
	if was := w.known.PodCIDRs; w.options.NodeCIDR && !slices.Equal(was, seen.PodCIDRs) {
		return fmt.Errorf(format, seen.Name, "pod CIDRs", text(was), text(seen.PodCIDRs))
	}
	return nil
}

// Synced implements tracker.Sink.
func (w *watch) Synced() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listed = true
	w.proceed()
	if w.released || w.stopped {
		return
	}
	w.logger.Info("Waiting for the Node", "node", w.options.NodeName, "ips", w.known.IPs, "podCIDRs", w.known.PodCIDRs)
	w.timers = append(w.timers, time.AfterFunc(w.options.IPWait, w.goOnWithoutIPs))
	if w.options.NodeCIDR {
		w.timers = append(w.timers, time.AfterFunc(w.options.PodCIDRWait, w.missPodCIDRs))
	}
}

// proceed tells the next Sink Synced, once, when there is nothing left to wait for.
func (w *watch) proceed() {
	waiting := len(w.known.IPs) < w.options.wantedIPs() && !w.givenUp ||
		w.options.NodeCIDR && len(w.known.PodCIDRs) == 0
	if !w.listed || w.released || w.stopped || waiting {
		return
	}
	if err := w.options.checkFamilies(w.known.IPs); err != nil {
		w.fail(err)
		return
	}
	w.logger.Info("Node is known", "node", w.options.NodeName, "ips", w.known.IPs, "podCIDRs", w.known.PodCIDRs)
	w.released = true
	w.Sink.Synced()
}

// goOnWithoutIPs is for a Node that has no addresses, or that does not exist, in which case
// those that override them still hold.
func (w *watch) goOnWithoutIPs() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.released || w.stopped {
		return
	}
	w.givenUp = true
	if w.known.Name == "" {
		w.setNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.options.NodeName}})
	}
	if len(w.known.IPs) == 0 {
		w.logger.Error(nil, "Cannot tell this node's addresses, because the Node does not exist or has none; node ports do not answer on them until it has. If the Node has another name, set hostnameOverride",
			"node", w.options.NodeName, "waited", w.options.IPWait)
	}
	w.proceed()
}

func (w *watch) missPodCIDRs() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.known.PodCIDRs) == 0 {
		w.fail(fmt.Errorf("node %s: it has no pod CIDR after %v, which detectLocalMode NodeCIDR needs; have the controller manager allocate them (--allocate-node-cidrs), correct hostnameOverride if the Node has another name, or set another detectLocalMode",
			w.options.NodeName, w.options.PodCIDRWait))
	}
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
	for _, timer := range w.timers {
		timer.Stop()
	}
	return w.reason
}

// text returns a list as people read it.
func text[T netip.Addr | netip.Prefix](list []T) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ", ")
}
