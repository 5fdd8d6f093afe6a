package protocol

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// ErrUnknownValue is returned, wrapped, for a port with a protocol, an IP family or a policy that this version of the API does not know.
var ErrUnknownValue = errors.New("perhaps of a later version of the API")

// maxName is how long a name in a PortID may be, in bytes: Kubernetes allows no longer ones (RFC 1123 subdomain).
const maxName = 253

// What a client may ask for in ServiceKeys.
const (
	// MaxKeys is how many labels, and how many annotations.
	MaxKeys = 16
	// MaxKey is how long a key may be, in bytes: a qualified name of Kubernetes.
	MaxKey = 317
)

const (
	// maxValue is how long the value of a label or an annotation may be, in bytes.
	maxValue = 4096
	// maxInfo is how long the host name and the zone of an endpoint may be, in bytes (RFC 1123 label, label value).
	maxInfo = 63
)

// DecodeID is the inverse of EncodeID. It is an error if the message names no Service or has a name of more than 253
// bytes, and ErrUnknownValue if the client does not know the protocol or the IP family.
func DecodeID(id *nodelocalv1.PortID) (model.PortID, error) {
	var out model.PortID
	for _, name := range []struct {
		field, text string
		to          *string
	}{
		{"namespace", id.GetNamespace(), &out.Namespace}, {"service", id.GetService(), &out.Service}, {"port", id.GetPort(), &out.Port},
	} {
		if len(name.text) > maxName {
			return out, fmt.Errorf("id.%s: %d bytes, at most %d are possible", name.field, len(name.text), maxName)
		}
		*name.to = name.text
	}
	switch p := id.GetProtocol(); p {
	case nodelocalv1.Protocol_PROTOCOL_UNSPECIFIED:
		return out, errors.New("id.protocol: unset")
	case nodelocalv1.Protocol_PROTOCOL_TCP, nodelocalv1.Protocol_PROTOCOL_UDP, nodelocalv1.Protocol_PROTOCOL_SCTP:
		out.Protocol = model.Protocol(p)
	default:
		return out, fmt.Errorf("id.protocol: %s is not TCP, UDP or SCTP, %w", p, ErrUnknownValue)
	}
	switch f := id.GetFamily(); f {
	case nodelocalv1.Family_FAMILY_UNSPECIFIED:
		return out, errors.New("id.family: unset")
	case nodelocalv1.Family_FAMILY_IPV4, nodelocalv1.Family_FAMILY_IPV6:
		out.Family = model.Family(f)
	default:
		return out, fmt.Errorf("id.family: %s is not IPv4 or IPv6, %w", f, ErrUnknownValue)
	}
	if out.Service == "" {
		return out, errors.New("id.service: empty")
	}
	return out, nil
}

// DecodePort is the inverse of EncodePort: lists come out sorted and without duplicates. Errors name the field. The error
// wraps ErrUnknownValue if the client does not know a protocol, an IP family or a policy.
func DecodePort(port *nodelocalv1.ServicePort) (*model.ServicePort, error) {
	id, err := DecodeID(port.GetId())
	if err != nil {
		return nil, fmt.Errorf("port %s: %w", id, err)
	}
	d := decoder{family: id.Family}
	// First, because a port with another policy may lack what the known ones need.
	internal, external := d.policy("internal_policy", port.GetInternalPolicy()), d.policy("external_policy", port.GetExternalPolicy())
	out := &model.ServicePort{
		ID:                       id,
		ClusterIP:                d.addr("cluster_ip", port.GetClusterIp()),
		Port:                     d.port("port", port.GetPort(), 1),
		NodePort:                 d.port("node_port", port.GetNodePort(), 0),
		ExternalIPs:              d.addrs("external_ips", port.GetExternalIps()),
		LoadBalancerIPs:          d.addrs("load_balancer_ips", port.GetLoadBalancerIps()),
		LoadBalancerSourceRanges: d.prefixes("load_balancer_source_ranges", port.GetLoadBalancerSourceRanges()),
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
		ServiceType:              serviceType(port.GetServiceType()),
		ServiceLabels:            d.values("service_labels", port.GetServiceLabels()),
		ServiceAnnotations:       d.values("service_annotations", port.GetServiceAnnotations()),
	}
	if d.err != nil {
		return nil, fmt.Errorf("port %s: %w", id, d.err)
	}
	return out, nil
}

// serviceType returns a type. One of a later version is unknown: what has to be done for it is in the other fields.
func serviceType(t nodelocalv1.ServiceType) model.ServiceType {
	if _, known := nodelocalv1.ServiceType_name[int32(t)]; !known {
		return 0
	}
	return model.ServiceType(t)
}

// DecodeKeys is the inverse of EncodeKeys. It is an error if there are more than MaxKeys of a kind, or one has more than
// MaxKey bytes or none.
func DecodeKeys(keys *nodelocalv1.ServiceKeys) (model.ServiceKeys, error) {
	out := model.ServiceKeys{Labels: keys.GetLabels(), Annotations: keys.GetAnnotations()}
	return out, CheckKeys(out)
}

// CheckKeys returns an error if a client may not ask for the keys: if there are more than MaxKeys of a kind, or one has
// more than MaxKey bytes or none.
func CheckKeys(keys model.ServiceKeys) error {
	for _, f := range []struct {
		name string
		keys []string
	}{{"labels", keys.Labels}, {"annotations", keys.Annotations}} {
		if n := len(f.keys); n > MaxKeys {
			return fmt.Errorf("%s: %d keys, at most %d are possible", f.name, n, MaxKeys)
		}
		for i, key := range f.keys {
			if len(key) == 0 || len(key) > MaxKey {
				return fmt.Errorf("%s[%d]: a key of %d bytes, 1 to %d are possible", f.name, i, len(key), MaxKey)
			}
		}
	}
	return nil
}

// DecodeNode is the inverse of EncodeNode.
func DecodeNode(node *nodelocalv1.Node) (*model.Node, error) {
	var d decoder
	out := &model.Node{
		Name:      node.GetName(),
		PodCIDRs:  d.prefixes("pod_cidrs", node.GetPodCidrs()),
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
	out := d.prefixes("service_cidrs.cidrs", ranges.GetCidrs())
	return out, d.err
}

// DecodeTriggers returns when the events happened that led to a batch, in UTC, oldest first. It leaves out what is no
// time, and more than MaxTriggers: they are for a metric, and no reason to refuse a batch.
func DecodeTriggers(sync *nodelocalv1.Sync) []time.Time {
	list := sync.GetTriggerTimes()
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
	// family is that of all addresses; 0 is either.
	family model.Family
	err    error
}

func (d *decoder) fail(field string, err error) {
	if d.err == nil {
		d.err = fmt.Errorf("%s: %w", field, err)
	}
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

func (d *decoder) addrs(field string, texts []string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, d.addr(field, text))
	}
	return sortedSet(out, netip.Addr.Compare)
}

func (d *decoder) prefixes(field string, texts []string) (out []netip.Prefix) {
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			d.fail(field, err)
		case d.family != 0 && model.FamilyOf(prefix.Addr()) != d.family:
			d.fail(field, fmt.Errorf("%s is not an %s range", prefix, d.family))
		case prefix != prefix.Masked():
			d.fail(field, fmt.Errorf("%s has bits set beyond its length", prefix))
		}
		out = append(out, prefix)
	}
	return sortedSet(out, netip.Prefix.Compare)
}

func (d *decoder) text(field, text string, maxBytes int) string {
	if len(text) > maxBytes {
		d.fail(field, fmt.Errorf("%d bytes, at most %d are possible", len(text), maxBytes))
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

func (d *decoder) policy(field string, policy nodelocalv1.TrafficPolicy) model.TrafficPolicy {
	switch policy {
	case nodelocalv1.TrafficPolicy_TRAFFIC_POLICY_CLUSTER:
		return model.PolicyCluster
	case nodelocalv1.TrafficPolicy_TRAFFIC_POLICY_LOCAL:
		return model.PolicyLocal
	}
	d.fail(field, fmt.Errorf("%s is not Cluster or Local, %w", policy, ErrUnknownValue))
	return model.PolicyCluster
}

func (d *decoder) endpoints(field string, list []*nodelocalv1.Endpoint) []model.Endpoint {
	if len(list) == 0 {
		return nil
	}
	out := make([]model.Endpoint, len(list))
	for i, e := range list {
		out[i] = model.Endpoint{
			AddrPort: netip.AddrPortFrom(d.addr(field, e.GetAddress()), d.port(field, e.GetPort(), 1)),
			Local:    e.GetPlacement() == nodelocalv1.Placement_PLACEMENT_LOCAL,
			Remote:   e.GetPlacement() == nodelocalv1.Placement_PLACEMENT_REMOTE,
			Info:     model.NewEndpointInfo(d.text(field+".hostname", e.GetHostname(), maxInfo), d.text(field+".zone", e.GetZone(), maxInfo)),
		}
	}
	return endpointSet(out)
}

// endpointSet sorts list in place and drops duplicates; the first of them stays.
func endpointSet(list []model.Endpoint) []model.Endpoint {
	if !slices.IsSortedFunc(list, model.CompareEndpoints) {
		slices.SortStableFunc(list, model.CompareEndpoints)
	}
	return slices.CompactFunc(list, func(a, b model.Endpoint) bool { return a.AddrPort == b.AddrPort })
}

func (d *decoder) addrPorts(field string, list []*nodelocalv1.AddressPort) (out []netip.AddrPort) {
	for _, ap := range list {
		out = append(out, netip.AddrPortFrom(d.addr(field, ap.GetAddress()), d.port(field, ap.GetPort(), 1)))
	}
	return sortedSet(out, netip.AddrPort.Compare)
}

// sortedSet sorts list in place and drops duplicates.
func sortedSet[T comparable](list []T, compare func(a, b T) int) []T {
	if !slices.IsSortedFunc(list, compare) {
		slices.SortFunc(list, compare)
	}
	return slices.Compact(list)
}
