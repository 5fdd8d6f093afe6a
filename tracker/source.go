package tracker

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/klog/v2"
)

// Source delivers Kubernetes objects: from an API server, a directory of manifests, or a test.
type Source interface {
	// Run feeds sink until ctx ends and then returns nil. It returns an error only for permanent faults, such as a bad
	// kubeconfig. It logs other faults through the logger in ctx (klog.FromContext), and tries again.
	Run(ctx context.Context, sink Sink) error
}

// Sink receives the objects of a Source. All methods may be called from any goroutine, in any
// order, and repeatedly with the same object. Objects must not be modified afterwards.
type Sink interface {
	// SetService adds a Service or replaces the Service of the same namespace and name.
	SetService(*corev1.Service)
	// DeleteService deletes a Service, if it exists.
	DeleteService(namespace, name string)
	// SetEndpointSlice adds a slice or replaces the slice of the same namespace and name.
	SetEndpointSlice(*discoveryv1.EndpointSlice)
	// DeleteEndpointSlice deletes a slice, if it exists.
	DeleteEndpointSlice(namespace, name string)
	// SetNode adds a Node or replaces the Node of the same name. A Sink for one node ignores all others.
	SetNode(*corev1.Node)
	// DeleteNode records the deletion of a Node. A Sink may keep its data, as a Tracker does.
	DeleteNode(name string)
	// SetServiceCIDR adds a ServiceCIDR or replaces the ServiceCIDR of the same name.
	SetServiceCIDR(*networkingv1.ServiceCIDR)
	// DeleteServiceCIDR deletes a ServiceCIDR, if it exists.
	DeleteServiceCIDR(name string)
	// Waiting names the resources that Synced still waits for, and why: for example "endpointslices: forbidden", or
	// "web.yaml: document 2 (line 9): no kind". The last call counts. After Synced, Waiting does nothing.
	Waiting(reason string)
	// Synced says that every existing Service and EndpointSlice has been set once. A Tracker publishes nothing before
	// that: rules for half of the cluster would break working Services. The Node and ServiceCIDRs may come later.
	Synced()
}

// Kinds of objects, as given to Options.OnSkip.
const (
	KindService       = "Service"
	KindEndpointSlice = "EndpointSlice"
	KindNode          = "Node"
	KindServiceCIDR   = "ServiceCIDR"
)

// Reasons why an object or a part of it is left out, as given to Options.OnSkip. They
// are few and fixed, so that they can label a metric.
const (
	// ReasonMalformed is an object without a name, or without a part that it must have.
	ReasonMalformed = "malformed"
	// ReasonInvalidIP is an IP address or CIDR that is unparsable or not canonical.
	ReasonInvalidIP = "invalid_ip"
	// ReasonUnreadableGuard is for the load balancer IPs of a family, if loadBalancerSourceRanges has an invalid range
	// and no valid range of the family. Serving them would admit all sources.
	ReasonUnreadableGuard = "unreadable_guard"
	// ReasonWrongFamily is an endpoint address of another family than its slice.
	ReasonWrongFamily = "wrong_family"
	// ReasonInvalidPort is a port number out of range, or missing.
	ReasonInvalidPort = "invalid_port"
	// ReasonInvalidProtocol is a protocol other than TCP, UDP and SCTP.
	ReasonInvalidProtocol = "invalid_protocol"
	// ReasonDuplicatePort is a second Service port with the name and protocol of an earlier one.
	ReasonDuplicatePort = "duplicate_port"
	// ReasonInvalidTimeout is a session affinity timeout outside 1 s to 1 day.
	ReasonInvalidTimeout = "invalid_timeout"
)

// loggedSkips limits the skips of one object that are logged in full: a slice has up to 1000 endpoints.
const loggedSkips = 5

// skip is one omitted part of an object. Skips are kept with the parsed object, so that a repeated Set of the object
// neither logs nor counts them again.
type skip struct{ reason, field, value, detail string }

// skipList collects the skips of one object.
type skipList []skip

func (l *skipList) add(reason, field, value string, err error) {
	detail := ""
	if err != nil {
		detail = err.Error()
	}
	*l = append(*l, skip{reason, field, value, detail})
}

// report logs and counts the skips of one object.
func (t *Tracker) report(kind string, name objectName, skips skipList) {
	logger := t.options.Logger.WithValues("kind", kind, "object", klog.KRef(name.namespace, name.name))
	for i, s := range skips {
		if t.options.OnSkip != nil {
			t.options.OnSkip(kind, s.reason)
		}
		if i < loggedSkips {
			logger.Info("Skipping invalid part of object",
				"field", s.field, "value", s.value, "reason", s.reason, "err", s.detail)
		}
	}
	if more := len(skips) - loggedSkips; more > 0 {
		logger.Info("Skipping more invalid parts of object", "count", more)
	}
}
