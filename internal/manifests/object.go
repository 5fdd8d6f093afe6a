package manifests

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/tracker"
)

// groupKind is the apiVersion and kind of a manifest.
type groupKind struct{ apiVersion, kind string }

// kind is a supported kind of object.
type kind struct {
	groupKind
	// resource is the name of the kind in URLs.
	resource   string
	namespaced bool
	new        func() metav1.Object
	set        func(tracker.Sink, metav1.Object)
	remove     func(sink tracker.Sink, namespace, name string)
	// serves says what an object serves (model.Losses).
	serves func(metav1.Object) string
}

// kinds are in the order of publication.
var kinds = []kind{
	newKind("v1", "Node", "nodes", tracker.Sink.SetNode, nil, tracker.Sink.DeleteNode, tracker.NodeServes),
	newKind("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs", tracker.Sink.SetServiceCIDR, nil, tracker.Sink.DeleteServiceCIDR,
		func(*networkingv1.ServiceCIDR) string { return "" }),
	newKind("v1", "Service", "services", tracker.Sink.SetService, tracker.Sink.DeleteService, nil, tracker.ServiceServes),
	newKind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", tracker.Sink.SetEndpointSlice, tracker.Sink.DeleteEndpointSlice, nil, tracker.SliceServes),
}

// newKind returns a kind whose objects are deleted by name, or by namespace and name.
func newKind[T any, P interface {
	*T
	metav1.Object
}](
	apiVersion, name, resource string, set func(tracker.Sink, P),
	remove func(sink tracker.Sink, namespace, name string), removeByName func(sink tracker.Sink, name string), serves func(P) string,
) kind {
	k := kind{
		groupKind:  groupKind{apiVersion, name},
		resource:   resource,
		namespaced: remove != nil,
		new:        func() metav1.Object { return P(new(T)) },
		set:        func(sink tracker.Sink, obj metav1.Object) { set(sink, obj.(P)) },
		remove:     remove,
		serves:     func(obj metav1.Object) string { return serves(obj.(P)) },
	}
	if remove == nil {
		k.remove = func(sink tracker.Sink, _, name string) { removeByName(sink, name) }
	}
	return k
}

// kindOf returns the index in kinds, or -1.
func kindOf(gk groupKind) int {
	return slices.IndexFunc(kinds, func(k kind) bool { return k.groupKind == gk })
}

// id names an object in the directory. kind is the index in kinds.
type id struct {
	kind            int
	namespace, name string
}

// String returns "Service default/web" or "Node node-1".
func (i id) String() string {
	if i.namespace == "" {
		return kinds[i.kind].kind + " " + i.name
	}
	return kinds[i.kind].kind + " " + i.namespace + "/" + i.name
}

func (i id) compare(other id) int {
	return cmp.Or(cmp.Compare(i.kind, other.kind), cmp.Compare(i.namespace, other.namespace), cmp.Compare(i.name, other.name))
}

// object is one decoded object, which is never modified.
type object struct {
	id
	metav1.Object
}

// Objects holds the objects of the manifests in a directory, each kind sorted by namespace and name. It omits objects
// of other kinds. All objects are as written: without defaults, and without validation beyond decoding.
type Objects struct {
	// Nodes are all Nodes, not only the proxy's.
	Nodes []*corev1.Node
	// ServiceCIDRs have the ranges of ClusterIPs.
	ServiceCIDRs []*networkingv1.ServiceCIDR
	// Services include Services that a proxy skips.
	Services []*corev1.Service
	// EndpointSlices may belong to missing Services.
	EndpointSlices []*discoveryv1.EndpointSlice
}

// Load reads the manifests in a directory, or a single file, once. It returns the Objects of the files without errors,
// and all errors, joined: unreadable files, objects that cannot be decoded, objects in two places.
func Load(path string) (objects Objects, err error) {
	var d directory
	var errs []error
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		text, err := os.ReadFile(path)
		if err != nil {
			return objects, err
		}
		name := filepath.Base(path)
		found, failures := decodeFile(name, text)
		if errs = failures; len(errs) == 0 {
			d.files = map[string]*file{name: {decoded: found}}
		}
	} else {
		errs = d.refresh(path)
	}
	all, duplicates := d.objects()
	for _, id := range slices.SortedFunc(maps.Keys(all), id.compare) {
		objects.Add(all[id])
	}
	return objects, errors.Join(append(errs, duplicates...)...)
}

// Add adds an object of one of the kinds of Objects, and ignores others.
func (o *Objects) Add(obj any) {
	switch v := obj.(type) {
	case *corev1.Node:
		o.Nodes = append(o.Nodes, v)
	case *networkingv1.ServiceCIDR:
		o.ServiceCIDRs = append(o.ServiceCIDRs, v)
	case *corev1.Service:
		o.Services = append(o.Services, v)
	case *discoveryv1.EndpointSlice:
		o.EndpointSlices = append(o.EndpointSlices, v)
	}
}

// Feed passes all objects to sink, and then calls Synced.
func (o *Objects) Feed(sink tracker.Sink) {
	feed(o.Nodes, sink.SetNode)
	feed(o.ServiceCIDRs, sink.SetServiceCIDR)
	feed(o.Services, sink.SetService)
	feed(o.EndpointSlices, sink.SetEndpointSlice)
	sink.Synced()
}

func feed[T any](list []T, set func(T)) {
	for _, v := range list {
		set(v)
	}
}
