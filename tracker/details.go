package tracker

import (
	"maps"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/nftproxy/nftproxy/model"
)

// Lengths in bytes. Kubernetes bounds label values and host names (63) and qualified names (317), but neither zones nor
// single annotations.
const (
	maxInfo        = 63
	maxAppProtocol = 317
	maxValue       = 4096
	// maxValues bounds the kept labels, and the kept annotations, of one Service.
	maxValues = 32 << 10
)

// sendable reports whether the node-local API can carry a text: it is short enough, and UTF-8.
func sendable(text string, maxBytes int) bool { return len(text) <= maxBytes && utf8.ValidString(text) }

// addDetails sets the fields of Options.Details that all ports of a Service share.
func addDetails(base *model.ServicePort, obj *corev1.Service) {
	switch obj.Spec.Type {
	case corev1.ServiceTypeNodePort:
		base.ServiceType = model.TypeNodePort
	case corev1.ServiceTypeLoadBalancer:
		base.ServiceType = model.TypeLoadBalancer
	default: // a manifest may leave it out
		base.ServiceType = model.TypeClusterIP
	}
	base.ServiceLabels, base.ServiceAnnotations = keepValues(obj.Labels), keepValues(obj.Annotations)
}

// keepValues returns a copy of the labels or annotations that Options.Details keeps, nil if there are none.
func keepValues(all map[string]string) map[string]string {
	var kept map[string]string
	size := 0
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := all[key]
		if key == corev1.LastAppliedConfigAnnotation || !sendable(key, maxAppProtocol) ||
			!sendable(value, maxValue) || size+len(key)+len(value) > maxValues {
			continue
		}
		if kept == nil {
			kept = make(map[string]string, len(all))
		}
		kept[key] = value
		size += len(key) + len(value)
	}
	return kept
}

// infoOf returns host name and zone of an endpoint, without values that no pod or Node can have.
func infoOf(endpoint *discoveryv1.Endpoint) model.EndpointInfo {
	text := func(p *string) string {
		if text := ptr.Deref(p, ""); sendable(text, maxInfo) {
			return text
		}
		return ""
	}
	return model.NewEndpointInfo(text(endpoint.Hostname), text(endpoint.Zone))
}
