package metrics_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
)

// value returns what a metric with these labels (name, value, name, value …) shows: the
// value, or of a histogram how often it was observed. 0 when there is none.
func value(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	for _, metric := range gather(t)["kubeproxy_"+name].GetMetric() {
		if !matches(metric, labels) {
			continue
		}
		if h := metric.GetHistogram(); h != nil {
			return float64(h.GetSampleCount())
		}
		return metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
	}
	return 0
}

func matches(metric *dto.Metric, labels []string) bool {
	have := map[string]string{}
	for _, label := range metric.GetLabel() {
		have[label.GetName()] = label.GetValue()
	}
	for i := 0; i < len(labels); i += 2 {
		if have[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// expectAdded fails unless do makes a metric grow by want in each family.
func expectAdded(t *testing.T, do func(), want map[string]float64) {
	t.Helper()
	before := map[string]float64{}
	key := func(name string, family model.Family) string { return name + " " + family.String() }
	for name := range want {
		for _, family := range model.Families {
			before[key(name, family)] = value(t, name, "ip_family", family.String())
		}
	}
	do()
	for name, want := range want {
		for _, family := range model.Families {
			if got := value(t, name, "ip_family", family.String()) - before[key(name, family)]; got != want {
				t.Errorf("%s of %s grew by %v, want %v", name, family, got, want)
			}
		}
	}
}

func testSyncIsRecordedForBothFamilies(t *testing.T) {
	const (
		all, full, partial = "sync_proxy_rules_duration_seconds", "sync_full_proxy_rules_duration_seconds", "sync_partial_proxy_rules_duration_seconds"
		failures, latency  = "sync_proxy_rules_nftables_sync_failures_total", "network_programming_duration_seconds"
	)
	triggers := []time.Time{time.Now().Add(-time.Second), time.Now()}
	cases := []struct {
		name   string
		result model.SyncResult
		want   map[string]float64
	}{
		{"of everything", model.SyncResult{Changes: &model.Changes{Full: true}, Triggers: triggers},
			map[string]float64{all: 1, full: 1, partial: 0, failures: 0, latency: 2}},
		{"of changes", model.SyncResult{Changes: &model.Changes{}, Triggers: triggers[:1]},
			map[string]float64{all: 1, full: 0, partial: 1, failures: 0, latency: 1}},
		{"that failed, and whose triggers come again", model.SyncResult{Changes: &model.Changes{}, Triggers: triggers, Err: errors.New("refused")},
			map[string]float64{all: 1, full: 0, partial: 1, failures: 1, latency: 0}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			expectAdded(t, func() { metrics.ObserveSync(tc.result) }, tc.want)
		})
	}
}

func testTimestampsTellASyncThatIsStuck(t *testing.T) {
	const synced, queued = "sync_proxy_rules_last_timestamp_seconds", "sync_proxy_rules_last_queued_timestamp_seconds"
	stuck := func() bool {
		return value(t, queued, "ip_family", "IPv6") > value(t, synced, "ip_family", "IPv6")
	}
	begin := float64(time.Now().Unix())
	metrics.ObserveSync(model.SyncResult{Changes: &model.Changes{}})
	if got := value(t, synced, "ip_family", "IPv4"); got < begin {
		t.Errorf("last synced %v, before this test began at %v", got, begin)
	}
	metrics.ObserveQueued()
	metrics.ObserveSync(model.SyncResult{Changes: &model.Changes{}, Err: errors.New("refused")})
	if !stuck() {
		t.Error("a failed sync counts as the last one")
	}
	metrics.ObserveSync(model.SyncResult{Changes: &model.Changes{}})
	if stuck() {
		t.Error("a good sync is not the last one")
	}
}

func testPortsWithoutLocalEndpointsAreCounted(t *testing.T) {
	somewhere := []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.2.6:80")}}
	here := []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.5:80"), Local: true}}
	id := func(name string) model.PortID {
		return model.PortID{Namespace: "shop", Service: name, Protocol: model.TCP, Family: model.IPv4}
	}
	port := func(internal, external model.TrafficPolicy, cluster, local []model.Endpoint) *model.ServicePort {
		return &model.ServicePort{InternalPolicy: internal, ExternalPolicy: external, Cluster: cluster, Local: local}
	}
	type ports = map[model.PortID]*model.ServicePort
	steps := []struct {
		name               string
		changes            model.Changes
		internal, external float64
	}{
		{"what the policies say", model.Changes{Full: true, Ports: ports{
			id("both"):      port(model.PolicyLocal, model.PolicyLocal, somewhere, nil),
			id("internal"):  port(model.PolicyLocal, model.PolicyCluster, somewhere, nil),
			id("cluster"):   port(model.PolicyCluster, model.PolicyCluster, somewhere, nil),
			id("served"):    port(model.PolicyLocal, model.PolicyLocal, somewhere, here),
			id("unserved"):  port(model.PolicyLocal, model.PolicyLocal, nil, nil),
			id("draining"):  port(model.PolicyLocal, model.PolicyLocal, nil, here),
			id("external1"): port(model.PolicyCluster, model.PolicyLocal, somewhere, nil),
			id("external2"): port(model.PolicyCluster, model.PolicyLocal, somewhere, nil),
		}}, 2, 3},
		{"an endpoint came", model.Changes{Ports: ports{id("both"): port(model.PolicyLocal, model.PolicyLocal, somewhere, here)}}, 1, 2},
		{"an endpoint went", model.Changes{Ports: ports{id("served"): port(model.PolicyLocal, model.PolicyLocal, somewhere, nil)}}, 2, 3},
		{"a port went", model.Changes{Ports: ports{id("external1"): nil}}, 2, 2},
		{"everything went", model.Changes{Full: true}, 0, 0},
	}
	const name = "sync_proxy_rules_no_local_endpoints_total"
	for _, step := range steps {
		metrics.ObserveSync(model.SyncResult{Changes: &step.changes})
		internal := value(t, name, "traffic_policy", "internal", "ip_family", "IPv4")
		external := value(t, name, "traffic_policy", "external", "ip_family", "IPv4")
		if internal != step.internal || external != step.external {
			t.Errorf("%s: internal %v, external %v; want %v, %v", step.name, internal, external, step.internal, step.external)
		}
		for _, policy := range []string{"internal", "external"} {
			if got := value(t, name, "traffic_policy", policy, "ip_family", "IPv6"); got != 0 {
				t.Errorf("%s: %v in the other family", step.name, got)
			}
		}
	}
}

func testTransactionsSizeIsRecorded(t *testing.T) {
	sums := func() (out [3]float64) {
		for i, name := range []string{"nftables_commit_bytes", "nftables_commit_elements", "nftables_commit_chains"} {
			out[i] = gather(t)["kubeproxy_"+name].GetMetric()[0].GetHistogram().GetSampleSum()
		}
		return out
	}
	before := sums()
	metrics.ObserveCommit(nft.CommitStats{Bytes: 1000, Elements: 20, Chains: 3})
	after := sums()
	if got, want := [3]float64{after[0] - before[0], after[1] - before[1], after[2] - before[2]}, [3]float64{1000, 20, 3}; got != want {
		t.Errorf("bytes, elements, chains grew by %v, want %v", got, want)
	}
}

func testConntrackIsRecordedByFamily(t *testing.T) {
	const duration, deleted = "conntrack_reconciler_sync_duration_seconds", "conntrack_reconciler_deleted_entries_total"
	expectAdded(t, func() {
		metrics.ObserveConntrack(model.IPv4, time.Millisecond, 5)
		metrics.ObserveConntrack(model.IPv6, time.Millisecond, 5)
	}, map[string]float64{duration: 1, deleted: 5})
}

func testTrackersCountsAreShown(t *testing.T) {
	names := []string{
		"sync_proxy_rules_service_changes_total", "sync_proxy_rules_service_changes_pending",
		"sync_proxy_rules_endpoint_changes_total", "sync_proxy_rules_endpoint_changes_pending",
		"unguarded_load_balancer_services",
	}
	tr := tracker.New(tracker.Options{})
	metrics.ShowTracker(tr)
	tr.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", LoadBalancerSourceRanges: []string{"0.0.0.0/0"}},
		Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}},
	})
	tr.DeleteService("shop", "api")
	for range 3 {
		tr.DeleteEndpointSlice("shop", "web-1")
	}
	for i, want := range []float64{2, 1, 3, 0, 1} {
		if got := value(t, names[i]); got != want {
			t.Errorf("%s = %v, want %v", names[i], got, want)
		}
	}
}

// What a Kubernetes component shows besides its own: who it is, how the process fares, and how it
// gets on with the API server.
func testMetricsOfEveryComponentAreThere(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"major":"1","minor":"37"}`))
	}))
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ServerVersion(); err != nil {
		t.Fatal(err)
	}
	families := gather(t)
	for _, name := range []string{
		"kubernetes_build_info", "go_goroutines", "process_start_time_seconds", "process_resident_memory_bytes", "process_open_fds",
		"registered_metrics_total", "rest_client_requests_total", "rest_client_request_duration_seconds", "rest_client_transport_cache_entries",
	} {
		if families[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
}

// The gate NFTProxyRefusedCounters counts no connections, and nobody counts those of an unknown port.
func TestRefusalsAloneShowNoConnections(t *testing.T) {
	metrics.ShowServiceCounts(oneCount{ServicePort: "shop/refusing", Refused: [compiler.CountedKinds]uint64{compiler.CountedPort: 3}})
	labels := []string{"namespace", "shop", "service", "refusing", "port", ""}
	if got := value(t, "nftables_service_refused_packets_total", append(labels, "reason", "unknown-port")...); got != 3 {
		t.Errorf("%v refused packets are shown, want 3", got)
	}
	for _, name := range []string{"nftables_service_connections_total", "nftables_service_bytes_total"} {
		for _, metric := range gather(t)["kubeproxy_"+name].GetMetric() {
			if matches(metric, labels) {
				t.Errorf("%s is shown, which is not counted", name)
			}
		}
	}
}
