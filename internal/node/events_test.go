package node

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
)

// posted waits for n events at the API server and returns them.
func posted(t *testing.T, server *apiservertest.Server, n int) []eventsv1.Event {
	t.Helper()
	client, err := eventsclient.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		list, err := client.Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil {
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
	t.Run("repeated errors are for debugging", testRepeatedErrorsAreForDebugging)
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
	events.Recorder().Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: metav1.NamespaceDefault, Name: "web"}, nil,
		corev1.EventTypeWarning, "FailedToStartServiceHealthcheck", "Listen", "port taken")

	type event struct{ Kind, Name, Type, Reason, Action, Note, By string }
	got := map[string]event{}
	for _, e := range posted(t, server, 4) {
		got[e.Reason] = event{e.Regarding.Kind, e.Regarding.Name, e.Type, e.Reason, e.Action, e.Note, e.ReportingController}
		if e.EventTime.IsZero() || !strings.HasPrefix(e.ReportingInstance, "kube-proxy-") {
			t.Errorf("%s: event time %v, reporting instance %q", e.Reason, e.EventTime, e.ReportingInstance)
		}
	}
	want := map[string]event{
		"Starting":                        {"Node", thisNode, "Normal", "Starting", "StartKubeProxy", "", "kube-proxy"},
		"FailedToStartProxierHealthcheck": {"Node", thisNode, "Warning", "FailedToStartProxierHealthcheck", "StartKubeProxy", "listen tcp :10256: 100% taken", "kube-proxy"},
		"FailedToStartMetricServer":       {"Node", thisNode, "Warning", "FailedToStartMetricServer", "StartKubeProxy", "listen tcp :10249: taken", "kube-proxy"},
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
	if events.Recorder() != nil {
		t.Error("there is a recorder")
	}
}

func testRepeatedErrorsAreForDebugging(t *testing.T) {
	for verbosity, want := range map[int][]string{
		0: {"E refused", "E gone", "E refused", "E nothing"},
		2: {"E refused", "I refused", "I refused", "E gone", "E refused", "E nothing", "I stops"},
	} {
		var lines []string
		ctx, stop := context.WithCancel(t.Context())
		logger := withoutRepeats(ctx, funcr.New(func(_, args string) {
			kind := "I"
			if !strings.Contains(args, `"level"`) {
				kind = "E"
			}
			for _, text := range []string{"refused", "gone", "stops", "nothing"} {
				if strings.Contains(args, text) {
					lines = append(lines, kind+" "+text)
				}
			}
		}, funcr.Options{Verbosity: verbosity}))
		for range 3 {
			logger.Error(errors.New("refused"), "Unable to write")
		}
		logger.Error(errors.New("gone"), "Unable to write")
		logger.Error(errors.New("refused"), "Unable to write")
		logger.Error(nil, "nothing")
		stop()
		logger.Error(errors.New("stops"), "Unable to write")
		if diff := cmp.Diff(want, lines); diff != "" {
			t.Errorf("at -v %d (-want +got):\n%s", verbosity, diff)
		}
	}
	withoutRepeats(t.Context(), klog.Logger{}).Error(nil, "to nobody")
}
