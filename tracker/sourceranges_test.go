package tracker

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2/textlogger"

	"github.com/nftproxy/nftproxy/model"
)

// TestUnguardedServices follows one Service through its changes. Each step says what
// OnUnguarded hears in it; the log must have a line for each and no other.
func TestUnguardedServices(t *testing.T) {
	var heard []string
	var log bytes.Buffer
	tracker := New(Options{
		Logger: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))),
		OnUnguarded: func(ns, name string, families []model.Family) {
			heard = append(heard, fmt.Sprint(ns, "/", name, families))
		},
	})
	with := func(ranges []string, edits ...func(*corev1.Service)) func() {
		return func() {
			tracker.SetService(makeService(append([]func(*corev1.Service){func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.ClusterIPs = []string{"10.96.0.1", "fd00::1"}
				s.Spec.LoadBalancerSourceRanges = ranges
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}, {IP: "2001:db8::7"}}
			}}, edits...)...))
		}
	}
	noAddresses := func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = nil }
	onlyIPv4 := func(s *corev1.Service) { s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1] }
	const v4, v6, both = "default/web[IPv4]", "default/web[IPv6]", "default/web[IPv4 IPv6]"
	for _, step := range []struct {
		name  string
		do    func()
		heard string
		count int
	}{
		{"no ranges at all", with(nil), "", 0},
		{"ranges of both families", with([]string{"10.0.0.0/8", "2001:db8::/32"}), "", 0},
		{"ranges of one family", with([]string{"10.0.0.0/8"}), v6, 1},
		{"the same Service again", with([]string{"10.0.0.0/8"}), "", 1},
		{"another range of that family", with([]string{"10.0.0.0/8", "172.16.0.0/12"}), "", 1},
		{"everybody, of that family", with([]string{"0.0.0.0/0"}), both, 1},
		{"everybody beside a range", with([]string{"10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0"}), "", 1},
		{"guarded again", with([]string{"10.0.0.0/8", "2001:db8::/32"}), "", 0},
		{"everybody of one family", with([]string{"0.0.0.0/0", "2001:db8::/32"}), v4, 1},
		{"ranges taken away", with(nil), "", 0},
		{"a family that the Service does not have", with([]string{"10.0.0.0/8"}, onlyIPv4), "", 0},
		{"no load balancer IPs yet", with([]string{"10.0.0.0/8"}, noAddresses), "", 0},
		{"load balancer IPs", with([]string{"10.0.0.0/8"}), v6, 1},
		{"deleted", func() { tracker.DeleteService("default", "web") }, "", 0},
		{"made anew", with([]string{"10.0.0.0/8"}), v6, 1},
		{"of another proxy", with([]string{"10.0.0.0/8"}, func(s *corev1.Service) { s.Labels = map[string]string{LabelServiceProxyName: "other"} }), "", 0},
		{"a range that cannot be read", with([]string{"10.0.0.0/8", "2001:db8::/129"}), "", 0},
	} {
		t.Run(step.name, func(t *testing.T) {
			heard = nil
			log.Reset()
			step.do()
			if got := strings.Join(heard, ", "); got != step.heard {
				t.Errorf("heard %q, want %q", got, step.heard)
			}
			if got, want := strings.Count(log.String(), "Everybody may dial load balancer IPs"), len(heard); got != want {
				t.Errorf("%d lines in the log, want %d:\n%s", got, want, log.String())
			}
			if step.heard != "" && !strings.Contains(log.String(), `service="default/web"`) {
				t.Errorf("the log does not name the Service:\n%s", log.String())
			}
			if got := tracker.Counts().UnguardedServices; got != step.count {
				t.Errorf("counted %d, want %d", got, step.count)
			}
		})
	}
}

func TestIgnoredExternalIPs(t *testing.T) {
	service := makeService(func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"192.0.2.1", "nonsense"}
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	skipped := skips{}
	tracker := New(Options{NodeName: thisNode, IgnoreExternalIPs: true, OnSkip: skipped.count})
	tracker.SetService(service)
	tracker.Synced()
	// Not even the policy for external traffic is left, since there is none.
	if diff := cmp.Diff(web(), onePort(t, tracker), sameAddrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(skipped) > 0 {
		t.Errorf("complained of external IPs that do not count: %v", skipped)
	}
	if len(service.Spec.ExternalIPs) != 2 {
		t.Error("the Service was modified")
	}
}
