package deploy

import (
	"os"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)

func TestAlerts(t *testing.T) {
	t.Run("tell of each lasting trouble", testAlertsTellOfLastingTrouble)
	t.Run("have a runbook", testAlertsHaveARunbook)
	t.Run("their names are not kubernetes-mixin's", testAlertNamesAreNotKubernetesMixins)
	t.Run("ask for what the program has", testAlertsAskForWhatTheProgramHas)
	t.Run("Prometheus accepts them", testPrometheusAcceptsTheAlerts)
	t.Run("a wrong expression is noticed", testWrongExpressionIsNoticed)
}

// Alertmanager and people take alerts of one name for one alert. kubernetes-mixin has these about kube-proxy.
func testAlertNamesAreNotKubernetesMixins(t *testing.T) {
	mixins := map[string]bool{"KubeProxyDown": true, "KubeVersionMismatch": true}
	for _, rule := range alerts(t) {
		if mixins[rule.Alert] {
			t.Errorf("kubernetes-mixin has an alert %s too", rule.Alert)
		}
	}
}

// alerts returns the alerts of all groups.
func alerts(t *testing.T) (out []monitoringv1.Rule) {
	t.Helper()
	for _, group := range prometheusRule(t).Spec.Groups {
		out = append(out, group.Rules...)
	}
	if len(out) < 5 {
		t.Fatalf("found %d alerts; this looks in the wrong place", len(out))
	}
	return out
}

// Each of these metrics says that something is wrong for as long as it is above 0.
func testAlertsTellOfLastingTrouble(t *testing.T) {
	for _, metric := range []string{
		"kubeproxy_watch_failing", "kubeproxy_node_missing", "kubeproxy_nftables_diverged", "kubeproxy_other_modes_leftovers",
		"kubeproxy_losses_held", "kubeproxy_unanswered_endpoints", "kubeproxy_contested_addresses", "kubeproxy_detect_local_unfit",
	} {
		if !slices.ContainsFunc(alerts(t), func(rule monitoringv1.Rule) bool { return strings.Contains(rule.Expr.String(), metric+"{") }) {
			t.Errorf("no alert asks for %s", metric)
		}
	}
}

func testAlertsHaveARunbook(t *testing.T) {
	page, err := os.ReadFile("../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range alerts(t) {
		want := "https://github.com/nftproxy/nftproxy/blob/main/docs/observability.md#" + strings.ToLower(rule.Alert)
		if got := rule.Annotations["runbook_url"]; got != want {
			t.Errorf("%s has the runbook_url %q, want %q", rule.Alert, got, want)
		}
		if !strings.Contains(string(page), "\n### "+rule.Alert+"\n") {
			t.Errorf("docs/observability.md has no heading %s", rule.Alert)
		}
	}
	if headings := strings.Count(string(page), "\n### KubeProxy"); headings != len(alerts(t)) {
		t.Errorf("docs/observability.md describes %d alerts, and there are %d", headings, len(alerts(t)))
	}
}
