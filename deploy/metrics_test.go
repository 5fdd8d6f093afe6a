package deploy

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metric has the kind and the labels of a metric of the program.
type metric struct {
	kind   string // counter, gauge or histogram
	labels []string
}

// otherMetrics are those that are not kube-proxy's own: what Prometheus says of its targets,
// and what every Kubernetes program has. TestPods/apply_the_rules_on_their_nodes looks for the latter.
var otherMetrics = map[string]metric{
	"up":                            {kind: "gauge"},
	"process_resident_memory_bytes": {kind: "gauge"},
	"process_cpu_seconds_total":     {kind: "counter"},
	"rest_client_requests_total":    {kind: "counter", labels: []string{"code", "host", "method"}},
}

// targetLabels are those that Prometheus adds, node by the PodMonitor's wish.
var targetLabels = []string{"job", "node"}

var golden = regexp.MustCompile(`(?m)^(\w+)\{([\w,]*)\} (\w+)`)

// knownMetrics are all metrics that expressions may ask for, by name.
func knownMetrics(t *testing.T) map[string]metric {
	t.Helper()
	data, err := os.ReadFile("../internal/metrics/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]metric{}
	for _, m := range golden.FindAllStringSubmatch(string(data), -1) {
		known[m[1]] = metric{m[3], strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' })}
	}
	for name, m := range otherMetrics {
		known[name] = m
	}
	return known
}

// series is one time series name of a metric: of a histogram, those with a suffix.
type series struct {
	metric  metric
	counter bool
	labels  []string
}

// find returns what a name in an expression stands for.
func find(known map[string]metric, name string) (series, error) {
	if m, ok := known[name]; ok && m.kind != "histogram" {
		return series{m, m.kind == "counter", slices.Concat(m.labels, targetLabels)}, nil
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if m := known[strings.TrimSuffix(name, suffix)]; strings.HasSuffix(name, suffix) && m.kind == "histogram" {
			labels := slices.Concat(m.labels, targetLabels)
			if suffix == "_bucket" {
				labels = append(labels, "le")
			}
			return series{m, true, labels}, nil
		}
	}
	return series{}, fmt.Errorf("the program has no metric %s", name)
}
