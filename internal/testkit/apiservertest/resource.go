package apiservertest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// Object is an object that the server stores: any API object with metadata whose kind it serves.
type Object interface {
	runtime.Object
	metav1.Object
}

// resource is one kind that the server serves.
type resource struct {
	kind       schema.GroupVersionKind
	plural     string
	namespaced bool
}

// resources holds what a service proxy reads and, with events, what it writes; and pods, for kubectl-nftproxy.
var resources = []*resource{
	{corev1.SchemeGroupVersion.WithKind("Service"), "services", true},
	{corev1.SchemeGroupVersion.WithKind("Node"), "nodes", false},
	{corev1.SchemeGroupVersion.WithKind("Pod"), "pods", true},
	{corev1.SchemeGroupVersion.WithKind("Event"), "events", true},
	{eventsv1.SchemeGroupVersion.WithKind("Event"), "events", true},
	{discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), "endpointslices", true},
	{networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), "servicecidrs", false},
}

// Scheme has all kinds of these groups, and Codecs encodes them. The scheme of client-go would bring its clients into
// each test program.
var (
	Scheme = newScheme()
	Codecs = serializer.NewCodecFactory(Scheme)

	parameters = runtime.NewParameterCodec(Scheme)
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, eventsv1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

func resourceOf(obj Object) (*resource, error) {
	kinds, _, err := Scheme.ObjectKinds(obj)
	if err != nil {
		return nil, err
	}
	for _, r := range resources {
		if r.kind == kinds[0] {
			return r, r.checkNamespace(obj.GetNamespace())
		}
	}
	return nil, fmt.Errorf("kind %v is not served", kinds[0])
}

// checkNamespace refuses an object that could not have the URL it belongs at.
func (r *resource) checkNamespace(namespace string) error {
	if r.namespaced != (namespace != "") {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in namespace %q", r.plural, namespace))
	}
	return nil
}

// newObject returns an empty object of the resource's kind.
func (r *resource) newObject() (Object, error) {
	obj, err := Scheme.New(r.kind)
	if err != nil {
		return nil, err
	}
	return obj.(Object), nil
}

// newList returns an empty list of the resource's kind.
func (r *resource) newList() (runtime.Object, error) {
	return Scheme.New(r.kind.GroupVersion().WithKind(r.kind.Kind + "List"))
}

// groupResource names the resource as error messages do.
func (r *resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.kind.Group, Resource: r.plural}
}

// target is the object or the collection that a URL path names.
type target struct {
	resource  *resource
	namespace string // empty: all of them, or the resource has none
	name      string // empty: the collection
}

// parsePath understands /api/v1/… and /apis/GROUP/VERSION/… with or without a namespace and a
// name. The status subresource is the object itself here.
func parsePath(path string) (target, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var gv schema.GroupVersion
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		gv, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		gv, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return target{}, false
	}
	var t target
	if parts[0] == "namespaces" && len(parts) >= 3 {
		t.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) == 3 && parts[2] == "status" {
		parts = parts[:2]
	}
	if len(parts) > 2 {
		return target{}, false
	}
	if len(parts) == 2 {
		t.name = parts[1]
	}
	for _, r := range resources {
		if r.kind.GroupVersion() == gv && r.plural == parts[0] {
			t.resource = r
			return t, true
		}
	}
	return target{}, false
}
