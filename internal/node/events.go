package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
)

// controller is who posts the events, under the name that kube-proxy has.
const controller = "kube-proxy"

// action is what the proxy did when an event came about.
const action = "StartKubeProxy"

// Events posts on the Node what kube-proxy v1.37 posts there, with its reasons, so that
// alerts and eyes find them. Posting happens in the background and is given up
// after some tries; no event is worth waiting for. A nil *Events posts nothing: without an API
// server there is nobody to post to.
type Events struct {
	recorder events.EventRecorder
	node     *corev1.ObjectReference
}

// NewEvents returns Events that post until ctx ends. It does not connect yet; the error is about
// config only. At the API server it takes leave to create and patch
// events.events.k8s.io, in the namespace default for those about Nodes.
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
		recorder: broadcaster.NewRecorder(scheme.Scheme, controller),
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
		e.recorder.Eventf(e.node, nil, kind, reason, action, "%s", note)
	}
}
