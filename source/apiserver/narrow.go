package apiserver

import (
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// narrowing restricts the objects of a list or watch.
type narrowing func(*metav1.ListOptions)

// ownServices selects the Services with this proxy's name, or without a proxy's name.
//
// Headless Services are among them: Services do not have the label for headless objects, and older servers cannot
// select by spec.clusterIP.
func ownServices(proxyName string) narrowing {
	selector := "!" + tracker.LabelServiceProxyName
	if proxyName != "" {
		selector = tracker.LabelServiceProxyName + "=" + proxyName
	}
	return func(options *metav1.ListOptions) { options.LabelSelector = selector }
}

// routableSlices selects the EndpointSlices of Services with a ClusterIP.
//
// As in kube-proxy since v1.36, it ignores the proxy's name. A slice that is written by hand, or mirrored from
// Endpoints, has no copy of its Service's labels. And while a Service moves from one proxy to another, its slices
// follow later.
func routableSlices(options *metav1.ListOptions) {
	options.LabelSelector = "!" + corev1.IsHeadlessService
}

// narrowNodes selects the proxy's Node, or all with EveryNode.
func (c Config) narrowNodes(options *metav1.ListOptions) {
	if !c.EveryNode {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.NodeName).String()
	}
}

// trim drops managed fields, and annotations except tracker.Annotations, so that a sink that keeps a piece of an object
// does not keep them too. With details the annotations of a Service stay too.
func trim(obj metav1.Object, details bool) {
	obj.SetManagedFields(nil)
	if _, is := obj.(*corev1.Service); is && details {
		return
	}
	var kept map[string]string
	for _, name := range tracker.Annotations {
		if value, ok := obj.GetAnnotations()[name]; ok {
			if kept == nil {
				kept = make(map[string]string, 1)
			}
			kept[name] = value
		}
	}
	obj.SetAnnotations(kept)
}
