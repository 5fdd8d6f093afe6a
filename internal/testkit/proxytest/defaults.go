package proxytest

import (
	"cmp"
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// setDefaults sets the fields that kube-apiserver sets when they are missing, and that proxies rely on.
func setDefaults(objects []apiservertest.Object) {
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Service:
			setServiceDefaults(&o.Spec)
			for i, ingress := range o.Status.LoadBalancer.Ingress {
				if ingress.IP != "" && ingress.IPMode == nil {
					o.Status.LoadBalancer.Ingress[i].IPMode = new(corev1.LoadBalancerIPModeVIP)
				}
			}
		case *discoveryv1.EndpointSlice:
			for i := range o.Ports {
				p := &o.Ports[i]
				p.Name, p.Protocol = cmp.Or(p.Name, new("")), cmp.Or(p.Protocol, new(corev1.ProtocolTCP))
			}
		}
	}
}

func setServiceDefaults(s *corev1.ServiceSpec) {
	s.Type = cmp.Or(s.Type, corev1.ServiceTypeClusterIP)
	s.SessionAffinity = cmp.Or(s.SessionAffinity, corev1.ServiceAffinityNone)
	if s.SessionAffinity == corev1.ServiceAffinityClientIP && s.SessionAffinityConfig == nil {
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds)}}
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
		p.TargetPort = cmp.Or(p.TargetPort, intstr.FromInt32(p.Port))
	}
	if s.Type == corev1.ServiceTypeExternalName {
		return
	}
	s.InternalTrafficPolicy = cmp.Or(s.InternalTrafficPolicy, new(corev1.ServiceInternalTrafficPolicyCluster))
	if s.Type != corev1.ServiceTypeClusterIP || len(s.ExternalIPs) > 0 {
		s.ExternalTrafficPolicy = cmp.Or(s.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if len(s.ClusterIPs) == 0 && s.ClusterIP != "" {
		s.ClusterIPs = []string{s.ClusterIP}
	}
	if len(s.ClusterIPs) > 0 {
		s.ClusterIP = s.ClusterIPs[0]
	}
	if len(s.IPFamilies) > 0 {
		return
	}
	for _, text := range s.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil {
			s.IPFamilies = append(s.IPFamilies, corev1.IPFamily(familyOf(addr).addressType()))
		}
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(s.IPFamilies) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	s.IPFamilyPolicy = cmp.Or(s.IPFamilyPolicy, &policy)
}
