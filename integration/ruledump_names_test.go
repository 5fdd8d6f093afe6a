package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	corev1 "k8s.io/api/core/v1"
)

// uploadPods uploads the example's objects, with a pod for each endpoint of shop/web, of which 10.244.2.6 is not ready.
func uploadPods(t *testing.T, server *apiservertest.Server) *manifests.Objects {
	t.Helper()
	objects := lab.Upload(t, server, exampleManifests)
	for _, slice := range objects.EndpointSlices {
		if slice.Name != "web-1" {
			continue
		}
		for i := range slice.Endpoints {
			e, ready := &slice.Endpoints[i], slice.Endpoints[i].Addresses[0] != "10.244.2.6"
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}
			e.Conditions.Ready = &ready
		}
		lab.Update(t, server, slice)
	}
	return &objects
}

// The kernel's rules have addresses alone; names come from EndpointSlices beside them.
func TestRuledumpNames(t *testing.T) {
	t.Parallel()
	x := newTalks(t)
	server, kubeconfig := lab.APIServer(t, x.Node)
	rules, err := ruledump.FromObjects(ruledump.Cluster, uploadPods(t, server), ruledump.Compilation{Node: "node-1", Config: exampleConfig})
	if err != nil {
		t.Fatal(err)
	}
	replace(t, x.conn, rules.Tables)
	lab.Nft(t, x.HostOf(netip.MustParseAddr("10.244.1.6")), "table ip t { chain c { type filter hook input priority 0; policy drop; }; }", "-f", "-")
	answered, unanswered := x.tries(t, 12)

	t.Run("services has pods, endpoints that are not ready, and connections of each endpoint", func(t *testing.T) {
		text := runRuledump(t, x.Node, "services", "192.0.2.10:80", "-o=wide", "--kubeconfig", kubeconfig)
		for _, want := range []string{
			fmt.Sprintf("10.244.1.5:8080=shop/web-0@node-1 (%d active, 0 unanswered)", answered),
			fmt.Sprintf("10.244.1.6:8080=shop/web-1@node-1 (0 active, %d unanswered)", unanswered),
		} {
			if !strings.Contains(text, want) || answered == 0 || unanswered == 0 {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		var services verb.Services
		if err := json.Unmarshal([]byte(runRuledump(t, x.Node, "services", "shop/web", "-o=json", "--kubeconfig", kubeconfig)), &services); err != nil {
			t.Fatal(err)
		}
		for _, f := range services.Frontends {
			runRuledump(t, x.Node, "explain", "--from=10.244.1.7", "--to", f.Address)
			if !strings.HasSuffix(f.Address, "/TCP") || f.Endpoints[0].Pod == "" {
				t.Errorf("%+v", f)
			}
		}
	})
	t.Run("an endpoint that is not ready has its name", func(t *testing.T) {
		text := runRuledump(t, x.Node, "services", "10.96.0.10:80", "-o=wide", "--kubeconfig", kubeconfig)
		if want := "not ready: 10.244.2.6:8080=shop/web-2@node-2"; !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	})
	t.Run("connections and explain name clients and endpoints, and take the names' cells", func(t *testing.T) {
		text := runRuledump(t, x.Node, "connections", "shop/web", "--kubeconfig", kubeconfig)
		cell := "10.244.1.6:8080=shop/web-1@node-1"
		if !strings.Contains(text, "  "+cell+"  ") {
			t.Errorf("no %q in\n%s", cell, text)
		}
		if sums := runRuledump(t, x.Node, "connections", cell, "--by=endpoint", "--kubeconfig", kubeconfig); !strings.Contains(sums, cell) || strings.Contains(sums, "web-0") {
			t.Error(sums)
		}
		text = runRuledump(t, x.Node, "explain", "--from=10.244.1.5=shop/web-0@node-1", "--to=192.0.2.10:80", "--kubeconfig", kubeconfig)
		for _, want := range []string{"\n10.244.1.5=shop/web-0@node-1\n", "\n10.244.1.6=shop/web-1@node-1\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	})
	t.Run("a dump has names too", func(t *testing.T) {
		file := t.TempDir() + "/dump.json"
		if err := os.WriteFile(file, []byte(runRuledump(t, x.Node, "live", "-o=json")), 0o600); err != nil {
			t.Fatal(err)
		}
		if text := runRuledump(t, x.Node, "services", "--dump", file, "-o=wide", "--kubeconfig", kubeconfig); !strings.Contains(text, "=shop/web-1@node-1") || strings.Contains(text, "active") {
			t.Error(text)
		}
	})
	t.Run("a cluster that does not answer fails no command", func(t *testing.T) {
		p := lab.Start(t, x.Node, "ruledump", "services", "shop/web", "-o=wide", "--names")
		if err := p.Wait(); err != nil || !strings.Contains(p.Output(), "the names of pods are not known: no kubeconfig given") || !strings.Contains(p.Output(), "10.244.1.5:8080 (") {
			t.Errorf("%v\n%s", err, p.Output())
		}
	})
	t.Run("--names asks the running proxy for its kubeconfig", func(t *testing.T) {
		serveConfigz(t, x.Node, kubeconfig)
		if text := runRuledump(t, x.Node, "services", "shop/web", "-o=wide", "--names"); !strings.Contains(text, "=shop/web-1@node-1") {
			t.Error(text)
		}
	})
}

// serveConfigz answers for a running proxy, whose access to the API server is a kubeconfig.
func serveConfigz(t *testing.T, h *lab.Host, kubeconfig string) {
	t.Helper()
	text := fmt.Sprintf(`{"kubeproxy.config.k8s.io": {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables", "hostnameOverride": "node-1", "clientConnection": {"kubeconfig": %q}}}`, kubeconfig)
	var listener net.Listener
	if err := h.Do(func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:10249")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	served := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })}
	t.Cleanup(func() { served.Close() })
	go func() { _ = served.Serve(listener) }()
}

// The settings of kube-proxy's file say the Node's name and how to reach the cluster, so the Node's own address is known.
func TestPreflightReadsTheFile(t *testing.T) {
	t.Parallel()
	l := lab.ForTest(t)
	server, kubeconfig := lab.APIServer(t, l.Node)
	lab.Upload(t, server, exampleManifests)
	lab.Nft(t, l.Node, "table ip nat { chain KUBE-SERVICES { }; chain KUBE-MARK-MASQ { }; }\ntable ip filter { chain KUBE-FIREWALL { }; }\n", "-f", "-")
	file := filepath.Join(t.TempDir(), "config.conf")
	look := func(more string) verb.Preflight {
		text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\nclusterCIDR: 10.244.0.0/16\n" + more
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := lab.StartCommand(t, l.Node, exec.Command(lab.Binary(t, "ruledump"), "preflight", "-o=json", "--from-config", file))
		_ = p.Wait() // the status says that there are findings
		var answer verb.Preflight
		if err := json.Unmarshal([]byte(p.Output()), &answer); err != nil {
			t.Fatalf("%v\n%s", err, p.Output())
		}
		return answer
	}
	named := look(fmt.Sprintf("hostnameOverride: Node-1\nclientConnection: {kubeconfig: %q}\n", kubeconfig))
	text := verb.TextOf(&named, "text")
	if named.Node != "node-1" || strings.Contains(text, "192.168.0.1,") || strings.Contains(text, "Services were not looked at") {
		t.Errorf("of %s:\n%s", named.Node, text)
	}
	if !strings.Contains(text, "node ports answer now on 127.0.0.1") || !strings.Contains(text, "chains of the kubelet stay: KUBE-FIREWALL") {
		t.Errorf("no finding about node ports, or about KUBE-FIREWALL:\n%s", text)
	}
	away := look("hostnameOverride: node-1\nclientConnection: {kubeconfig: /nowhere/kubeconfig}\n")
	if text := verb.TextOf(&away, "text"); !strings.Contains(text, "the cluster was not looked at: clientConnection.kubeconfig: ") || !strings.Contains(text, "Services were not looked at") {
		t.Error(text)
	}
	p := lab.Start(t, l.Node, "ruledump", "services")
	_ = p.Wait() // the output says it
	if want := "and kube-proxy's mode iptables has rules ("; !strings.Contains(p.Output(), want) {
		t.Errorf("no %q in %s", want, p.Output())
	}
}
