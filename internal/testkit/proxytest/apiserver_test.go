package proxytest

import (
	"flag"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/random"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var kubernetes = flag.String("kubernetes", "", "a folder with Kubernetes' kube-apiserver and etcd, from `make kubernetes`")

// Kubernetes' own API server takes the objects of random clusters, one cluster after the other, those of the probe, and
// the smaller ones that shrinking tries.
func TestKubernetesAPIServer(t *testing.T) {
	if *kubernetes == "" {
		t.Skip("it needs Kubernetes' kube-apiserver and etcd: make test-kubernetes")
	}
	l := lab.ForTest(t)
	s, err := startAPIServer(l.Node, *kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p := &probe{}
	for seed := range uint64(10) {
		drawn, objects := listOf(random.Seeded(seed).Objects(random.Places)), []apiservertest.Object(nil)
		for _, o := range drawn {
			objects = append(objects, o.DeepCopyObject().(apiservertest.Object))
		}
		setDefaults(objects)
		objects = append(objects, p.next([]Family{IPv4, IPv6})...)
		for _, o := range objects {
			stored, err := s.Create(o)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			expectStored(t, o, stored)
		}
		for _, o := range objects {
			if service, ok := o.(*corev1.Service); ok {
				service.Status.LoadBalancer.Ingress = nil
				stored, err := s.Update(service)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				expectStored(t, service, stored)
			}
		}
		for _, o := range drawn {
			for _, smaller := range partsLeftOut(o) {
				setDefaults([]apiservertest.Object{smaller})
				if err := recreate(s, smaller); err != nil {
					t.Errorf("seed %d: smaller than %s: %v", seed, o.GetName(), err)
				}
			}
		}
		for _, o := range slices.Backward(objects) {
			if err := s.Delete(o); err != nil && !apierrors.IsNotFound(err) {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

// recreate deletes an object and creates another one of its name, as shrinking does.
func recreate(s apiServer, o apiservertest.Object) error {
	if err := s.Delete(o); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err := s.Create(o)
	return err
}

// expectStored checks what proxies read of a Service, and that the server does not drop it.
func expectStored(t *testing.T, sent, stored apiservertest.Object) {
	t.Helper()
	want, ok := sent.(*corev1.Service)
	if !ok {
		return
	}
	got := stored.(*corev1.Service)
	if diff := cmp.Diff(want.Status.LoadBalancer.Ingress, got.Status.LoadBalancer.Ingress); diff != "" {
		t.Errorf("Service %s: load balancer (-sent +stored):\n%s", want.Name, diff)
	}
	if diff := cmp.Diff(want.Spec.Ports, got.Spec.Ports); diff != "" {
		t.Errorf("Service %s: ports (-sent +stored):\n%s", want.Name, diff)
	}
}
