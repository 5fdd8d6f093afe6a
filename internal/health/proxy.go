// Package health serves HTTP health checks of a Service proxy. A [Proxy] answers probes and load balancers on /healthz
// and /livez: should traffic come to this node? [Services] answers load balancers on each healthCheckNodePort: does the
// node have endpoints of the Service? Paths, status codes, headers and bodies equal kube-proxy v1.37's, with two
// exceptions: /healthz is 503 until the first sync has succeeded, and the answer may have a list of problems.
package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// DefaultTimeout is twice kube-proxy's default sync period, as in kube-proxy.
const DefaultTimeout = time.Minute

// maxCommit bounds the kernel's time for one commit. It is far longer than large tables need on slow machines, so a
// longer commit shows a fault of the kernel.
const maxCommit = 30 * time.Minute

// Options configures a Proxy. The zero value works.
type Options struct {
	// Timeout bounds the time that a change waits for a successful sync; 0 means DefaultTimeout.
	Timeout time.Duration
	// Clock tells the time; nil means the machine's clock.
	Clock clock.PassiveClock
	// Held, if set, returns the held objects (model.ListGuard.Held). Answers list them as problems, and keep their
	// status codes: the rules keep working, and a restart mends nothing.
	Held func() []string
	// OnHealthz and OnLivez, if set, are called with the status code of each answer.
	OnHealthz, OnLivez func(code int)
}

// Proxy is the health of this proxy. The proxy is alive unless a change has waited for longer than the timeout: then
// syncs fail or hang, and a restart may help. During a commit it is alive for up to 30 minutes, because the kernel
// undoes the commit of a killed process, and the next process would begin anew. The proxy is ready if no change has
// waited for too long, a sync has succeeded, and it does not wait for the Node. /healthz has further conditions: see
// Handler.
//
// Its methods are safe for concurrent use.
type Proxy struct {
	options Options

	// mu guards the fields below.
	mu sync.Mutex
	// synced is the time of the last successful sync; zero for none.
	synced time.Time
	// waiting is the time since which a change waits for a successful sync; zero for none.
	waiting time.Time
	// committing is the time since which a commit is under way; zero for none.
	committing time.Time
	// leaving says that the Node's deletion has begun.
	leaving bool
	// awaitsNode says that the proxy waits for the Node.
	awaitsNode bool
	// waitingFor names the resources for which the source waits; empty once it is synced.
	waitingFor string
	// failing holds the resources that cannot be watched.
	failing map[string]bool
}

// NewProxy returns the health of a new proxy.
func NewProxy(options Options) *Proxy {
	options.Timeout = cmp.Or(options.Timeout, DefaultTimeout)
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Proxy{options: options, failing: map[string]bool{}}
}

// Queued records that a change waits for a sync (model.LoopOptions.OnQueued).
func (p *Proxy) Queued() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting.IsZero() {
		p.waiting = p.options.Clock.Now()
	}
}

// Synced records that all queued changes are synced.
func (p *Proxy) Synced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced, p.waiting = p.options.Clock.Now(), time.Time{}
}

// Committing records that a commit begins (true), or has ended (proxy.Hooks.OnCommitting).
func (p *Proxy) Committing(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.committing = (time.Time{}); yes {
		p.committing = p.options.Clock.Now()
	}
}

// SetNode records the Node that this proxy runs on. If its deletion has begun (GoingAway), /healthz is 503, so that
// load balancers choose other nodes (KEP-3836). /livez does not change. A proxy that never had a Node object is
// healthy.
func (p *Proxy) SetNode(node model.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving = node.GoingAway
}

// AwaitNode records whether the proxy waits for the Node. Without it, node ports may answer nowhere, so
// the proxy is not ready meanwhile.
func (p *Proxy) AwaitNode(waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaitsNode = waiting
}

// SetFailing records whether a resource of the API server cannot be watched (apiserver.Config.OnFailing).
// Answers name it among their problems, and keep their status codes: the synced rules keep working.
func (p *Proxy) SetFailing(resource string, failing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failing, resource)
	if failing {
		p.failing[resource] = true
	}
}

// setWaiting records the resource that the source waits for; empty for none.
func (p *Proxy) setWaiting(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waitingFor = reason
}

// WatchNode returns a Sink that passes everything to sink, and calls SetNode with the Node of that name. Until Synced,
// answers list the resources that the source waits for as problems.
func (p *Proxy) WatchNode(nodeName string, sink tracker.Sink) tracker.Sink {
	return &nodeWatch{Sink: sink, proxy: p, nodeName: nodeName}
}

type nodeWatch struct {
	tracker.Sink
	proxy    *Proxy
	nodeName string
	// synced is set by Synced. Later calls of Waiting are ignored.
	synced atomic.Bool
}

// SetNode implements tracker.Sink.
func (w *nodeWatch) SetNode(node *corev1.Node) {
	if node.Name == w.nodeName {
		w.proxy.SetNode(tracker.ParseNode(node))
	}
	w.Sink.SetNode(node)
}

// DeleteNode implements tracker.Sink. As in kube-proxy v1.37, a node is not eligible without its Node.
func (w *nodeWatch) DeleteNode(name string) {
	if name == w.nodeName {
		w.proxy.SetNode(model.Node{GoingAway: true})
	}
	w.Sink.DeleteNode(name)
}

// Waiting implements tracker.Sink.
func (w *nodeWatch) Waiting(reason string) {
	if !w.synced.Load() {
		w.proxy.setWaiting(reason)
	}
	w.Sink.Waiting(reason)
}

// Synced implements tracker.Sink.
func (w *nodeWatch) Synced() {
	w.synced.Store(true)
	w.proxy.setWaiting("")
	w.Sink.Synced()
}

// Ready reports whether the proxy is ready, regardless of the Node's deletion.
func (p *Proxy) Ready() bool { return p.state().ready }

// state is the state of a Proxy at one moment, with the common part of both paths' answers.
type state struct {
	answer
	alive, ready, eligible bool
}

func (p *Proxy) state() state {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.options.Clock.Now()
	late := !p.waiting.IsZero() && now.Sub(p.waiting) >= p.options.Timeout
	committing := !p.committing.IsZero() && now.Sub(p.committing) < maxCommit
	return state{
		answer:   answer{LastUpdated: p.synced, CurrentTime: now, Problems: p.problems(now)},
		alive:    !late || committing,
		ready:    !late && !p.synced.IsZero() && !p.awaitsNode,
		eligible: !p.leaving,
	}
}

// problems returns faults that the other fields of an answer do not show. The caller holds mu.
func (p *Proxy) problems(now time.Time) (out []string) {
	if p.synced.IsZero() {
		out = append(out, "no sync has succeeded since the start")
	}
	if took := now.Sub(p.committing); !p.committing.IsZero() && took >= p.options.Timeout {
		out = append(out, fmt.Sprintf("the kernel has not finished a commit for %v", took.Round(time.Second)))
	}
	if p.options.Held != nil {
		out = append(out, p.options.Held()...)
	}
	if p.waitingFor != "" {
		out = append(out, "waiting for "+p.waitingFor)
	}
	if p.awaitsNode {
		out = append(out, "the Node is waited for")
	}
	for _, resource := range slices.Sorted(maps.Keys(p.failing)) {
		out = append(out, "cannot watch "+resource)
	}
	return out
}
