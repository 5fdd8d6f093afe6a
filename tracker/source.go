package tracker

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Source is where Kubernetes objects come from: an API server, a directory of
// manifests, a test.
type Source interface {
	// Run feeds sink until ctx ends and then returns nil. It returns an error only for what
	// retrying cannot mend (a directory that does not exist, a bad kubeconfig); anything
	// passing is retried inside and logged through the logger in ctx (klog.FromContext).
	Run(ctx context.Context, sink Sink) error
}

// Sink takes what a Source sees. All methods may be called from any goroutine, in any
// order, and repeatedly with the same object. Objects must not be modified afterwards.
type Sink interface {
	// SetService adds a Service or replaces the one with its namespace and name.
	SetService(*corev1.Service)
	// DeleteService forgets a Service; one that is not there is no error.
	DeleteService(namespace, name string)
	// SetEndpointSlice adds a slice or replaces the one with its namespace and name.
	SetEndpointSlice(*discoveryv1.EndpointSlice)
	// DeleteEndpointSlice forgets a slice; one that is not there is no error.
	DeleteEndpointSlice(namespace, name string)
	// SetNode adds a Node or replaces the one with its name. A Sink for one node ignores all
	// others.
	SetNode(*corev1.Node)
	// DeleteNode says that a Node is gone. What is known of it may stay, as in a Tracker.
	DeleteNode(name string)
	// SetServiceCIDR adds a ServiceCIDR or replaces the one with its name.
	SetServiceCIDR(*networkingv1.ServiceCIDR)
	// DeleteServiceCIDR forgets a ServiceCIDR; one that is not there is no error.
	DeleteServiceCIDR(name string)
	// Synced says that every Service and EndpointSlice that exists has been set once. A Tracker
	// publishes nothing before that: rules for half of the cluster would cut working Services.
	// The Node and ServiceCIDRs may come later.
	Synced()
}
