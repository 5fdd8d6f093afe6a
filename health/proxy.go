package health

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/nftproxy/nftproxy/tracker"
)

// DefaultTimeout is twice kube-proxy's default sync period, which is what kube-proxy allows
// a change to wait.
const DefaultTimeout = time.Minute

// Options configures a Proxy. The zero value works.
type Options struct {
	// Timeout is how long a change may wait for a sync that succeeds before the proxy counts
	// as stuck. kube-proxy takes twice its sync period; 0 means DefaultTimeout.
	Timeout time.Duration
	// Clock tells the time; nil means the machine's clock.
	Clock clock.PassiveClock
	// OnHealthz and OnLivez, if set, are called with the status code of each answer.
	OnHealthz, OnLivez func(code int)
}

// Proxy knows whether this proxy does its work, which is two questions. Is it stuck? That is so when
// a change has waited for longer than the timeout: syncs fail or hang, and a restart may help. A proxy
// that hears of no change is not stuck, nor is one that cannot reach the API server. Is it ready? That
// takes that it is not stuck, that a sync has succeeded, and that the Node is not waited for. Its
// methods are safe for concurrent use.
type Proxy struct {
	options Options

	// mu guards what follows.
	mu sync.Mutex
	// synced is when a sync last succeeded; zero when none did.
	synced time.Time
	// waiting is since when a change waits for a sync that succeeds; zero when none does.
	waiting time.Time
	// leaving says that the Node is being deleted.
	leaving bool
	// awaitsNode says that the Node is waited for.
	awaitsNode bool
	// failing holds the resources that cannot be watched.
	failing map[string]bool
}

// NewProxy returns the health of a proxy that starts now.
func NewProxy(options Options) *Proxy {
	options.Timeout = cmp.Or(options.Timeout, DefaultTimeout)
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Proxy{options: options, failing: map[string]bool{}}
}

// Queued says that a change waits for a sync (tracker.LoopOptions.OnQueued).
func (p *Proxy) Queued() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting.IsZero() {
		p.waiting = p.options.Clock.Now()
	}
}

// Synced says that everything queued has been synced.
func (p *Proxy) Synced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced, p.waiting = p.options.Clock.Now(), time.Time{}
}

// SetNode says what became of the Node that this proxy runs on. A Node with a deletion
// timestamp, or with the taint of the cluster autoscaler, is about to go: /healthz then asks
// load balancers to turn to other nodes (KEP-3836), while /livez does not care. Until the
// first call the Node is taken to stay, so that a proxy without a Node object is healthy.
func (p *Proxy) SetNode(node *corev1.Node) {
	leaving := !node.DeletionTimestamp.IsZero() ||
		slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == tracker.TaintToBeDeleted })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving = leaving
}

// AwaitNode says whether the Node is waited for. Until it is known, node ports may answer nowhere, so
// the proxy is not ready.
func (p *Proxy) AwaitNode(waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaitsNode = waiting
}

// SetFailing says whether a resource of the API server cannot be watched (apiserver.Config.OnFailing).
// Answers name it. It changes none of them: what was synced before goes on working.
func (p *Proxy) SetFailing(resource string, failing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if failing {
		p.failing[resource] = true
	} else {
		delete(p.failing, resource)
	}
}

// WatchNode returns a Sink that hands everything on to sink and calls SetNode with the Node
// of that name.
func (p *Proxy) WatchNode(nodeName string, sink tracker.Sink) tracker.Sink {
	return &nodeWatch{Sink: sink, proxy: p, nodeName: nodeName}
}

type nodeWatch struct {
	tracker.Sink
	proxy    *Proxy
	nodeName string
}

// SetNode implements tracker.Sink.
func (w *nodeWatch) SetNode(node *corev1.Node) {
	if node.Name == w.nodeName {
		w.proxy.SetNode(node)
	}
	w.Sink.SetNode(node)
}

// Ready reports whether traffic may come to this node, as far as that is the proxy's affair. It does
// not depend on whether the Node stays.
func (p *Proxy) Ready() bool { return p.state().ready }

// state is what a Proxy knows at one moment.
type state struct {
	now, synced           time.Time
	alive, ready, leaving bool
	problems              []string
}

func (p *Proxy) state() state {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.options.Clock.Now()
	alive := p.waiting.IsZero() || now.Sub(p.waiting) < p.options.Timeout
	return state{
		now:      now,
		synced:   p.synced,
		alive:    alive,
		ready:    alive && !p.synced.IsZero() && !p.awaitsNode,
		leaving:  p.leaving,
		problems: p.problems(),
	}
}

// problems says what is wrong beyond what the other fields of an answer say. It needs mu.
func (p *Proxy) problems() (out []string) {
	if p.synced.IsZero() {
		out = append(out, "no sync has succeeded since the start")
	}
	if p.awaitsNode {
		out = append(out, "the Node is waited for")
	}
	for _, resource := range slices.Sorted(maps.Keys(p.failing)) {
		out = append(out, "cannot watch "+resource)
	}
	return out
}
