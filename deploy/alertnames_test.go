package deploy

import "testing"

// Alertmanager and people take alerts of one name for one alert. kubernetes-mixin has these about kube-proxy.
func TestAlertNamesAreNotKubernetesMixins(t *testing.T) {
	mixins := map[string]bool{"KubeProxyDown": true, "KubeVersionMismatch": true}
	seen := 0
	for _, group := range prometheusRule(t).Spec.Groups {
		for _, rule := range group.Rules {
			seen++
			if mixins[rule.Alert] {
				t.Errorf("kubernetes-mixin has an alert %s too", rule.Alert)
			}
		}
	}
	if seen < 5 {
		t.Errorf("saw %d alerts; this test looks in the wrong place", seen)
	}
}
