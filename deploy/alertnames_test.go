package deploy

import "testing"

func TestAlerts(t *testing.T) {
	t.Run("their names are not kubernetes-mixin's", testAlertNamesAreNotKubernetesMixins)
	t.Run("ask for what the program has", testAlertsAskForWhatTheProgramHas)
	t.Run("Prometheus accepts them", testPrometheusAcceptsTheAlerts)
	t.Run("a wrong expression is noticed", testWrongExpressionIsNoticed)
}

// Alertmanager and people take alerts of one name for one alert. kubernetes-mixin has these about kube-proxy.
func testAlertNamesAreNotKubernetesMixins(t *testing.T) {
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
