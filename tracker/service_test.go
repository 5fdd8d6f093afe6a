package tracker

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/model"
)

// web returns the port that makeService makes, and edits applied.
func web(edits ...func(*model.ServicePort)) *model.ServicePort {
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "default", Service: "web", Protocol: model.TCP, Family: model.IPv4},
		ClusterIP: addr("10.96.0.1"),
		Port:      80,
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func TestService(t *testing.T) {
	t.Run("becomes ports", testServiceBecomesPorts)
	t.Run("a proxy name takes exactly its Services", testProxyNameTakesExactlyItsServices)
	t.Run("a label takes it away and back", testLabelTakesServiceAwayAndBack)
}

func testServiceBecomesPorts(t *testing.T) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	for _, tc := range []struct {
		name    string
		service *corev1.Service
		want    []*model.ServicePort
		skipped skips
	}{
		{
			name:    "a plain Service is one port",
			service: makeService(),
			want:    []*model.ServicePort{web()},
		},
		{
			name:    "a headless Service is nothing",
			service: makeService(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }),
		},
		{
			name:    "an ExternalName Service is nothing even with a ClusterIP",
			service: makeService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
		},
		{
			name:    "a Service labelled for another proxy is nothing, whatever the value",
			service: makeService(func(s *corev1.Service) { s.Labels = map[string]string{LabelServiceProxyName: ""} }),
		},
		{
			name:    "a Service without a ClusterIP is nothing",
			service: makeService(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }),
			skipped: skips{"Service malformed": 1},
		},
		{
			name:    "clusterIP alone suffices",
			service: makeService(func(s *corev1.Service) { s.Spec.ClusterIPs = nil }),
			want:    []*model.ServicePort{web()},
		},
		{
			name: "a dual-stack Service is one port for each family, with the addresses of that family",
			service: makeService(func(s *corev1.Service) {
				s.Spec.ClusterIPs = []string{"10.96.0.1", "fd00::1"}
				s.Spec.ExternalIPs = []string{"192.0.2.2", "2001:db8::2", "192.0.2.1", "192.0.2.2"}
			}),
			want: []*model.ServicePort{
				web(func(p *model.ServicePort) { p.ExternalIPs = addrs("192.0.2.1", "192.0.2.2") }),
				web(func(p *model.ServicePort) {
					p.ID.Family = model.IPv6
					p.ClusterIP = addr("fd00::1")
					p.ExternalIPs = addrs("2001:db8::2")
				}),
			},
		},
		{
			name:    "addresses of a family that the Service does not have are unused",
			service: makeService(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"2001:db8::2"} }),
			want:    []*model.ServicePort{web()},
		},
		{
			name: "a bad ClusterIP costs its family only",
			service: makeService(func(s *corev1.Service) {
				s.Spec.ClusterIPs = []string{"10.096.0.1", "fd00::1"}
			}),
			want: []*model.ServicePort{web(func(p *model.ServicePort) {
				p.ID.Family = model.IPv6
				p.ClusterIP = addr("fd00::1")
			})},
			skipped: skips{"Service invalid_ip": 1},
		},
		{
			name: "invalid addresses are skipped and the rest works",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.ExternalIPs = []string{"192.0.2.010", "::ffff:192.0.2.1", "fe80::1%eth0", "127.0.0.1", "nonsense", "192.0.2.1"}
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.256"}, {IP: "192.0.2.7"}}
				s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/33", "::ffff:10.0.0.0/104", " 10.1.2.3/8 "}
			}),
			want: []*model.ServicePort{web(func(p *model.ServicePort) {
				p.ExternalIPs = addrs("192.0.2.1")
				p.LoadBalancerIPs = addrs("192.0.2.7")
				p.LoadBalancerSourceRanges = prefixes("10.0.0.0/8")
			})},
			skipped: skips{"Service invalid_ip": 8},
		},
		{
			name: "load balancers that proxy, or only have a hostname, are left out",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
					{IP: "192.0.2.1", IPMode: new(corev1.LoadBalancerIPModeProxy)},
					{IP: "192.0.2.2", IPMode: new(corev1.LoadBalancerIPModeVIP)},
					{IP: "192.0.2.3"},
					{Hostname: "lb.example"},
				}
			}),
			want: []*model.ServicePort{web(func(p *model.ServicePort) { p.LoadBalancerIPs = addrs("192.0.2.2", "192.0.2.3") })},
		},
		{
			name: "source ranges of the other family guard nothing",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.LoadBalancerSourceRanges = []string{"2001:db8::/32"}
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}
			}),
			want: []*model.ServicePort{web(func(p *model.ServicePort) { p.LoadBalancerIPs = addrs("192.0.2.7") })},
		},
		{
			name: "a source range of length 0 beside others guards nothing",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "0.0.0.0/0"}
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}
			}),
			want: []*model.ServicePort{web(func(p *model.ServicePort) { p.LoadBalancerIPs = addrs("192.0.2.7") })},
		},
		{
			name: "source ranges are a sorted set, also before there are load balancer IPs",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.LoadBalancerSourceRanges = []string{"172.16.0.0/12", "10.0.0.0/8", "172.16.0.0/12"}
			}),
			want: []*model.ServicePort{web(func(p *model.ServicePort) { p.LoadBalancerSourceRanges = prefixes("10.0.0.0/8", "172.16.0.0/12") })},
		},
		{
			name: "an invalid source range opens nothing: without a valid one of the family its load balancer IPs are left out",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.ClusterIPs = []string{"10.96.0.1", "fd00::1"}
				s.Spec.LoadBalancerSourceRanges = []string{"010.0.0.0/8", "2001:db8::/32"}
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}, {IP: "2001:db8::7"}}
			}),
			want: []*model.ServicePort{
				web(),
				web(func(p *model.ServicePort) {
					p.ID.Family, p.ClusterIP = model.IPv6, addr("fd00::1")
					p.LoadBalancerIPs = addrs("2001:db8::7")
					p.LoadBalancerSourceRanges = prefixes("2001:db8::/32")
				}),
			},
			skipped: skips{"Service invalid_ip": 1, "Service unreadable_guard": 1},
		},
		{
			name: "external policy Local counts for a NodePort Service",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeNodePort
				s.Spec.Ports[0].NodePort = 30080
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}),
			want: []*model.ServicePort{web(func(p *model.ServicePort) { p.NodePort, p.ExternalPolicy = 30080, model.PolicyLocal })},
		},
		{
			name: "external policy Local counts for external IPs",
			service: makeService(func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"192.0.2.1"}
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}),
			want: []*model.ServicePort{web(func(p *model.ServicePort) {
				p.ExternalIPs, p.ExternalPolicy = addrs("192.0.2.1"), model.PolicyLocal
			})},
		},
		{
			name: "external policy Local means nothing for a ClusterIP Service",
			service: makeService(func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}),
			want: []*model.ServicePort{web()},
		},
		{
			name:    "internal policy Local",
			service: makeService(func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }),
			want:    []*model.ServicePort{web(func(p *model.ServicePort) { p.InternalPolicy = model.PolicyLocal })},
		},
		{
			name: "the health check port counts for LoadBalancer with policy Local, also without node ports",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.HealthCheckNodePort = 31000
				s.Spec.AllocateLoadBalancerNodePorts = new(false)
			}),
			want: []*model.ServicePort{web(func(p *model.ServicePort) {
				p.HealthCheckNodePort, p.ExternalPolicy = 31000, model.PolicyLocal
			})},
		},
		{
			name: "a LoadBalancer with policy Local works without a health check port, and is reported",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}),
			want:    []*model.ServicePort{web(func(p *model.ServicePort) { p.ExternalPolicy = model.PolicyLocal })},
			skipped: skips{"Service invalid_port": 1},
		},
		{
			name: "the health check port means nothing with policy Cluster",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.HealthCheckNodePort = 31000
			}),
			want: []*model.ServicePort{web()},
		},
		{
			name:    "session affinity without a timeout lasts three hours",
			service: makeService(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }),
			want:    []*model.ServicePort{web(func(p *model.ServicePort) { p.AffinityTimeout = 3 * time.Hour })},
		},
		{
			name:    "session affinity with a timeout",
			service: makeService(affinityFor(10)),
			want:    []*model.ServicePort{web(func(p *model.ServicePort) { p.AffinityTimeout = 10 * time.Second })},
		},
		{
			name:    "a session affinity timeout out of range falls back to the default",
			service: makeService(affinityFor(86401)),
			want:    []*model.ServicePort{web(func(p *model.ServicePort) { p.AffinityTimeout = 3 * time.Hour })},
			skipped: skips{"Service invalid_timeout": 1},
		},
		{
			name: "one number for TCP, UDP and SCTP at once",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{
					{Name: "u", Protocol: corev1.ProtocolUDP, Port: 53},
					{Name: "t", Port: 53},
					{Name: "s", Protocol: corev1.ProtocolSCTP, Port: 53},
				}
			}),
			want: []*model.ServicePort{
				web(func(p *model.ServicePort) { p.ID.Port, p.ID.Protocol, p.Port = "s", model.SCTP, 53 }),
				web(func(p *model.ServicePort) { p.ID.Port, p.ID.Protocol, p.Port = "t", model.TCP, 53 }),
				web(func(p *model.ServicePort) { p.ID.Port, p.ID.Protocol, p.Port = "u", model.UDP, 53 }),
			},
		},
		{
			name: "bad ports are skipped and the good ones work",
			service: makeService(func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{
					{Name: "zero", Port: 0},
					{Name: "negative", Port: -1},
					{Name: "huge", Port: 65536},
					{Name: "odd", Port: 1, Protocol: "DCCP"},
					{Name: "good", Port: 80},
					{Name: "good", Port: 81},
					{Name: "node", Port: 82, NodePort: 70000},
				}
			}),
			want: []*model.ServicePort{
				web(func(p *model.ServicePort) { p.ID.Port = "good" }),
				web(func(p *model.ServicePort) { p.ID.Port, p.Port = "node", 82 }),
			},
			skipped: skips{"Service invalid_port": 4, "Service invalid_protocol": 1, "Service duplicate_port": 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker, skipped := newSynced(tc.service)
			if diff := cmp.Diff(tc.want, portsOf(t, tracker.Changes()), sameAddrs); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
			want := tc.skipped
			if want == nil {
				want = skips{}
			}
			if diff := cmp.Diff(want, skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

func affinityFor(seconds int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func testProxyNameTakesExactlyItsServices(t *testing.T) {
	tracker := New(Options{ServiceProxyName: "mine"})
	labelled := func(name, value string) *corev1.Service {
		return makeService(func(s *corev1.Service) {
			s.Name = name
			s.Labels = map[string]string{LabelServiceProxyName: value}
		})
	}
	tracker.SetService(makeService())
	tracker.SetService(labelled("mine", "mine"))
	tracker.SetService(labelled("other", "other"))
	tracker.Synced()
	if got := onePort(t, tracker).ID.Service; got != "mine" {
		t.Errorf("got Service %q, want mine", got)
	}
}

func testLabelTakesServiceAwayAndBack(t *testing.T) {
	tracker, _ := newSynced(makeService())
	id := onePort(t, tracker).ID

	tracker.SetService(makeService(func(s *corev1.Service) { s.Labels = map[string]string{LabelServiceProxyName: "other"} }))
	want := &model.Changes{Ports: map[model.PortID]*model.ServicePort{id: nil}}
	if diff := cmp.Diff(want, tracker.Changes(), sameAddrs); diff != "" {
		t.Errorf("labelled (-want +got):\n%s", diff)
	}
	tracker.SetService(makeService())
	want.Ports[id] = web()
	if diff := cmp.Diff(want, tracker.Changes(), sameAddrs); diff != "" {
		t.Errorf("unlabelled (-want +got):\n%s", diff)
	}
}
