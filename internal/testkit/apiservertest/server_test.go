package apiservertest_test

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func service(name, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP},
	}
}

func TestServer(t *testing.T) {
	t.Run("its kubeconfig works", testKubeconfigWorks)
	t.Run("errors are those of Kubernetes", testErrorsAreThoseOfKubernetes)
	t.Run("a watch follows its selection", testWatchFollowsItsSelection)
	t.Run("a watch from a forgotten version expires", testWatchFromForgottenVersionExpires)
	t.Run("initial events end with a bookmark", testInitialEventsEndWithABookmark)
	t.Run("answers a hanging resource later", testHangingResourceIsAnsweredLater)
}

func testKubeconfigWorks(t *testing.T) {
	server := apiservertest.Start(t, apiservertest.Options{})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := server.WriteKubeconfig(path); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	services := client(t, config).CoreV1().Services("default")
	if _, err := services.Create(t.Context(), service("web", "10.96.0.1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := services.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || got.Spec.ClusterIP != "10.96.0.1" || got.ResourceVersion == "" {
		t.Errorf("got %v, %v", got, err)
	}

	config.BearerToken = "wrong"
	if _, err := client(t, config).CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a wrong token gives %v, want unauthorized", err)
	}
}

func testErrorsAreThoseOfKubernetes(t *testing.T) {
	server := apiservertest.Start(t, apiservertest.Options{})
	services := client(t, server.RESTConfig()).CoreV1().Services("default")
	stored, err := services.Create(t.Context(), service("web", ""), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list := func(options metav1.ListOptions) error {
		_, err := services.List(t.Context(), options)
		return err
	}
	_, again := services.Create(t.Context(), service("web", ""), metav1.CreateOptions{})
	_, first := services.Update(t.Context(), stored, metav1.UpdateOptions{})
	_, outdated := services.Update(t.Context(), stored, metav1.UpdateOptions{})
	if first != nil {
		t.Errorf("updating what was just created: %v", first)
	}
	for what, test := range map[string]struct {
		err error
		is  func(error) bool
	}{
		"creating twice":        {again, apierrors.IsAlreadyExists},
		"an outdated update":    {outdated, apierrors.IsConflict},
		"deleting what is not":  {services.Delete(t.Context(), "none", metav1.DeleteOptions{}), apierrors.IsNotFound},
		"an unknown field":      {list(metav1.ListOptions{FieldSelector: "spec.color=red"}), apierrors.IsBadRequest},
		"a version in future":   {list(metav1.ListOptions{ResourceVersion: "999"}), apierrors.IsTimeout},
		"no number for version": {list(metav1.ListOptions{ResourceVersion: "x"}), apierrors.IsBadRequest},
	} {
		if !test.is(test.err) {
			t.Errorf("%s gives %v", what, test.err)
		}
	}
	if _, err := server.Create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "homeless"}}); err == nil {
		t.Error("a Service without a namespace was stored")
	}
	for status, is := range map[int]func(error) bool{
		http.StatusNotFound: apierrors.IsNotFound, http.StatusForbidden: apierrors.IsForbidden,
		http.StatusInternalServerError: apierrors.IsInternalError,
	} {
		server.Refuse("services", status)
		if err := list(metav1.ListOptions{}); !is(err) {
			t.Errorf("refused with %d, a list gives %v", status, err)
		}
	}
}

// A watch sees its own selection: what stops matching is deleted, what starts matching is added.
func testWatchFollowsItsSelection(t *testing.T) {
	server := apiservertest.Start(t, apiservertest.Options{})
	services := client(t, server.RESTConfig()).CoreV1().Services("")
	w, err := services.Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "spec.clusterIP!=None", ResourceVersion: "1", AllowWatchBookmarks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, step := range []func() (apiservertest.Object, error){
		func() (apiservertest.Object, error) { return server.Create(service("web", "None")) },
		func() (apiservertest.Object, error) { return server.Update(service("web", "10.96.0.1")) },
		func() (apiservertest.Object, error) { return server.Update(service("web", "10.96.0.2")) },
		func() (apiservertest.Object, error) { return server.Update(service("web", "None")) },
	} {
		if _, err := step(); err != nil {
			t.Fatal(err)
		}
	}
	server.SendBookmarks()
	server.EndWatches()
	expect(t, w, "ADDED 3", "MODIFIED 4", "DELETED 5", "BOOKMARK 5", "end")
}

func testWatchFromForgottenVersionExpires(t *testing.T) {
	server := apiservertest.Start(t, apiservertest.Options{})
	services := client(t, server.RESTConfig()).CoreV1().Services("")
	if _, err := server.Create(service("web", "")); err != nil {
		t.Fatal(err)
	}
	server.Compact()
	w, err := services.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if event, _ := next(t, w); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		t.Errorf("got %v, want an expired version", event)
	}
	expect(t, w, "end")
}

func testInitialEventsEndWithABookmark(t *testing.T) {
	initial := true
	options := metav1.ListOptions{
		SendInitialEvents: &initial, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}
	server := apiservertest.Start(t, apiservertest.Options{})
	if _, err := server.Create(service("web", "")); err != nil {
		t.Fatal(err)
	}
	w, err := client(t, server.RESTConfig()).CoreV1().Services("").Watch(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	expect(t, w, "ADDED 2", "BOOKMARK 2 initial-events-end")

	old := apiservertest.Start(t, apiservertest.Options{WithoutWatchList: true})
	if _, err := client(t, old.RESTConfig()).CoreV1().Services("").Watch(context.Background(), options); !apierrors.IsInvalid(err) {
		t.Errorf("a server without streaming lists gives %v, want invalid", err)
	}
}

func expect(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	for _, text := range want {
		got := "end"
		if event, ok := next(t, w); ok {
			obj := event.Object.(*corev1.Service)
			got = string(event.Type) + " " + obj.ResourceVersion
			if obj.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
				got += " initial-events-end"
			}
		}
		if got != text {
			t.Fatalf("got event %q, want %q", got, text)
		}
	}
}

// next returns the next event; ok is false at the end of the watch.
func next(t *testing.T, w watch.Interface) (event watch.Event, ok bool) {
	t.Helper()
	select {
	case event, ok = <-w.ResultChan():
	case <-time.After(await.Patience):
		t.Fatal("nothing comes")
	}
	return event, ok
}

func testHangingResourceIsAnsweredLater(t *testing.T) {
	server := apiservertest.Start(t, apiservertest.Options{})
	core := client(t, server.RESTConfig()).CoreV1()
	server.Hang("services")
	if _, err := core.Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("another resource gives %v", err)
	}
	list := func(ctx context.Context) <-chan error {
		asked, answered := len(server.Requests("list", "services")), make(chan error, 1)
		go func() {
			_, err := core.Services("").List(ctx, metav1.ListOptions{})
			answered <- err
		}()
		await.True(t, "the server has the request", func() bool { return len(server.Requests("list", "services")) > asked })
		return answered
	}
	impatient, cancel := context.WithCancel(t.Context())
	answered := list(impatient)
	select {
	case err := <-answered:
		t.Fatalf("a list gives %v, want no answer", err)
	case <-time.After(100 * time.Millisecond):
	}
	cancel()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("a list that the client gave up gives %v", err)
	}
	patient, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	answered = list(patient)
	server.Answer("services")
	if err := <-answered; err != nil {
		t.Errorf("who waited is answered with %v", err)
	}
}
