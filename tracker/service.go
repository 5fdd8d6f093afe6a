package tracker

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"k8s.io/utils/ptr"

	"github.com/nftproxy/nftproxy/model"
)

// LabelServiceProxyName is the label that names a proxy other than the cluster's default one for a
// Service (KEP-2447, Kubernetes' well-known labels).
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// service holds the parts of a Service that the Tracker uses.
type service struct {
	// ports are the Service's ports in all its families, sorted by ID. A Service for another proxy has none. If
	// published is set, join has returned these ports, with endpoints, and nobody may modify them any more.
	ports     []*model.ServicePort
	published bool
	// unguarded holds the families of Options.OnUnguarded.
	unguarded []model.Family
	skips     skipList
}

func (s *service) equal(other *service) bool {
	return slices.EqualFunc(s.ports, other.ports, equalButForEndpoints) &&
		slices.Equal(s.unguarded, other.unguarded) && slices.Equal(s.skips, other.skips)
}

func equalButForEndpoints(a, b *model.ServicePort) bool {
	without := *a
	without.Cluster, without.Local, without.LocalTerminating = b.Cluster, b.Local, b.LocalTerminating
	without.Serving, without.NotServing = b.Serving, b.NotServing
	return without.Equal(b)
}

// bothFamilies holds, for each family, the fields that all ports of a Service share.
type bothFamilies struct{ v4, v6 model.ServicePort }

func (b *bothFamilies) in(family model.Family) *model.ServicePort {
	if family == model.IPv4 {
		return &b.v4
	}
	return &b.v6
}

// parseService reads a Service. It never fails: it leaves out invalid parts and lists them in skips.
func parseService(obj *corev1.Service, options *Options) *service {
	s := &service{}
	if !forThisProxy(obj, options.ServiceProxyName) {
		return s
	}
	if options.IgnoreExternalIPs && len(obj.Spec.ExternalIPs) > 0 {
		without := *obj
		without.Spec.ExternalIPs = nil
		obj = &without
	}
	base := s.parsePolicies(obj, options)
	if options.Details {
		addDetails(&base, obj)
	}
	bases := bothFamilies{base, base}
	bases.v4.ID.Family, bases.v6.ID.Family = model.IPv4, model.IPv6
	s.parseAddresses(obj, &bases)
	for i := range obj.Spec.Ports {
		s.addPort(&obj.Spec.Ports[i], indexed("spec.ports", i), &bases)
	}
	slices.SortFunc(s.ports, func(a, b *model.ServicePort) int { return a.ID.Compare(b.ID) })
	return s
}

// forThisProxy reports whether obj is a Service for this proxy.
func forThisProxy(obj *corev1.Service, proxyName string) bool {
	name, labelled := obj.Labels[LabelServiceProxyName]
	return name == proxyName && labelled == (proxyName != "") && needsProxy(&obj.Spec)
}

// needsProxy reports whether a Service is neither headless nor of type ExternalName.
func needsProxy(spec *corev1.ServiceSpec) bool {
	return spec.Type != corev1.ServiceTypeExternalName &&
		spec.ClusterIP != corev1.ClusterIPNone && !slices.Contains(spec.ClusterIPs, corev1.ClusterIPNone)
}

func isIP(text string) bool {
	_, err := parseAddr(text)
	return err == nil
}

// parsePolicies returns a port with the fields that all ports of a Service share in both families.
func (s *service) parsePolicies(obj *corev1.Service, options *Options) model.ServicePort {
	spec := &obj.Spec
	base := model.ServicePort{ID: model.PortID{Namespace: obj.Namespace, Service: obj.Name}}
	if ptr.Deref(spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal {
		base.InternalPolicy = model.PolicyLocal
	}
	if takesExternalTraffic(spec) && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		base.ExternalPolicy = model.PolicyLocal
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && base.ExternalPolicy == model.PolicyLocal {
		if spec.HealthCheckNodePort == 0 { // only in a manifest: the API server allocates the port
			s.skips.add(ReasonInvalidPort, "spec.healthCheckNodePort",
				"0", errors.New("externalTrafficPolicy is Local, and load balancers cannot ask which nodes have endpoints"))
		}
		base.HealthCheckNodePort = s.optionalPort(spec.HealthCheckNodePort, "spec.healthCheckNodePort")
	}
	base.AffinityTimeout = s.parseAffinity(spec)
	if options.DirectReturn && takesExternalTraffic(spec) && s.parseDirectReturn(obj, &base) {
		base.DirectReturn = true
		base.Creation = &model.Creation{Time: obj.CreationTimestamp.UTC(), UID: string(obj.UID)}
	}
	return base
}

// takesExternalTraffic reports whether externalTrafficPolicy applies. The API server clears it in other Services, but a
// manifest may have it.
func takesExternalTraffic(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer || len(spec.ExternalIPs) > 0
}

func (s *service) parseAffinity(spec *corev1.ServiceSpec) time.Duration {
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if given := *c.ClientIP.TimeoutSeconds; given > 0 && given <= 86400 { // as the API server accepts
			seconds = given
		} else {
			s.skips.add(ReasonInvalidTimeout, "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
				strconv.Itoa(int(given)), nil)
		}
	}
	return time.Duration(seconds) * time.Second
}

// AnnotationDirectReturn, with the value "true", requests direct return (Options.DirectReturn).
const AnnotationDirectReturn = "nftproxy.io/direct-return"

// Annotations are the annotations that a Tracker reads: requests of Services, and the time at which endpoints changed, for
// latency metrics.
var Annotations = []string{AnnotationDirectReturn, corev1.EndpointsLastChangeTriggerTime}

// parseDirectReturn reports whether a Service requests direct return and can have it. Policy Local keeps the client's
// address already.
func (s *service) parseDirectReturn(obj *corev1.Service, base *model.ServicePort) bool {
	value, has := obj.Annotations[AnnotationDirectReturn]
	var err error
	switch {
	case !has || value == "false":
		return false
	case value != "true":
		err = errors.New(`neither "true" nor "false"`)
	case base.ExternalPolicy == model.PolicyLocal:
		err = errors.New("externalTrafficPolicy is Local, and direct return is for Cluster")
	default:
		return true
	}
	s.skips.add(ReasonMalformed, "metadata.annotations["+AnnotationDirectReturn+"]", fmt.Sprintf("%.20q", value), err)
	return false
}

// addPort appends a port once for each family in which the Service has a ClusterIP, unless it cannot be served. A port
// with an invalid node port is appended without the node port.
func (s *service) addPort(port *corev1.ServicePort, field string, bases *bothFamilies) {
	protocol, err := model.ParseProtocol(string(port.Protocol))
	if err != nil {
		s.skips.add(ReasonInvalidProtocol, field+".protocol", string(port.Protocol), err)
		return
	}
	if port.Port < 1 || port.Port > math.MaxUint16 {
		s.skips.add(ReasonInvalidPort, field+".port", strconv.Itoa(int(port.Port)), nil)
		return
	}
	nodePort := s.optionalPort(port.NodePort, field+".nodePort")
	appProtocol := ptr.Deref(port.AppProtocol, "")
	if bases.v4.ServiceType == 0 { // no Options.Details
		appProtocol = ""
	} else if !sendable(appProtocol, maxAppProtocol) {
		s.skips.add(ReasonMalformed, field+".appProtocol",
			fmt.Sprintf("%.20q", appProtocol), errors.New("not a qualified name"))
		appProtocol = ""
	}
	if slices.ContainsFunc(s.ports, func(p *model.ServicePort) bool { return p.ID.Port == port.Name && p.ID.Protocol == protocol }) {
		s.skips.add(ReasonDuplicatePort, field, port.Name, nil)
		return
	}
	for _, family := range model.Families {
		p := *bases.in(family)
		if !p.ClusterIP.IsValid() {
			continue
		}
		p.ID.Port, p.ID.Protocol = port.Name, protocol
		p.Port, p.NodePort, p.AppProtocol = uint16(port.Port), nodePort, appProtocol
		s.ports = append(s.ports, &p)
	}
}

// optionalPort returns a port number for which 0 means none.
func (s *service) optionalPort(number int32, field string) uint16 {
	if number < 0 || number > math.MaxUint16 {
		s.skips.add(ReasonInvalidPort, field, strconv.Itoa(int(number)), nil)
		return 0
	}
	return uint16(number)
}

// parseAddresses sorts a Service's addresses by family. The family comes from the address itself; addresses in a family
// without a ClusterIP stay unused.
func (s *service) parseAddresses(obj *corev1.Service, bases *bothFamilies) {
	s.parseClusterIPs(&obj.Spec, bases)
	for i, text := range obj.Spec.ExternalIPs {
		if addr, ok := s.addr(text, "spec.externalIPs", i); ok {
			base := bases.in(model.FamilyOf(addr))
			base.ExternalIPs = append(base.ExternalIPs, addr)
		}
	}
	for i, ingress := range obj.Status.LoadBalancer.Ingress {
		if ingress.IP == "" || ptr.Deref(ingress.IPMode, "") == corev1.LoadBalancerIPModeProxy {
			continue
		}
		if addr, ok := s.addr(ingress.IP, "status.loadBalancer.ingress", i); ok {
			base := bases.in(model.FamilyOf(addr))
			base.LoadBalancerIPs = append(base.LoadBalancerIPs, addr)
		}
	}
	for _, family := range model.Families {
		base := bases.in(family)
		base.ExternalIPs = sortedSet(base.ExternalIPs, netip.Addr.Compare)
		base.LoadBalancerIPs = sortedSet(base.LoadBalancerIPs, netip.Addr.Compare)
	}
	s.parseSourceRanges(obj.Spec.LoadBalancerSourceRanges, bases)
}

// parseClusterIPs takes the first ClusterIP of each family. clusterIPs is the whole list. clusterIP repeats its first
// element, and stands alone only in hand-written manifests.
func (s *service) parseClusterIPs(spec *corev1.ServiceSpec, bases *bothFamilies) {
	texts := spec.ClusterIPs
	if len(texts) == 0 && spec.ClusterIP != "" {
		texts = []string{spec.ClusterIP}
	}
	if len(texts) == 0 {
		s.skips.add(ReasonMalformed, "spec.clusterIPs", "", errors.New("the Service has no ClusterIP"))
	}
	for i, text := range texts {
		addr, ok := s.addr(text, "spec.clusterIPs", i)
		if !ok {
			continue
		}
		if base := bases.in(model.FamilyOf(addr)); !base.ClusterIP.IsValid() {
			base.ClusterIP = addr
		}
	}
}

func (s *service) addr(text, list string, i int) (netip.Addr, bool) {
	addr, err := parseAddr(text)
	if err != nil {
		s.skips.add(ReasonInvalidIP, indexed(list, i), text, err)
	}
	return addr, err == nil
}

func indexed(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// sortedSet sorts list in place and drops duplicates.
func sortedSet[T comparable](list []T, compare func(a, b T) int) []T {
	slices.SortFunc(list, compare)
	return slices.Compact(list)
}
