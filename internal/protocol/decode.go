package protocol

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// ErrUnknownValue is wrapped by errors about a protocol, an IP family or a policy that this version does not know.
var ErrUnknownValue = errors.New("perhaps of a later version of the API")

// MaxKeys is the highest number of labels, and of annotations, in ServiceKeys. MaxKey is the length of the longest key,
// in bytes: a qualified name of Kubernetes.
const (
	MaxKeys = 16
	MaxKey  = 317
)

// The lengths of the longest texts, in bytes.
const (
	maxName  = 253  // names in a PortID (RFC 1123 subdomain)
	maxValue = 4096 // the value of a label or an annotation
	maxInfo  = 63   // host name and zone of an endpoint (RFC 1123 label, label value)
)

// DecodeID is the inverse of EncodeID. The message must name a Service, in at most 253 bytes.
func DecodeID(id *nodelocalv1.PortID) (model.PortID, error) {
	var d decoder
	out := model.PortID{
		Namespace: d.text("id.namespace", id.GetNamespace(), maxName),
		Service:   d.text("id.service", id.GetService(), maxName),
		Port:      d.text("id.port", id.GetPort(), maxName),
		Protocol:  model.Protocol(d.enum("id.protocol", int32(id.GetProtocol()), nodelocalv1.Protocol_name)),
		Family:    model.Family(d.enum("id.family", int32(id.GetFamily()), nodelocalv1.Family_name)),
	}
	d.require("id.protocol", out.Protocol != 0)
	d.require("id.family", out.Family != 0)
	d.require("id.service", out.Service != "")
	return out, d.err
}

// DecodePort is the inverse of EncodePort: lists come out sorted and without duplicates. Errors name the field.
func DecodePort(port *nodelocalv1.ServicePort) (*model.ServicePort, error) {
	id, err := DecodeID(port.GetId())
	if err != nil {
		return nil, fmt.Errorf("port %s: %w", id, err)
	}
	d := decoder{family: id.Family}
	// First, because a port with another policy may lack what the known ones need.
	internal, external := d.policy("internal_policy", port.GetInternalPolicy()), d.policy("external_policy",
		port.GetExternalPolicy())
	out := &model.ServicePort{
		ID:                       id,
		ClusterIP:                d.addr("cluster_ip", port.GetClusterIp()),
		Port:                     d.port("port", port.GetPort(), 1),
		NodePort:                 d.port("node_port", port.GetNodePort(), 0),
		ExternalIPs:              sortedSet("external_ips", port.GetExternalIps(), d.addr, netip.Addr.Compare),
		LoadBalancerIPs:          sortedSet("load_balancer_ips", port.GetLoadBalancerIps(), d.addr, netip.Addr.Compare),
		LoadBalancerSourceRanges: sortedSet("load_balancer_source_ranges", port.GetLoadBalancerSourceRanges(), d.prefix, netip.Prefix.Compare),
		AffinityTimeout:          time.Duration(port.GetAffinityTimeoutSeconds()) * time.Second,
		InternalPolicy:           internal,
		ExternalPolicy:           external,
		HealthCheckNodePort:      d.port("health_check_node_port", port.GetHealthCheckNodePort(), 0),
		Cluster:                  d.endpoints("cluster", port.GetCluster()),
		Local:                    d.endpoints("local", port.GetLocal()),
		LocalTerminating:         port.GetLocalTerminating(),
		Serving:                  d.addrPorts("serving", port.GetServing()),
		NotServing:               d.addrPorts("not_serving", port.GetNotServing()),
		AppProtocol:              d.text("app_protocol", port.GetAppProtocol(), MaxKey),
		ServiceLabels:            d.values("service_labels", port.GetServiceLabels()),
		ServiceAnnotations:       d.values("service_annotations", port.GetServiceAnnotations()),
		DirectReturn:             port.GetDirectReturn(),
	}
	if port.GetCreated() != nil {
		out.Creation = &model.Creation{Time: port.GetCreated().AsTime(), UID: d.text("uid", port.GetUid(), MaxKey)}
	}
	// A type of a later version is unknown: the other fields say what it means for proxies.
	if t := port.GetServiceType(); known(nodelocalv1.ServiceType_name, int32(t)) {
		out.ServiceType = model.ServiceType(t)
	}
	if d.err != nil {
		return nil, fmt.Errorf("port %s: %w", id, d.err)
	}
	return out, nil
}

// DecodeKeys is the inverse of EncodeKeys. Its errors are those of CheckKeys.
func DecodeKeys(keys *nodelocalv1.ServiceKeys) (model.ServiceKeys, error) {
	out := model.ServiceKeys{Labels: keys.GetLabels(), Annotations: keys.GetAnnotations()}
	return out, CheckKeys(out)
}

// CheckKeys refuses more than MaxKeys of a kind, and a key of more than MaxKey bytes or none.
func CheckKeys(keys model.ServiceKeys) error {
	return cmp.Or(checkKeys("labels", keys.Labels), checkKeys("annotations", keys.Annotations))
}

func checkKeys(name string, keys []string) error {
	if n := len(keys); n > MaxKeys {
		return fmt.Errorf("%s: %d keys, at most %d are possible", name, n, MaxKeys)
	}
	for i, key := range keys {
		if len(key) == 0 || len(key) > MaxKey {
			return fmt.Errorf("%s[%d]: a key of %d bytes, 1 to %d are possible", name, i, len(key), MaxKey)
		}
	}
	return nil
}

// DecodeNode is the inverse of EncodeNode.
func DecodeNode(node *nodelocalv1.Node) (*model.Node, error) {
	var d decoder
	out := &model.Node{
		Name:      node.GetName(),
		PodCIDRs:  sortedSet("pod_cidrs", node.GetPodCidrs(), d.prefix, netip.Prefix.Compare),
		GoingAway: node.GetGoingAway(),
	}
	for _, text := range node.GetIps() { // their order counts
		out.IPs = append(out.IPs, d.addr("ips", text))
	}
	if d.err != nil {
		return nil, fmt.Errorf("node %q: %w", node.GetName(), d.err)
	}
	return out, nil
}

// DecodeServiceCIDRs is the inverse of EncodeServiceCIDRs.
func DecodeServiceCIDRs(ranges *nodelocalv1.ServiceCIDRs) ([]netip.Prefix, error) {
	var d decoder
	out := sortedSet("service_cidrs.cidrs", ranges.GetCidrs(), d.prefix, netip.Prefix.Compare)
	return out, d.err
}

// DecodeTriggers returns the times of the events that led to a batch, in UTC, oldest first, without invalid ones and at
// most MaxTriggers: they are for a metric, and no reason to refuse a batch.
func DecodeTriggers(message *nodelocalv1.Sync) []time.Time {
	list := message.GetTriggerTimes()
	var out []time.Time
	for _, stamp := range list[:min(len(list), MaxTriggers)] {
		if stamp.IsValid() {
			out = append(out, stamp.AsTime())
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

// decoder keeps the first error.
type decoder struct {
	// family is the IP family of all addresses; 0 is either.
	family model.Family
	err    error
}

func (d *decoder) fail(field string, err error) {
	if d.err == nil {
		d.err = fmt.Errorf("%s: %w", field, err)
	}
}

func (d *decoder) require(field string, isSet bool) {
	if !isSet {
		d.fail(field, errors.New("unset"))
	}
}

func known(names map[int32]string, value int32) bool {
	_, known := names[value]
	return known
}

// enum returns a value of an enumeration, whose values the model has too.
func (d *decoder) enum(field string, value int32, names map[int32]string) int32 {
	if !known(names, value) {
		d.fail(field, fmt.Errorf("%d is unknown, %w", value, ErrUnknownValue))
	}
	return value
}

func (d *decoder) policy(field string, policy nodelocalv1.TrafficPolicy) model.TrafficPolicy {
	return model.TrafficPolicy(d.enum(field, int32(policy), nodelocalv1.TrafficPolicy_name))
}

func (d *decoder) addr(field, text string) netip.Addr {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		d.fail(field, err)
	case d.family != 0 && model.FamilyOf(addr) != d.family:
		d.fail(field, fmt.Errorf("%s is not an %s address", addr, d.family))
	case addr.Zone() != "" || addr.Is4In6():
		d.fail(field, fmt.Errorf("%q is not an address that a Service can have", text))
	}
	return addr
}

func (d *decoder) prefix(field, text string) netip.Prefix {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		d.fail(field, err)
	case d.family != 0 && model.FamilyOf(prefix.Addr()) != d.family:
		d.fail(field, fmt.Errorf("%s is not an %s range", prefix, d.family))
	case prefix != prefix.Masked():
		d.fail(field, fmt.Errorf("%s has bits set beyond its length", prefix))
	}
	return prefix
}

// text returns a text of at most maxBytes.
func (d *decoder) text(field, text string, maxBytes int) string {
	if len(text) > maxBytes {
		d.fail(field, fmt.Errorf("%d bytes, at most %d are possible", len(text), maxBytes))
		return ""
	}
	return text
}

// values returns labels or annotations, nil if there are none.
func (d *decoder) values(field string, values map[string]string) map[string]string {
	if len(values) > MaxKeys {
		d.fail(field, fmt.Errorf("%d values, at most %d are possible", len(values), MaxKeys))
	}
	for key, value := range values {
		d.text(field+" key", key, MaxKey)
		d.text(field+" value", value, maxValue)
	}
	if len(values) == 0 {
		return nil
	}
	return values
}

func (d *decoder) port(field string, number uint32, least uint32) uint16 {
	if number < least || number > math.MaxUint16 {
		d.fail(field, fmt.Errorf("%d is not %d to %d", number, least, math.MaxUint16))
	}
	return uint16(number)
}

func (d *decoder) addrPort(field, address string, port uint32) netip.AddrPort {
	return netip.AddrPortFrom(d.addr(field, address), d.port(field, port, 1))
}

func (d *decoder) addrPorts(field string, list []*nodelocalv1.AddressPort) []netip.AddrPort {
	return sortedSet(field, list, func(field string, ap *nodelocalv1.AddressPort) netip.AddrPort {
		return d.addrPort(field, ap.GetAddress(), ap.GetPort())
	}, netip.AddrPort.Compare)
}

func (d *decoder) endpoints(field string, list []*nodelocalv1.Endpoint) []model.Endpoint {
	return sortedSet(field, list, func(field string, e *nodelocalv1.Endpoint) model.Endpoint {
		return model.Endpoint{
			AddrPort: d.addrPort(field, e.GetAddress(), e.GetPort()),
			Local:    e.GetPlacement() == nodelocalv1.Placement_PLACEMENT_LOCAL,
			Remote:   e.GetPlacement() == nodelocalv1.Placement_PLACEMENT_REMOTE,
			Info:     model.NewEndpointInfo(d.text(field+".hostname", e.GetHostname(), maxInfo), d.text(field+".zone", e.GetZone(), maxInfo)),
		}
	}, model.CompareEndpoints)
}

// sortedSet decodes the list of a field, sorts it and drops duplicates; the first of them stays.
func sortedSet[M, T any](field string, messages []M, decode func(string, M) T, compare func(a, b T) int) []T {
	list := convert(messages, func(m M) T { return decode(field, m) })
	if !slices.IsSortedFunc(list, compare) {
		slices.SortStableFunc(list, compare)
	}
	return slices.CompactFunc(list, func(a, b T) bool { return compare(a, b) == 0 })
}

// convert returns a list with f of each element; nil for an empty one.
func convert[A, B any](list []A, f func(A) B) []B {
	if len(list) == 0 {
		return nil
	}
	out := make([]B, len(list))
	for i, element := range list {
		out[i] = f(element)
	}
	return out
}

// maxSeen bounds the texts in a Seen, so that the other side can fill neither log nor memory.
const maxSeen = 1000

// Seen remembers texts that were logged.
type Seen struct {
	mu    sync.Mutex
	texts map[string]struct{}
}

// First reports whether a text is to be logged: it is new, and there is room for it.
func (s *Seen) First(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.texts[text]; known || len(s.texts) == maxSeen {
		return false
	}
	if s.texts == nil {
		s.texts = map[string]struct{}{}
	}
	s.texts[text] = struct{}{}
	return true
}
