package apiserver

import (
	"context"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Client returns a client for some kinds of one group and version. transport may be nil. A clientset of client-go has
// each kind of Kubernetes: it would add a third to a program, and minutes to the first build.
func Client(settings *rest.Config, transport *http.Client, version schema.GroupVersion, kinds ...runtime.Object) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(version, kinds...)
	metav1.AddToGroupVersion(scheme, version)

	settings = rest.CopyConfig(settings)
	settings.GroupVersion, settings.APIPath = &version, "/apis"
	if version.Group == "" {
		settings.APIPath = "/api"
	}
	settings.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
	if transport == nil {
		return rest.RESTClientFor(settings)
	}
	return rest.RESTClientForConfigAndClient(settings, transport)
}

// Collections are the kinds of objects that a proxy reads.
type Collections struct {
	Services, EndpointSlices, Nodes, ServiceCIDRs Collection
}

// NewCollections returns the collections of a server. transport may be nil. It does not connect.
func NewCollections(settings *rest.Config, transport *http.Client) (c Collections, err error) {
	for _, kind := range []struct {
		to       *Collection
		version  schema.GroupVersion
		resource string
		object   runtime.Object
		list     runtime.Object
	}{
		{&c.Services, corev1.SchemeGroupVersion, "services", &corev1.Service{}, &corev1.ServiceList{}},
		{&c.EndpointSlices, discoveryv1.SchemeGroupVersion, "endpointslices", &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}},
		{&c.Nodes, corev1.SchemeGroupVersion, "nodes", &corev1.Node{}, &corev1.NodeList{}},
		{&c.ServiceCIDRs, networkingv1.SchemeGroupVersion, "servicecidrs", &networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{}},
	} {
		client, err := Client(settings, transport, kind.version, kind.object, kind.list)
		if err != nil {
			return c, err
		}
		*kind.to = Collection{client, kind.resource, kind.list}
	}
	return c, nil
}

// Collection lists and watches the objects of one kind, in all namespaces.
type Collection struct {
	client   *rest.RESTClient
	resource string
	list     runtime.Object
}

// List returns a list of the kind, such as a *corev1.ServiceList.
func (c Collection) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list := c.list.DeepCopyObject()
	return list, c.request(options).Do(ctx).Into(list)
}

// Watch returns the changes of the collection.
func (c Collection) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return c.request(options).Watch(ctx)
}

func (c Collection) request(options metav1.ListOptions) *rest.Request {
	request := c.client.Get().Resource(c.resource).VersionedParams(&options, metav1.ParameterCodec)
	if options.TimeoutSeconds != nil {
		request.Timeout(time.Duration(*options.TimeoutSeconds) * time.Second)
	}
	return request
}
