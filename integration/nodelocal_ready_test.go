package integration

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// TestTwoNodeLocalServers has two servers behind one address, as those of a Service are, and the API server of one of them
// does not answer.
func TestTwoNodeLocalServers(t *testing.T) {
	t.Parallel()
	l, _, kubeconfig := newOutageLab(t)
	hanging, hangingConfig := lab.APIServer(t, l.Node)
	hanging.Hang("endpointslices")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	start := func(name, kubeconfig, metrics string) *lab.Process {
		return lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--kubeconfig", kubeconfig, "--listen", "unix://"+at(name), "--metrics-bind-address", metrics)
	}
	without := start("without", hangingConfig, "127.0.0.1:10265")
	start("with", kubeconfig, "127.0.0.1:10266")
	t.Run("the one without an API server is not ready, and says why", func(t *testing.T) {
		await.Until(t, "one is ready", func() error { return pageSays(l.Node, "127.0.0.1:10266", "/readyz", http.StatusOK, "ok") })
		await.Until(t, "one is not", func() error {
			return pageSays(l.Node, "127.0.0.1:10265", "/readyz", http.StatusServiceUnavailable, "endpointslices")
		})
		without.Says(t, `waitingFor="endpointslices`)
	})
	t.Run("a client that comes to it first ends at the other one", func(t *testing.T) {
		startRelay(t, at("both"), at("without"), at("with"))
		backend := lab.Start(t, l.Node, "kube-proxy", "--node-local-source", "unix://"+at("both"), "--hostname-override", lab.NodeName)
		expectAnswerOf(t, l, "first")
		if got := backend.Output(); !strings.Contains(got, "it waits for endpointslices") {
			t.Errorf("the log of the client does not say why the first server refused:\n%s", got)
		}
	})
	t.Run("a second server refuses the socket of the first", func(t *testing.T) {
		second := lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--kubeconfig", kubeconfig, "--listen", "unix://"+at("with"))
		second.Fails(t, "another server listens there")
	})
}
