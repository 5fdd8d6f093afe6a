package manifests

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/tracker"
)

// defaultNamespace is where kubectl puts an object that names no namespace.
const defaultNamespace = metav1.NamespaceDefault

// kind is a kind of object that counts here, in the order in which they are published.
type kind uint8

const (
	nodeKind kind = iota
	serviceCIDRKind
	serviceKind
	endpointSliceKind
)

// groupKind is apiVersion and kind as they stand in a manifest.
type groupKind struct{ apiVersion, kind string }

var kinds = map[groupKind]kind{
	{"v1", "Node"}:                           nodeKind,
	{"networking.k8s.io/v1", "ServiceCIDR"}:  serviceCIDRKind,
	{"v1", "Service"}:                        serviceKind,
	{"discovery.k8s.io/v1", "EndpointSlice"}: endpointSliceKind,
}

// String returns the kind as a manifest spells it.
func (k kind) String() string {
	for gk, v := range kinds {
		if v == k {
			return gk.kind
		}
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

func (k kind) namespaced() bool { return k == serviceKind || k == endpointSliceKind }

// new returns an empty object of the kind.
func (k kind) new() metav1.Object {
	switch k {
	case nodeKind:
		return &corev1.Node{}
	case serviceCIDRKind:
		return &networkingv1.ServiceCIDR{}
	case serviceKind:
		return &corev1.Service{}
	default:
		return &discoveryv1.EndpointSlice{}
	}
}

// id names an object in the directory.
type id struct {
	kind            kind
	namespace, name string
}

// String returns "Service default/web" or "Node node-1".
func (i id) String() string {
	if i.namespace == "" {
		return i.kind.String() + " " + i.name
	}
	return i.kind.String() + " " + i.namespace + "/" + i.name
}

func (i id) compare(other id) int {
	return cmp.Or(
		cmp.Compare(i.kind, other.kind),
		cmp.Compare(i.namespace, other.namespace),
		cmp.Compare(i.name, other.name),
	)
}

// object is one decoded object. Its value is never modified.
type object struct {
	id    id
	value metav1.Object
}

// set hands the object to sink.
func (o object) set(sink tracker.Sink) {
	switch v := o.value.(type) {
	case *corev1.Node:
		sink.SetNode(v)
	case *networkingv1.ServiceCIDR:
		sink.SetServiceCIDR(v)
	case *corev1.Service:
		sink.SetService(v)
	case *discoveryv1.EndpointSlice:
		sink.SetEndpointSlice(v)
	}
}

// remove tells sink that the object is gone.
func (i id) remove(sink tracker.Sink) {
	switch i.kind {
	case nodeKind:
		sink.DeleteNode(i.name)
	case serviceCIDRKind:
		sink.DeleteServiceCIDR(i.name)
	case serviceKind:
		sink.DeleteService(i.namespace, i.name)
	case endpointSliceKind:
		sink.DeleteEndpointSlice(i.namespace, i.name)
	}
}
