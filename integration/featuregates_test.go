package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

func TestFeatureGates(t *testing.T) {
	t.Run("external IPs stay out with the gate off", testExternalIPsStayOutWithTheGateOff)
	t.Run("WatchListClient", testWatchListClient)
}

// With the gate off no external IP gets into the kernel, and ruledump says so beforehand.
func testExternalIPsStayOutWithTheGateOff(t *testing.T) {
	g := flows.FindCase(t, "external-ips-are-left-out-with-the-feature-gate-off")
	t.Run("from the file", func(t *testing.T) {
		l := lab.ForTest(t)
		c := lab.Conn(t, l.Node)
		lab.Start(t, l.Node, "kube-proxy", "--config", g.ConfigFile(t), "--hostname-override="+lab.NodeName, "--manifests", g.ManifestsDir(t))
		await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, g.Compile(t)) })
		sendFlows(t, l, g)
	})
	t.Run("from the flag", func(t *testing.T) {
		l := lab.ForTest(t)
		c := lab.Conn(t, l.Node)
		lab.Start(t, l.Node, "kube-proxy", "--feature-gates=AllowServiceExternalIPs=false", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
			"--hostname-override="+lab.NodeName, "--manifests", g.ManifestsDir(t))
		await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, g.Compile(t)) })
	})
	t.Run("behind a server without the gate", func(t *testing.T) {
		l := lab.ForTest(t)
		socket := "unix://" + filepath.Join(t.TempDir(), "server")
		lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--manifests", g.ManifestsDir(t), "--listen", socket).Says(t, "Serving the node-local API")
		lab.Start(t, l.Node, "kube-proxy", "--feature-gates=AllowServiceExternalIPs=false", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
			"--hostname-override="+lab.NodeName, "--node-local-source", socket).Says(t, "Programmed all Services")
		sendFlows(t, l, g)
	})
	t.Run("behind a server with the gate", func(t *testing.T) {
		l := lab.ForTest(t)
		c := lab.Conn(t, l.Node)
		socket := "unix://" + filepath.Join(t.TempDir(), "server")
		lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--manifests", g.ManifestsDir(t), "--listen", socket, "--feature-gates=AllowServiceExternalIPs=false").Says(t, "Serving the node-local API")
		lab.Start(t, l.Node, "kube-proxy", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48", "--hostname-override="+lab.NodeName, "--node-local-source", socket)
		await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, g.Compile(t)) })
	})
	t.Run("in ruledump", func(t *testing.T) {
		p := lab.Start(t, lab.ForTest(t).Node, "ruledump", "compile", "--manifests", g.ManifestsDir(t), "--node", lab.NodeName, "--config", g.ConfigFile(t))
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
		if p.Output() != printTables(g.Compile(t)) {
			t.Errorf("ruledump prints\n%s", p.Output())
		}
	})
}

// The gate WatchListClient decides how the command asks the API server for what there is.
func testWatchListClient(t *testing.T) {
	g := flows.FindCase(t, "cluster-ip-spreads-over-all-endpoints")
	for gate, want := range map[string]struct{ lists, streams bool }{"false": {lists: true}, "true": {streams: true}} {
		t.Run(gate, func(t *testing.T) {
			l := lab.ForTest(t)
			c := lab.Conn(t, l.Node)
			server, kubeconfig := lab.APIServer(t, l.Node)
			lab.Upload(t, server, g.ManifestsDir(t))
			lab.Start(t, l.Node, "kube-proxy", "--kubeconfig", kubeconfig, "--hostname-override", lab.NodeName,
				"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--feature-gates=WatchListClient="+gate)
			await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, g.Compile(t)) })
			streams := false
			for _, r := range server.Requests("watch", "services") {
				streams = streams || strings.EqualFold(r.Query.Get("sendInitialEvents"), "true")
			}
			if lists := len(server.Requests("list", "services")) > 0; lists != want.lists || streams != want.streams {
				t.Errorf("Services were listed: %v, streamed: %v; want %v and %v", lists, streams, want.lists, want.streams)
			}
		})
	}
}
