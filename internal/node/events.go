package node

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
)

// Events posts the events of kube-proxy v1.37 on the Node, with the same reasons. It posts in the background and gives up
// after some tries. A nil *Events posts nothing, as without an API server.
type Events struct {
	recorder events.EventRecorder
	node     *corev1.ObjectReference
}

// NewEvents returns Events that post until ctx ends. It does not connect yet; the error is about config only. The account
// needs permission to create and patch events.events.k8s.io, in the namespace default for those about Nodes.
func NewEvents(ctx context.Context, config *rest.Config, nodeName string) (*Events, error) {
	client, err := eventsclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client})
	if err := broadcaster.StartRecordingToSinkWithContext(klog.NewContext(ctx, withoutRepeats(ctx, klog.FromContext(ctx)))); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return &Events{
		recorder: broadcaster.NewRecorder(scheme.Scheme, "kube-proxy"),
		node:     &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: nodeName},
	}, nil
}

// Recorder posts events about other objects; nil on a nil *Events.
func (e *Events) Recorder() events.EventRecorder {
	if e == nil {
		return nil
	}
	return e.recorder
}

// Starting says that the proxy starts.
func (e *Events) Starting() { e.post(corev1.EventTypeNormal, "Starting", "") }

// HealthServerFailed says that the proxy ends because it cannot serve /healthz.
func (e *Events) HealthServerFailed(err error) {
	e.post(corev1.EventTypeWarning, "FailedToStartProxierHealthcheck", err.Error())
}

// MetricsServerFailed says that the proxy ends because it cannot serve its metrics.
func (e *Events) MetricsServerFailed(err error) {
	e.post(corev1.EventTypeWarning, "FailedToStartMetricServer", err.Error())
}

func (e *Events) post(kind, reason, note string) {
	if e != nil {
		e.recorder.Eventf(e.node, nil, kind, reason, "StartKubeProxy", "%s", note)
	}
}

// withoutRepeats returns a logger that repeats an error only at verbosity 2: client-go tries an event every ten seconds
// while the API server is away. Errors after the end of ctx count as repeated, because it interrupts the posting.
func withoutRepeats(ctx context.Context, logger klog.Logger) klog.Logger {
	sink := logger.GetSink()
	if sink == nil {
		return logger
	}
	if deeper, ok := sink.(logr.CallDepthLogSink); ok {
		sink = deeper.WithCallDepth(1)
	}
	return logger.WithSink(&repeats{LogSink: sink, ended: ctx.Err})
}

// repeats remembers the last error.
type repeats struct {
	logr.LogSink
	ended func() error
	mu    sync.Mutex
	last  string
}

// Error implements logr.LogSink.
func (r *repeats) Error(err error, message string, keysAndValues ...any) {
	text := message
	if err != nil {
		text += ": " + err.Error()
	}
	r.mu.Lock()
	again := text == r.last || r.ended() != nil
	r.last = text
	r.mu.Unlock()
	switch {
	case !again:
		r.LogSink.Error(err, message, keysAndValues...)
	case r.Enabled(2):
		r.Info(2, message, append(keysAndValues, "err", err)...)
	}
}
