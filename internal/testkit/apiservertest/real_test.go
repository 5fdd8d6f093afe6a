package apiservertest_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

var programs = flag.String("kubernetes", "", "a folder with Kubernetes' kube-apiserver and etcd (make kubernetes), to record its answers anew")

const recordedAnswers = "testdata/kube-apiserver.txt"

// question is a request that both servers are asked. In its path VERSION is the version of the list of Services.
type question struct {
	name, method, path, body string
	// differs is why the server for tests answers otherwise; empty: it does not.
	differs string
}

const (
	services = "/api/v1/namespaces/default/services"
	aService = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"default"},"spec":{"ports":[{"port":80}]}}`
)

var questions = []question{
	{name: "create", method: "POST", path: services, body: aService},
	{name: "create what exists", method: "POST", path: services, body: aService},
	{name: "create in another namespace than the URL's", method: "POST", path: services, body: strings.Replace(aService, `"default"`, `"other"`, 1)},
	{name: "create without ports", method: "POST", path: services, body: `{"apiVersion":"v1","kind":"Service","metadata":{"name":"empty"}}`, differs: "it validates nothing"},
	{name: "create garbage", method: "POST", path: services, body: `{`},
	{name: "get", method: "GET", path: services + "/web"},
	{name: "get what is not there", method: "GET", path: services + "/none"},
	{name: "list", method: "GET", path: services + "?labelSelector=none=1"},
	{name: "list with a bad label selector", method: "GET", path: services + "?labelSelector=a,,=b"},
	{name: "list with an unknown field", method: "GET", path: services + "?fieldSelector=spec.unknown=1"},
	{name: "list from a garbled version", method: "GET", path: services + "?resourceVersion=garbage"},
	{name: "list of a version to come", method: "GET", path: services + "?resourceVersion=1000000000&resourceVersionMatch=NotOlderThan"},
	{name: "watch from a garbled version", method: "GET", path: services + "?watch=1&resourceVersion=garbage", differs: "it answers 400, as to a list"},
	{name: "watch with initial events, without a match", method: "GET", path: services + "?watch=1&sendInitialEvents=true&timeoutSeconds=1", differs: "it takes any combination of options"},
	{name: "watch from the list's version", method: "GET", path: services + "?watch=1&resourceVersion=VERSION&timeoutSeconds=1"},
	{name: "watch from a version to come", method: "GET", path: services + "?watch=1&resourceVersion=1000000000&timeoutSeconds=1"},
	{name: "replace with another version than the stored one", method: "PUT", path: services + "/web", body: strings.Replace(aService, `"name":"web"`, `"name":"web","resourceVersion":"1"`, 1)},
	{name: "replace what is not there", method: "PUT", path: services + "/none", body: strings.Replace(aService, `"web"`, `"none"`, 1), differs: "no client here creates by replacing, so it refuses a mistake"},
	{name: "a group that is not served", method: "GET", path: "/apis/example.org/v1/things"},
	{name: "delete", method: "DELETE", path: services + "/web"},
	{name: "delete what is not there", method: "DELETE", path: services + "/web"},
	{name: "a bad token", method: "GET", path: services},
}

// answer is what both servers must have alike: the HTTP status, and the kind and the reason of what is in the body.
func (q question) answer(t *testing.T, config *rest.Config, version string) string {
	t.Helper()
	config = rest.CopyConfig(config)
	if q.name == "a bad token" {
		config.BearerToken = "wrong"
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, q.method, config.Host+strings.ReplaceAll(q.path, "VERSION", version), strings.NewReader(q.body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("%s: %v", q.name, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s: %v", q.name, err)
	}
	var object struct{ Kind, Reason, Type string }
	if err := json.Unmarshal(body, &object); err != nil && len(body) > 0 && !strings.Contains(string(body), "not found") {
		return fmt.Sprintf("%d %.60q", response.StatusCode, body)
	}
	return strings.TrimRight(fmt.Sprintf("%d %s %s%s", response.StatusCode, object.Kind, object.Type, object.Reason), " ")
}

func answersOf(t *testing.T, config *rest.Config) (lines string) {
	t.Helper()
	c := client(t, config)
	list, err := c.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	version := list.ResourceVersion
	for _, q := range questions {
		if q.name == "watch from the list's version" { // the watch itself shows nothing but its end
			after, err := c.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			version = after.ResourceVersion
		}
		lines += fmt.Sprintf("%s: %s\n", q.name, q.answer(t, config, version))
	}
	return lines
}

// TestRealServer compares the server with Kubernetes' own kube-apiserver, by what that answered when it was recorded.
func TestRealServer(t *testing.T) {
	if *programs != "" {
		server := apiservertest.StartReal(t, apiservertest.RealOptions{Assets: *programs})
		await.Until(t, "there is namespace default", func() error {
			_, err := client(t, server.Config()).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
			return err
		})
		text := "# What kube-apiserver answers. Made by `make test-kubernetes`.\n" + answersOf(t, server.Config())
		if err := os.WriteFile(recordedAnswers, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		expectNothingBeforeVersionToCome(t, server.Config())
	}
	recorded, err := os.ReadFile(recordedAnswers)
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(recorded), "")
	server := apiservertest.Start(t, apiservertest.Options{})
	got := answersOf(t, server.RESTConfig())
	wanted, gotten := strings.Split(want, "\n"), strings.Split(got, "\n")
	if len(wanted) != len(gotten) {
		t.Fatalf("%d answers are recorded, and there are %d", len(wanted), len(gotten))
	}
	for i, q := range questions {
		switch diff := cmp.Diff(wanted[i], gotten[i]); {
		case diff != "" && q.differs == "":
			t.Errorf("(-kube-apiserver +this server):\n%s", diff)
		case diff == "" && q.differs != "":
			t.Errorf("%s: %s, and yet the answers are the same", q.name, q.differs)
		}
	}
	expectNothingBeforeVersionToCome(t, server.RESTConfig())
}

// expectNothingBeforeVersionToCome checks that a watch from a version that the server has not reached yet hears of nothing
// before it. So a client of a server that lost its storage hears nothing for long.
func expectNothingBeforeVersionToCome(t *testing.T, config *rest.Config) {
	t.Helper()
	services := client(t, config).CoreV1().Services("default")
	now, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "now"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	heard := map[string]chan string{}
	for name, version := range map[string]string{"now": now.ResourceVersion, "to come": "1000000000"} {
		watch, err := services.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Stop()
		heard[name] = make(chan string, 10)
		go func() {
			for event := range watch.ResultChan() {
				heard[name] <- string(event.Type)
			}
		}()
	}
	if err := services.Delete(t.Context(), "now", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-heard["now"]:
	case <-time.After(await.Patience):
		t.Fatal("a watch from now hears nothing; this test shows nothing")
	}
	select {
	case event := <-heard["to come"]:
		t.Errorf("a watch from a version to come hears %s", event)
	case <-time.After(time.Second):
	}
}
