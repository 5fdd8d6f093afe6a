package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/source/apiserver"
)

// Events posts the events of kube-proxy v1.37 on the Node, with the same reasons, in the background, one after another,
// with a few tries each. A nil *Events posts nothing.
//
// It replaces client-go's recorder, which links clients for all kinds of Kubernetes.
type Events struct {
	client   *rest.RESTClient
	node     corev1.ObjectReference
	instance string
	// waiting are the events to post. A full queue drops events.
	waiting chan *eventsv1.Event
}

const (
	// maxWaitingEvents is small, because no event repeats unless its text changes.
	maxWaitingEvents = 100
	// eventTries and eventPause are client-go's.
	eventTries = 12
	eventPause = 10 * time.Second
	// maxNote is the longest note in bytes that the API server takes.
	maxNote = 1024
)

// NewEvents returns Events that post until ctx ends. It does not connect yet; errors are about config only. The account
// must be allowed to create events.events.k8s.io, in the namespace default for events about Nodes.
func NewEvents(ctx context.Context, config *rest.Config, nodeName string) (*Events, error) {
	client, err := apiserver.Client(config, nil, eventsv1.SchemeGroupVersion, &eventsv1.Event{})
	if err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	e := &Events{
		client:   client,
		node:     corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: nodeName},
		instance: "kube-proxy-" + hostname,
		waiting:  make(chan *eventsv1.Event, maxWaitingEvents),
	}
	go e.run(ctx)
	return e, nil
}

// Starting posts that the proxy starts.
func (e *Events) Starting() { e.aboutNode(corev1.EventTypeNormal, "Starting", "") }

// HealthServerFailed posts that the proxy ends because it cannot serve /healthz.
func (e *Events) HealthServerFailed(err error) {
	e.aboutNode(corev1.EventTypeWarning, "FailedToStartProxierHealthcheck", err.Error())
}

// MetricsServerFailed posts that the proxy ends because it cannot serve its metrics.
func (e *Events) MetricsServerFailed(err error) {
	e.aboutNode(corev1.EventTypeWarning, "FailedToStartMetricServer", err.Error())
}

func (e *Events) aboutNode(kind, reason, note string) {
	if e != nil {
		e.post(e.node, kind, reason, "StartKubeProxy", note)
	}
}

// ServiceHealthFailed posts that the proxy cannot serve the healthCheckNodePort of a Service.
func (e *Events) ServiceHealthFailed(namespace, service string, err error) {
	e.aboutService(namespace, service, "FailedToStartServiceHealthcheck", "Listen", err.Error())
}

// ServiceWarning posts that the rules do not give a Service all that it requests.
func (e *Events) ServiceWarning(namespace, service, reason, note string) {
	e.aboutService(namespace, service, reason, "Program", note)
}

func (e *Events) aboutService(namespace, service, reason, action, note string) {
	if e != nil {
		about := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: service}
		e.post(about, corev1.EventTypeWarning, reason, action, note)
	}
}

// NodeWarning posts that rules lack something because of the node.
func (e *Events) NodeWarning(reason, note string) {
	if e != nil {
		e.post(e.node, corev1.EventTypeWarning, reason, "Program", note)
	}
}

func (e *Events) post(about corev1.ObjectReference, kind, reason, action, note string) {
	now := time.Now()
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "")
	}
	select {
	case e.waiting <- &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault), Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano()),
		},
		EventTime: metav1.NewMicroTime(now), ReportingController: "kube-proxy", ReportingInstance: e.instance,
		Regarding: about, Type: kind, Reason: reason, Action: action, Note: note,
	}:
	default:
	}
}

func (e *Events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.waiting:
			e.send(ctx, event)
		}
	}
}

// send posts an event, and tries again until the server answers.
func (e *Events) send(ctx context.Context, event *eventsv1.Event) {
	logger := klog.FromContext(ctx).WithValues("reason", event.Reason, "about", klog.KRef(event.Regarding.Namespace, event.Regarding.Name))
	for try := range eventTries {
		err := e.client.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case errors.As(err, new(*apierrors.StatusError)):
			logger.Error(err, "Server rejected event")
			return
		case try == 0:
			logger.Error(err, "Cannot post an event, will retry")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(eventPause, 0.25)): // not all nodes at once
		}
	}
}
