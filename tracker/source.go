package tracker

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Source delivers Kubernetes objects: from an API server, a directory of manifests, or a test.
type Source interface {
	// Run feeds sink until ctx ends and then returns nil. It returns an error only for faults that
	// trying again cannot mend, such as a bad kubeconfig. It tries again after other faults and
	// logs them through the logger in ctx (klog.FromContext).
	Run(ctx context.Context, sink Sink) error
}

// Sink receives the objects of a Source. All methods may be called from any goroutine, in any
// order, and repeatedly with the same object. Objects must not be modified afterwards.
type Sink interface {
	// SetService adds a Service or replaces the one with its namespace and name.
	SetService(*corev1.Service)
	// DeleteService deletes a Service. If there is none, nothing happens.
	DeleteService(namespace, name string)
	// SetEndpointSlice adds a slice or replaces the one with its namespace and name.
	SetEndpointSlice(*discoveryv1.EndpointSlice)
	// DeleteEndpointSlice deletes a slice. If there is none, nothing happens.
	DeleteEndpointSlice(namespace, name string)
	// SetNode adds a Node or replaces the one with its name. A Sink for one node ignores all
	// others.
	SetNode(*corev1.Node)
	// DeleteNode says that a Node was deleted. A Sink may keep its data, as a Tracker does.
	DeleteNode(name string)
	// SetServiceCIDR adds a ServiceCIDR or replaces the one with its name.
	SetServiceCIDR(*networkingv1.ServiceCIDR)
	// DeleteServiceCIDR deletes a ServiceCIDR. If there is none, nothing happens.
	DeleteServiceCIDR(name string)
	// Waiting says what the Source still waits for before it calls Synced, and why: for example
	// "endpointslices: forbidden", or "web.yaml: document 2 (line 9): no kind". The last call
	// counts. After Synced, Waiting does nothing.
	Waiting(reason string)
	// Synced says that every Service and EndpointSlice that exists has been set once. A Tracker
	// publishes nothing before that: rules for half of the cluster would break working Services.
	// The Node and ServiceCIDRs may come later.
	Synced()
}
