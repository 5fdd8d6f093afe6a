package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	configs "github.com/nftproxy/nftproxy/internal/testkit/corpus"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
)

// kubeadmConfig returns a copy of the configuration that kubeadm generates.
func kubeadmConfig(t *testing.T) (path string) {
	t.Helper()
	c := configs.Get(t, "kubeadm-v1.37-as-generated")
	path = filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(path, []byte(c.File(configs.Input)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// compileFor compiles the case as a proxy does with a configuration file.
func compileFor(t *testing.T, g flows.Case, path string) []*nft.Table {
	t.Helper()
	file, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	compilerConfig, err := config.Compiler(file.Config)
	if err != nil {
		t.Fatal(err)
	}
	objects := g.Objects(t)
	tables, err := flows.Compile(objects, tracker.Options{NodeName: lab.NodeName}, compilerConfig)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// With kubeadm's file as it is (and manifests in place of its API server) the rules get into
// the kernel. When the file changes, the process ends.
func testKubeProxyRunsWithKubeadmsConfigurationUntilItChanges(t *testing.T) {
	g := flows.FindCase(t, "cluster-ip-spreads-over-all-endpoints")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	path := kubeadmConfig(t)
	p := lab.Start(t, l.Node, "kube-proxy", "--config="+path, "--hostname-override="+lab.NodeName, "--manifests", g.ManifestsDir(t), "--masquerade-all")
	want := compileFor(t, g, path)
	await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, want) })

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(data, "# changed\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil || p.Cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("after the change: %v, want exit code 1", err)
	}
	for _, want := range []string{"configuration " + path + " has changed", "--masquerade-all: ignored, because --config is given", "mode: running as nftables"} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	if err := lab.TableError(c, want); err != nil {
		t.Errorf("the rules did not stay: %v", err)
	}
}

func testKubeProxyConvertsConfigurations(t *testing.T) {
	l := lab.ForTest(t)
	dir, nothingSet := t.TempDir(), configs.Get(t, "nothing-set")
	for _, name := range []string{"kubeadm-v1.37-as-generated", "mode-ipvs-keeps-its-settings", "v1alpha2-every-field-set"} {
		c := configs.Get(t, name)
		to := filepath.Join(dir, name)
		if err := lab.Start(t, l.Node, "kube-proxy", "--config", c.WriteInput(t), "--write-config-to", to).Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		if c.Shown(t, nothingSet.File("v1alpha2.yaml"), string(got)) != c.File("v1alpha2.yaml") {
			t.Errorf("%s was converted to:\n%s", name, got)
		}
	}
}

// kubeadm's ConfigMap and command line, and an API server: what a node of a cluster made with kubeadm
// has, on which only the program was exchanged.
func testKubeProxyTakesThePlaceOfKubeadmsKubeProxy(t *testing.T) {
	f := newWithServer(t)
	configuration := kubeadmConfig(t)
	f.want = compileFor(t, f.g, configuration)
	script := fmt.Sprintf(`
		mount -t tmpfs tmpfs /var/lib
		mkdir /var/lib/kube-proxy
		cp %s /var/lib/kube-proxy/config.conf
		cp %s /var/lib/kube-proxy/kubeconfig.conf`, configuration, f.kubeconfig)
	p := lab.StartCommand(t, f.lab.Node, inMounts(script, lab.Binary(t, "kube-proxy"), "--config=/var/lib/kube-proxy/config.conf", "--hostname-override="+lab.NodeName))
	f.applied(t)
	sendFlows(t, f.lab, f.g)
	f.hasEvent(t, "Starting")
	for _, url := range []string{"http://127.0.0.1:10256/healthz", "http://127.0.0.1:10249/metrics"} {
		if _, err := getFrom(f.lab.Node, url); err != nil {
			t.Error(err)
		}
	}
	if errors := p.Errors(); len(errors) > 0 {
		t.Errorf("error lines %q, want none", errors)
	}

	inside := filepath.Join("/proc", fmt.Sprint(p.Cmd.Process.Pid), "root/var/lib/kube-proxy/config.conf")
	data, err := os.ReadFile(inside)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(inside, append(data, "# changed\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Fails(t, "configuration /var/lib/kube-proxy/config.conf has changed: exiting, to be restarted with it")
	f.stays(t)
}

func TestFeatureGates(t *testing.T) {
	t.Parallel()
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
		socket := "unix://" + filepath.Join(private.Dir(t), "server")
		lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--manifests", g.ManifestsDir(t), "--listen", socket).Says(t, "Serving the node-local API")
		lab.Start(t, l.Node, "kube-proxy", "--feature-gates=AllowServiceExternalIPs=false", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
			"--hostname-override="+lab.NodeName, "--node-local-source", socket).Says(t, "Programmed all Services")
		sendFlows(t, l, g)
	})
	t.Run("behind a server with the gate", func(t *testing.T) {
		l := lab.ForTest(t)
		c := lab.Conn(t, l.Node)
		socket := "unix://" + filepath.Join(private.Dir(t), "server")
		lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--manifests", g.ManifestsDir(t), "--listen", socket, "--feature-gates=AllowServiceExternalIPs=false").Says(t, "Serving the node-local API")
		lab.Start(t, l.Node, "kube-proxy", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48", "--hostname-override="+lab.NodeName, "--node-local-source", socket)
		await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, g.Compile(t)) })
	})
	t.Run("in ruledump", func(t *testing.T) {
		p := lab.Start(t, lab.ForTest(t).Node, "ruledump", "compile", "--manifests", g.ManifestsDir(t), "--node", lab.NodeName, "--config", g.ConfigFile(t))
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
		if p.Output() != flows.PrintTables(g.Compile(t)) {
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
