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
	DeleteEndpointSlice(namespace, name string)
	// SetNode takes any Node; only the one this proxy runs on is used.
	SetNode(*corev1.Node)
	DeleteNode(name string)
	// SetServiceCIDR adds a ServiceCIDR or replaces the one with its name.
	SetServiceCIDR(*networkingv1.ServiceCIDR)
	DeleteServiceCIDR(name string)
	// Synced says that all Services and EndpointSlices that exist have been handed over once.
	// Before that nothing is programmed: a half-known cluster would cut working Services. The Node
	// and ServiceCIDRs may come later.
	Synced()
}
