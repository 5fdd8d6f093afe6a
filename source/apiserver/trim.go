package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
