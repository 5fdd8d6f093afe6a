package proxytest

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiServer has the objects of a node.
type apiServer interface {
	Create(apiservertest.Object) (apiservertest.Object, error)
	Update(apiservertest.Object) (apiservertest.Object, error)
	Delete(apiservertest.Object) error
	WriteKubeconfig(path string) error
	Close()
}

// startAPIServer starts an API server on a host: Kubernetes' own from a folder of programs, or that of apiservertest
// if there is none.
func startAPIServer(h *lab.Host, programs string) (s apiServer, err error) {
	if programs != "" {
		return startKubernetes(h, programs)
	}
	err = h.Do(func() error {
		s, err = apiservertest.New(apiservertest.Options{})
		return err
	})
	return s, err
}

// kubernetesServer is Kubernetes' own kube-apiserver with an etcd.
type kubernetesServer struct {
	*apiservertest.Real
	owner *owner
}

// Close ends the programs.
func (s kubernetesServer) Close() { s.owner.close() }

// startKubernetes starts a kube-apiserver that takes the addresses of the corpus. Its own range is another one, because the
// first address of that belongs to Service default/kubernetes.
func startKubernetes(h *lab.Host, programs string) (s apiServer, err error) {
	o := &owner{}
	defer func() {
		if failure := recover(); failure != nil {
			o.close()
			err = fmt.Errorf("starting kube-apiserver: %v", failure)
		}
	}()
	server := apiservertest.StartReal(o, apiservertest.RealOptions{
		Assets: programs, Do: h.Do, Dial: h.DialContext, ServiceRange: "10.97.0.0/16,fd00:10:97::/112",
	})
	_, err = server.Create(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "corpus"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:10:96::/112"}},
	})
	if err != nil {
		o.close()
		return nil, err
	}
	return kubernetesServer{server, o}, nil
}

// owner lets a program start what was made for tests. What would fail a test is a panic.
type owner struct {
	testing.TB
	cleanups []func()
}

func (o *owner) Helper()                           {}
func (o *owner) Cleanup(fn func())                 { o.cleanups = append(o.cleanups, fn) }
func (o *owner) Failed() bool                      { return false }
func (o *owner) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (o *owner) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (o *owner) TempDir() string {
	dir, err := os.MkdirTemp("", "proxytest-apiserver")
	if err != nil {
		o.Fatal(err)
	}
	o.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// close runs the cleanups, the last one first.
func (o *owner) close() {
	for _, fn := range slices.Backward(o.cleanups) {
		fn()
	}
	o.cleanups = nil
}
