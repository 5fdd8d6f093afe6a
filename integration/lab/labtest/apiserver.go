package labtest

import (
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/source/apiserver/apiservertest"
)

// APIServer starts an API server without objects in the host, and returns the path of a kubeconfig for it. Both
// end with the test.
func APIServer(t testing.TB, h *lab.Host) (server *apiservertest.Server, kubeconfig string) {
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
