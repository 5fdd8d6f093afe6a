package lab

import (
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
)

// APIServer starts an API server without objects in the host, and returns the path of a kubeconfig for it. Both
// end with the test.
func APIServer(t testing.TB, h *Host) (server *apiservertest.Server, kubeconfig string) {
	t.Helper()
	if err := h.Do(func() error {
		server = apiservertest.Start(t, apiservertest.Options{})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := server.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	return server, kubeconfig
}

// Upload creates the objects of a file or directory of manifests, and returns them.
func Upload(t testing.TB, server *apiservertest.Server, path string) manifests.Objects {
	t.Helper()
	objects, err := manifests.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects.Nodes {
		Create(t, server, o)
	}
	for _, o := range objects.ServiceCIDRs {
		Create(t, server, o)
	}
	for _, o := range objects.Services {
		Create(t, server, o)
	}
	for _, o := range objects.EndpointSlices {
		Create(t, server, o)
	}
	return objects
}

// Create creates objects, which must not exist.
func Create(t testing.TB, server *apiservertest.Server, objects ...apiservertest.Object) {
	t.Helper()
	for _, o := range objects {
		if _, err := server.Create(o); err != nil {
			t.Fatal(err)
		}
	}
}

// Update replaces objects, which must exist.
func Update(t testing.TB, server *apiservertest.Server, objects ...apiservertest.Object) {
	t.Helper()
	for _, o := range objects {
		if _, err := server.Update(o); err != nil {
			t.Fatal(err)
		}
	}
}

// Delete deletes objects, which must exist.
func Delete(t testing.TB, server *apiservertest.Server, objects ...apiservertest.Object) {
	t.Helper()
	for _, o := range objects {
		if err := server.Delete(o); err != nil {
			t.Fatal(err)
		}
	}
}
