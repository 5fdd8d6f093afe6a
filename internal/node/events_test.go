package node

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/source/apiserver"
)

// posted waits for n events at the API server and returns them.
func posted(t *testing.T, server *apiservertest.Server, n int) []eventsv1.Event {
	t.Helper()
	client, err := apiserver.Client(server.RESTConfig(), nil, eventsv1.SchemeGroupVersion, &eventsv1.Event{}, &eventsv1.EventList{})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var list eventsv1.EventList
		if err := client.Get().Namespace(metav1.NamespaceDefault).Resource("events").Do(t.Context()).Into(&list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) >= n {
			return list.Items
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %d events, want %d", len(list.Items), n)
		}
	}
}

func TestEvents(t *testing.T) {
	t.Run("arrive as those of kube-proxy", testEventsArriveAsThoseOfKubeProxy)
	t.Run("that are refused do no harm", testEventsThatAreRefusedDoNoHarm)
	t.Run("none post nothing", testNoEventsPostNothing)
}

func testEventsArriveAsThoseOfKubeProxy(t *testing.T) {
	server := apiservertest.Start(t, apiservertest.Options{})
	events, err := NewEvents(t.Context(), server.RESTConfig(), thisNode)
	if err != nil {
		t.Fatal(err)
	}
	events.Starting()
	events.HealthServerFailed(errors.New("listen tcp :10256: 100% taken"))
	events.MetricsServerFailed(errors.New("listen tcp :10249: taken"))
	events.ServiceHealthFailed(metav1.NamespaceDefault, "web", errors.New("port taken"))
	events.ServiceWarning(metav1.NamespaceDefault, "web", "AddressContested", `port "http" gets no packets`)
	events.NodeWarning("DirectReturnBlocked", "this node forwards nothing")

	type event struct{ Kind, Name, Type, Reason, Action, Note, By string }
	got := map[string]event{}
	for _, e := range posted(t, server, 6) {
		got[e.Reason] = event{e.Regarding.Kind, e.Regarding.Name, e.Type, e.Reason, e.Action, e.Note, e.ReportingController}
		if e.EventTime.IsZero() || !strings.HasPrefix(e.ReportingInstance, "kube-proxy-") {
			t.Errorf("%s: event time %v, reporting instance %q", e.Reason, e.EventTime, e.ReportingInstance)
		}
	}
	want := map[string]event{
		"Starting":                        {"Node", thisNode, "Normal", "Starting", "StartKubeProxy", "", "kube-proxy"},
		"FailedToStartProxierHealthcheck": {"Node", thisNode, "Warning", "FailedToStartProxierHealthcheck", "StartKubeProxy", "listen tcp :10256: 100% taken", "kube-proxy"},
		"FailedToStartMetricServer":       {"Node", thisNode, "Warning", "FailedToStartMetricServer", "StartKubeProxy", "listen tcp :10249: taken", "kube-proxy"},
		"AddressContested":                {"Service", "web", "Warning", "AddressContested", "Program", `port "http" gets no packets`, "kube-proxy"},
		"DirectReturnBlocked":             {"Node", thisNode, "Warning", "DirectReturnBlocked", "Program", "this node forwards nothing", "kube-proxy"},
		"FailedToStartServiceHealthcheck": {"Service", "web", "Warning", "FailedToStartServiceHealthcheck", "Listen", "port taken", "kube-proxy"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func testEventsThatAreRefusedDoNoHarm(t *testing.T) {
	server := apiservertest.Start(t, apiservertest.Options{})
	server.Refuse("events", http.StatusForbidden)
	events, err := NewEvents(t.Context(), server.RESTConfig(), thisNode)
	if err != nil {
		t.Fatal(err)
	}
	events.Starting()
	for deadline := time.Now().Add(time.Minute); len(server.Requests("create", "events")) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing was posted")
		}
	}
	server.Refuse("events", 0)
	events.MetricsServerFailed(errors.New("taken"))
	if got := posted(t, server, 1); got[0].Reason != "FailedToStartMetricServer" {
		t.Errorf("got event %s, which was refused before", got[0].Reason)
	}
}

func testNoEventsPostNothing(t *testing.T) {
	var events *Events
	events.Starting()
	events.HealthServerFailed(errors.New("taken"))
	events.ServiceHealthFailed(metav1.NamespaceDefault, "web", errors.New("taken"))
}
