package metrics_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

var update = flag.Bool("update", false, "rewrite testdata/metrics.txt")

func TestMain(m *testing.M) {
	metrics.Register()
	metrics.Register()
	os.Exit(m.Run())
}

// everything records something in each metric, since one with labels does not show before.
func everything() {
	metrics.ShowTracker(tracker.New(tracker.Options{}))
	metrics.ObserveQueued()
	metrics.ObserveSync(model.SyncResult{Changes: &model.Changes{Full: true}, Err: errors.New("refused")})
	metrics.ObserveSync(model.SyncResult{Changes: &model.Changes{Full: true}, Triggers: []time.Time{time.Now()}})
	metrics.ObserveSync(model.SyncResult{Changes: &model.Changes{}})
	metrics.ObserveCompile(time.Millisecond)
	metrics.ObserveCommit(nft.CommitStats{})
	metrics.CountForeignChange()
	metrics.CountRepair()
	metrics.CountSkip(tracker.KindService, tracker.ReasonInvalidIP)
	for _, family := range model.Families {
		metrics.ObserveConntrack(family, time.Millisecond, 1)
		metrics.SetLocalhostListeners(family, 1)
		metrics.CountLocalhostListenFailure(family)
	}
	metrics.CountHealthz(200)
	metrics.CountLivez(200)
	metrics.SetServiceHealthPorts(1, 1)
	metrics.SetWatchFailing("services", true)
	metrics.SetLossesHeld("services", true)
	metrics.SetNodeMissing(true, true, false)
	metrics.SetLeftovers("ipvs", 1)
	metrics.SetDraining(3, 20, 2)
	metrics.SetLeftoversConflict(true)
	if table, err := conntrack.Dial(0); err == nil {
		metrics.ShowConntrack(table)
	}
	metrics.SetContestedAddresses(1)
	metrics.SetDetectLocalUnfit(true)
	metrics.SetUnansweredEndpoints(1)
	metrics.SetNodeLocalWatchers(1)
	metrics.ObserveNodeLocalBatch(true, 1, time.Millisecond)
	metrics.CountNodeLocalRefused("streams")
	metrics.ShowServiceCounts(oneCount{ServicePort: "shop/web:http", Connections: 1, Bytes: 2, Refused: [compiler.CountedKinds]uint64{compiler.CountedNoEndpoints: 3}})
}

// oneCount is the only count of Services.
type oneCount metrics.ServiceCount

func (c oneCount) Each(each func(metrics.ServiceCount)) { each(metrics.ServiceCount(c)) }
func (c oneCount) TooLarge() int                        { return 0 }

// gather returns all metrics by name.
func gather(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, family := range families {
		out[family.GetName()] = family
	}
	return out
}

// own returns what the proxy itself has of metrics.
func own(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	everything()
	families := gather(t)
	for name := range families {
		if !strings.HasPrefix(name, "kubeproxy_") {
			delete(families, name)
		}
	}
	return families
}

// describe returns "name{labels} type [STABILITY]", a line with the buckets of a histogram,
// and the help text.
func describe(family *dto.MetricFamily) (signature, help string) {
	stability, help, _ := strings.Cut(family.GetHelp(), " ")
	metric := family.GetMetric()[0]
	var labels []string
	for _, label := range metric.GetLabel() {
		labels = append(labels, label.GetName())
	}
	signature = fmt.Sprintf("%s{%s} %s %s\n", family.GetName(), strings.Join(labels, ","), strings.ToLower(family.GetType().String()), stability)
	if family.GetType() != dto.MetricType_HISTOGRAM {
		return signature, help
	}
	signature += "  buckets"
	for _, bucket := range metric.GetHistogram().GetBucket() {
		signature += fmt.Sprintf(" %g", bucket.GetUpperBound())
	}
	return signature + "\n", help
}

func sortedNames(families map[string]*dto.MetricFamily) []string {
	var names []string
	for name := range families {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestMetrics(t *testing.T) {
	t.Run("are those of the list", testMetricsAreThoseOfTheList)
	t.Run("those of kube-proxy are all there", testKubeProxysMetricsAreAllThere)
	t.Run("are documented", testMetricsAreDocumented)
	t.Run("a Sync is recorded for both families", testSyncIsRecordedForBothFamilies)
	t.Run("timestamps tell a Sync that is stuck", testTimestampsTellASyncThatIsStuck)
	t.Run("ports without local endpoints are counted", testPortsWithoutLocalEndpointsAreCounted)
	t.Run("the size of a transaction is recorded", testTransactionsSizeIsRecorded)
	t.Run("conntrack is recorded by family", testConntrackIsRecordedByFamily)
	t.Run("the tracker's counts are shown", testTrackersCountsAreShown)
	t.Run("of every component are there", testMetricsOfEveryComponentAreThere)
	t.Run("of refused calls are there before the first one", testRefusedCallsStartAtZero)
}

// Whoever changes a metric changes this list, and so sees what dashboards will see.
func testMetricsAreThoseOfTheList(t *testing.T) {
	const path = "testdata/metrics.txt"
	var got strings.Builder
	families := own(t)
	for _, name := range sortedNames(families) {
		signature, help := describe(families[name])
		fmt.Fprintf(&got, "%s  %s\n", signature, help)
	}
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s (-want +got), accept with -update:\n%s", path, diff)
	}
}

// testdata/kube-proxy-v1.37.txt was taken from the /metrics of kube-proxy v1.37.1.
func testKubeProxysMetricsAreAllThere(t *testing.T) {
	list, err := os.ReadFile("testdata/kube-proxy-v1.37.txt")
	if err != nil {
		t.Fatal(err)
	}
	families := own(t)
	seen := 0
	for _, want := range regexp.MustCompile(`(?m)^kubeproxy_.*\n(  .*\n)?`).FindAllString(string(list), -1) {
		seen++
		name, _, _ := strings.Cut(want, "{")
		if families[name] == nil {
			t.Errorf("there is no %s", name)
			continue
		}
		got, _ := describe(families[name])
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("kube-proxy's (-) and ours (+) differ:\n%s", diff)
		}
	}
	if seen < 19 {
		t.Errorf("the list has %d metrics; this test reads it wrong", seen)
	}
}

func testMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	families := own(t)
	for name := range families {
		if !regexp.MustCompile("`" + name + "[`{]").Match(text) {
			t.Errorf("docs/observability.md says nothing of %s", name)
		}
	}
	for _, name := range regexp.MustCompile(`kubeproxy_[a-z_]+[a-z]`).FindAllString(string(text), -1) {
		if base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, ""); families[base] == nil {
			t.Errorf("docs/observability.md tells of %s, which is no metric", name)
		}
	}
}

func testRefusedCallsStartAtZero(t *testing.T) {
	var reasons []string
	for _, metric := range gather(t)["kubeproxy_node_local_refused_total"].GetMetric() {
		reasons = append(reasons, metric.GetLabel()[0].GetValue())
	}
	slices.Sort(reasons)
	if diff := cmp.Diff(slices.Sorted(slices.Values(server.Refused)), reasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}
