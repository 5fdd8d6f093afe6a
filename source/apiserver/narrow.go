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
// Slices are not selected by proxy name, as in kube-proxy since v1.36. A slice that somebody writes
// by hand, or that is mirrored from Endpoints, has no copy of its Service's labels. And while a Service
// moves from one proxy to another, its slices follow later.
func routableSlices(options *metav1.ListOptions) {
	options.LabelSelector = "!" + corev1.IsHeadlessService
}

// narrowNodes selects the proxy's Node, or all with EveryNode.
func (c Config) narrowNodes(options *metav1.ListOptions) {
	if !c.EveryNode {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.NodeName).String()
	}
}

// trim drops what no part of the proxy reads, so that a sink that keeps a piece of an object does not keep that too:
// managed fields, and annotations but for those of readAnnotations. With details the annotations of a Service stay too.
func trim(obj metav1.Object, details bool) {
	obj.SetManagedFields(nil)
	if _, is := obj.(*corev1.Service); is && details {
		return
	}
	var kept map[string]string
	for _, name := range readAnnotations {
		if value, ok := obj.GetAnnotations()[name]; ok {
			if kept == nil {
				kept = make(map[string]string, 1)
			}
			kept[name] = value
		}
	}
	obj.SetAnnotations(kept)
}

// readAnnotations are the time at which endpoints changed, which latency metrics need, and what Services ask for.
var readAnnotations = [...]string{corev1.EndpointsLastChangeTriggerTime, tracker.AnnotationDirectReturn}
