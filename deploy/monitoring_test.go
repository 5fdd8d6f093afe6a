package deploy

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"sigs.k8s.io/yaml"
)

func testAlertsAskForWhatTheProgramHas(t *testing.T) {
	known := knownMetrics(t)
	for _, group := range prometheusRule(t).Spec.Groups {
		for _, rule := range group.Rules {
			labels, err := checkExpression(known, rule.Expr.String())
			if err != nil {
				t.Errorf("%s: %v", rule.Alert, err)
			}
			for _, text := range rule.Annotations {
				checkTemplate(t, rule.Alert, text, labels)
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" {
				t.Errorf("%s lacks a summary, a description or a severity", rule.Alert)
			}
		}
	}
}

func testPrometheusAcceptsTheAlerts(t *testing.T) {
	groups, err := yaml.Marshal(prometheusRule(t).Spec)
	if err != nil {
		t.Fatal(err)
	}
	_, problems := rulefmt.Parse(groups, false, model.UTF8Validation, promql, slog.New(slog.DiscardHandler))
	for _, err := range problems {
		t.Error(err)
	}
}

func prometheusRule(t *testing.T) *monitoringv1.PrometheusRule {
	t.Helper()
	return get[*monitoringv1.PrometheusRule](t, kustomize(t, "chart/monitoring"), "PrometheusRule nftproxy")
}

var usedLabel = regexp.MustCompile(`\{\{ *(?:\$labels\.)?(\w+) *\}\}`)

// checkTemplate looks for {{ $labels.node }}, and {{node}} as Grafana has it, that stay empty.
func checkTemplate(t *testing.T, name, text string, labels []string) {
	t.Helper()
	for _, used := range usedLabel.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(labels, used[1]) {
			t.Errorf("%s: %q uses the label %s; the expression has %v", name, text, used[1], labels)
		}
	}
}

// dashboard is the part of Grafana's format that can be wrong without Grafana's noticing.
type dashboard struct {
	Templating struct {
		List []struct {
			Name string
		}
	}
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, LegendFormat string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	data, err := os.ReadFile("chart/monitoring/nftproxy.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDashboard(t *testing.T) {
	t.Run("asks for what the program has", testDashboardAsksForWhatTheProgramHas)
	t.Run("shows counted Services", testDashboardShowsCountedServices)
	t.Run("panels have their own places", testDashboardsPanelsHaveTheirOwnPlaces)
	t.Run("variables exist", testDashboardsVariablesExist)
}

func testDashboardAsksForWhatTheProgramHas(t *testing.T) {
	known := knownMetrics(t)
	for _, panel := range readDashboard(t).Panels {
		if len(panel.Targets) == 0 && panel.Type != "row" {
			t.Errorf("panel %q asks for nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			labels, err := checkExpression(known, strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
			if err != nil {
				t.Errorf("panel %q: %v", panel.Title, err)
			}
			checkTemplate(t, panel.Title, target.LegendFormat, labels)
		}
	}
}

func testDashboardShowsCountedServices(t *testing.T) {
	for metric, legend := range map[string]string{
		"kubeproxy_nftables_service_connections_total":     "{{service}}",
		"kubeproxy_nftables_service_bytes_total":           "{{service}}",
		"kubeproxy_nftables_service_refused_packets_total": "{{service}} {{reason}}",
	} {
		shown := false
		for _, panel := range readDashboard(t).Panels {
			for _, target := range panel.Targets {
				shown = shown || strings.Contains(target.Expr, metric) && strings.Contains(target.LegendFormat, legend)
			}
		}
		if !shown {
			t.Errorf("no panel shows %s by %s", metric, legend)
		}
	}
}

func testDashboardsPanelsHaveTheirOwnPlaces(t *testing.T) {
	taken := map[[2]int]string{}
	ids := map[int]string{}
	for _, panel := range readDashboard(t).Panels {
		if other := ids[panel.ID]; other != "" {
			t.Errorf("panels %q and %q have one id", panel.Title, other)
		}
		ids[panel.ID] = panel.Title
		for x := range panel.GridPos.W {
			for y := range panel.GridPos.H {
				cell := [2]int{panel.GridPos.X + x, panel.GridPos.Y + y}
				if other := taken[cell]; other != "" || cell[0] > 23 {
					t.Fatalf("panel %q overlaps %q, or the edge", panel.Title, other)
				}
				taken[cell] = panel.Title
			}
		}
	}
}

func testDashboardsVariablesExist(t *testing.T) {
	d := readDashboard(t)
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			if !strings.Contains(target.Expr, `node=~"$node"`) {
				t.Errorf("panel %q does not go by the chosen node: %s", panel.Title, target.Expr)
			}
		}
	}
	var names []string
	for _, variable := range d.Templating.List {
		names = append(names, variable.Name)
	}
	if !slices.Contains(names, "node") || !slices.Contains(names, "datasource") {
		t.Errorf("variables %v, want node and datasource", names)
	}
}

func testWrongExpressionIsNoticed(t *testing.T) {
	known := map[string]metric{
		"total":   {"counter", []string{"code"}},
		"level":   {kind: "gauge"},
		"seconds": {kind: "histogram"},
	}
	for name, tt := range map[string]struct{ expr, want string }{
		"an unknown metric":              {`rate(totals[5m])`, "no metric totals"},
		"an unknown label":               {`total{status="200"}`, "no label status"},
		"a label lost by a sum":          {`sum by (node) (sum by (job) (total))`, "no label node"},
		"the rate of a gauge":            {`rate(level[5m])`, "no counter"},
		"a histogram without its suffix": {`seconds`, "no metric seconds"},
		"buckets of a counter":           {`total_bucket`, "no metric total_bucket"},
		"bad syntax":                     {`sum(`, "parse error"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := checkExpression(known, tt.expr)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}
