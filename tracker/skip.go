package tracker

import (
	"k8s.io/klog/v2"
)

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
	// ReasonUnreadableGuard is for the load balancer IPs of a family, if loadBalancerSourceRanges
	// has an invalid range and no valid one of that family. Serving them would let everybody in.
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

// loggedSkips is how many skips of one object are logged in full. A slice has up to
// 1000 endpoints, and one broken controller must not fill the log.
const loggedSkips = 5

// skip is one part of an object that was left out. Skips are kept with the parsed
// object, so that the same object set again is neither logged nor counted again.
type skip struct {
	reason string
	field  string
	value  string
	detail string
}

// skipList collects the skips of one object.
type skipList []skip

func (l *skipList) add(reason, field, value string, err error) {
	s := skip{reason: reason, field: field, value: value}
	if err != nil {
		s.detail = err.Error()
	}
	*l = append(*l, s)
}

// report logs and counts the skips of one object.
func (t *Tracker) report(kind string, name objectName, skips skipList) {
	for i, s := range skips {
		if t.options.OnSkip != nil {
			t.options.OnSkip(kind, s.reason)
		}
		if i < loggedSkips {
			t.options.Logger.Info("Skipping invalid part of object", "kind", kind, "object", klog.KRef(name.namespace, name.name),
				"field", s.field, "value", s.value, "reason", s.reason, "err", s.detail)
		}
	}
	if more := len(skips) - loggedSkips; more > 0 {
		t.options.Logger.Info("Skipping more invalid parts of object", "kind", kind, "object", klog.KRef(name.namespace, name.name), "count", more)
	}
}
