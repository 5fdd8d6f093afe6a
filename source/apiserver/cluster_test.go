package apiserver

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// assets names a folder with kube-apiserver and etcd; with it the tests run against those.
var assets = os.Getenv("KUBEBUILDER_ASSETS")

// cluster is an API server to test against: the in-process one, or the real one.
type cluster struct {
	kubeconfig string
	client     kubernetes.Interface
	server     *apiservertest.Server // nil: it is the real one
}

// forEachServer runs a test against a current and an older in-process server, or the real one, all
// at the same time: most of what these tests do is wait for a back-off.
func forEachServer(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	t.Parallel()
	forEachServerInTurn(t, func(t *testing.T, c *cluster) {
		t.Parallel()
		test(t, c)
	})
}

// forEachServerInTurn is for tests that look at the whole process.
func forEachServerInTurn(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	if assets != "" {
		t.Run("kube-apiserver", func(t *testing.T) { test(t, realCluster(t)) })
		return
	}
	t.Run("streaming lists", func(t *testing.T) { test(t, inProcess(t, apiservertest.Options{})) })
	t.Run("plain lists", func(t *testing.T) {
		test(t, inProcess(t, apiservertest.Options{WithoutWatchList: true}))
	})
}

// forEachObedientServer is for tests that make the server do what a real one does not do on
// command.
func forEachObedientServer(t *testing.T, needs string, test func(t *testing.T, c *cluster)) {
	t.Helper()
	if assets != "" {
		t.Skipf("a real API server cannot be told to do this: %s", needs)
	}
	forEachServer(t, test)
}

func inProcess(t *testing.T, options apiservertest.Options) *cluster {
	t.Helper()
	server := apiservertest.Start(t, options)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := server.WriteKubeconfig(path); err != nil {
		t.Fatal(err)
	}
	return &cluster{path, clientFor(t, path), server}
}

func realCluster(t *testing.T) *cluster {
	t.Helper()
	path := apiservertest.StartBinaries(t, assets)
	return &cluster{path, clientFor(t, path), nil}
}

func clientFor(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// create stores objects through the API.
func (c *cluster) create(t *testing.T, objects ...any) {
	t.Helper()
	for _, obj := range objects {
		var err error
		switch obj := obj.(type) {
		case *corev1.Service:
			_, err = c.client.CoreV1().Services(obj.Namespace).Create(t.Context(), obj, metav1.CreateOptions{})
		case *discoveryv1.EndpointSlice:
			_, err = c.client.DiscoveryV1().EndpointSlices(obj.Namespace).Create(t.Context(), obj, metav1.CreateOptions{})
		case *corev1.Node:
			_, err = c.client.CoreV1().Nodes().Create(t.Context(), obj, metav1.CreateOptions{})
		case *networkingv1.ServiceCIDR:
			_, err = c.client.NetworkingV1().ServiceCIDRs().Create(t.Context(), obj, metav1.CreateOptions{})
		default:
			t.Fatalf("no client for %T", obj)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// relabel sets a label of a Service through the API; an empty value removes it.
func (c *cluster) relabel(t *testing.T, name, label, value string) {
	t.Helper()
	services := c.client.CoreV1().Services("default")
	svc, err := services.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if svc.Labels == nil {
		svc.Labels = map[string]string{}
	}
	svc.Labels[label] = value
	if value == "" {
		delete(svc.Labels, label)
	}
	if _, err := services.Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// change writes at the in-process server itself, which works while clients cannot reach it.
func (c *cluster) change(t *testing.T, act func(apiservertest.Object) (apiservertest.Object, error), obj apiservertest.Object) {
	t.Helper()
	if _, err := act(obj); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) delete(t *testing.T, obj apiservertest.Object) {
	t.Helper()
	if err := c.server.Delete(obj); err != nil {
		t.Fatal(err)
	}
}

// run starts a Source for the cluster and stops it when the test ends, checking how it returns.
func (c *cluster) run(t *testing.T, adjust ...func(*Source)) *recorder {
	t.Helper()
	return c.runLogged(t, &logLines{}, adjust...)
}

// runLogged is run with a log to look into.
func (c *cluster) runLogged(t *testing.T, logs *logLines, adjust ...func(*Source)) *recorder {
	t.Helper()
	source, err := New(Config{Kubeconfig: c.kubeconfig, NodeName: thisNode, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range adjust {
		f(source)
	}
	sink := newRecorder()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logs.logger(0)))
	returned := make(chan error, 1)
	go func() { returned <- source.Run(ctx, sink) }()
	t.Cleanup(func() {
		cancel()
		if err := <-returned; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
		if t.Failed() {
			t.Logf("the Source's log:\n%s", logs)
		}
	})
	return sink
}

// proxyName makes a Source that of a proxy with a name.
func proxyName(name string) func(*Source) {
	return func(s *Source) { s.config.ServiceProxyName = name }
}
