package apiserver

import (
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// narrowing restricts what a list or watch asks for.
type narrowing func(*metav1.ListOptions)

// ownServices selects the Services that carry this proxy's name, or no proxy's name.
//
// Headless ones are among them: the label for headless objects is not put on Services, and not
// every server that is still in use can select by spec.clusterIP.
func ownServices(proxyName string) narrowing {
	selector := "!" + tracker.LabelServiceProxyName
	if proxyName != "" {
		selector = tracker.LabelServiceProxyName + "=" + proxyName
	}
	return func(options *metav1.ListOptions) { options.LabelSelector = selector }
}

// routableSlices selects the EndpointSlices of Services that have an IP of their own.
//
// Slices are not selected by proxy name, and kube-proxy (since v1.36) does not do so either. The
// EndpointSlice controller copies a Service's labels to its slices, but a slice that somebody
// writes by hand, or that is mirrored from Endpoints, has no such copy: the selector for a proxy
// name would lose its endpoints. And while a Service moves from one proxy to another, its slices
// follow later. A slice whose Service is another proxy's does no harm: nothing refers to it.
func routableSlices(options *metav1.ListOptions) {
	options.LabelSelector = "!" + corev1.IsHeadlessService
}

// oneNode selects the Node with that name.
func oneNode(name string) narrowing {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return func(options *metav1.ListOptions) { options.FieldSelector = selector }
}

// nodes selects the Nodes that are asked for.
func (c Config) nodes() narrowing {
	if c.EveryNode {
		return everything
	}
	return oneNode(c.NodeName)
}

// everything selects all objects.
func everything(*metav1.ListOptions) {}

// trim drops what no part of the proxy reads, so that a sink that keeps a piece of an object does not keep
// that too: who wrote which field, and annotations, among them whole manifests
// (kubectl.kubernetes.io/last-applied-configuration).
// The time at which endpoints changed stays: latency metrics are computed from it. With details the annotations of a
// Service stay too, for sinks that pick some of them.
func trim(obj metav1.Object, details bool) {
	obj.SetManagedFields(nil)
	if _, is := obj.(*corev1.Service); is && details {
		return
	}
	var kept map[string]string
	if changed, ok := obj.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime]; ok {
		kept = map[string]string{corev1.EndpointsLastChangeTriggerTime: changed}
	}
	obj.SetAnnotations(kept)
}
