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
	"k8s.io/klog/v2"
)

// assets names a folder with kube-apiserver and etcd; with it the tests run against those.
var assets = os.Getenv("KUBEBUILDER_ASSETS")

// cluster is an API server to test against: the in-process one, or the real one.
type cluster struct {
	kubeconfig  string
	collections Collections
	server      *apiservertest.Server // nil: it is the real one
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
	return &cluster{path, collectionsOf(t, path), server}
}

func realCluster(t *testing.T) *cluster {
	t.Helper()
	path := apiservertest.StartBinaries(t, assets)
	return &cluster{path, collectionsOf(t, path), nil}
}

func collectionsOf(t *testing.T, kubeconfig string) Collections {
	t.Helper()
	collections, _, err := connect(Config{Kubeconfig: kubeconfig, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return collections
}

// create stores objects through the API.
func (c *cluster) create(t *testing.T, objects ...object) {
	t.Helper()
	for _, obj := range objects {
		var in Collection
		switch obj.(type) {
		case *corev1.Service:
			in = c.collections.Services
		case *discoveryv1.EndpointSlice:
			in = c.collections.EndpointSlices
		case *corev1.Node:
			in = c.collections.Nodes
		case *networkingv1.ServiceCIDR:
			in = c.collections.ServiceCIDRs
		default:
			t.Fatalf("no client for %T", obj)
		}
		namespace := obj.GetNamespace()
		if err := in.client.Post().NamespaceIfScoped(namespace, namespace != "").Resource(in.resource).Body(obj).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
}

// relabel sets a label of a Service through the API; an empty value removes it.
func (c *cluster) relabel(t *testing.T, name, label, value string) {
	t.Helper()
	services, svc := c.collections.Services.client, &corev1.Service{}
	if err := services.Get().Namespace("default").Resource("services").Name(name).Do(t.Context()).Into(svc); err != nil {
		t.Fatal(err)
	}
	if svc.Labels == nil {
		svc.Labels = map[string]string{}
	}
	svc.Labels[label] = value
	if value == "" {
		delete(svc.Labels, label)
	}
	if err := services.Put().Namespace("default").Resource("services").Name(name).Body(svc).Do(t.Context()).Error(); err != nil {
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
