package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// trim drops what no part of the proxy reads, before an object is cached: who wrote which field,
// and annotations, among them whole manifests (kubectl.kubernetes.io/last-applied-configuration).
// The time at which endpoints changed stays: latency metrics are computed from it.
//
// It is a cache.TransformFunc. Those may see an object twice, and things that are no objects.
func trim(obj any) (any, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil // the marker of a missed deletion: nothing to trim
	}
	accessor.SetManagedFields(nil)
	var kept map[string]string
	if changed, ok := accessor.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime]; ok {
		kept = map[string]string{corev1.EndpointsLastChangeTriggerTime: changed}
	}
	accessor.SetAnnotations(kept)
	return obj, nil
}
