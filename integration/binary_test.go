package integration

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/nft"
	corev1 "k8s.io/api/core/v1"
)

func TestMain(m *testing.M) {
	process.ExecOnly()
	lab.Main(m)
}

func getFrom(h *lab.Host, url string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.DialContext}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestKubeProxy(t *testing.T) {
	t.Run("applies what the API server has", testKubeProxyProgramsWhatTheAPIServerHas)
	t.Run("refuses bad input with one line", testKubeProxyRefusesBadInputWithOneLine)
	t.Run("runs with kubeadm's configuration until it changes", testKubeProxyRunsWithKubeadmsConfigurationUntilItChanges)
	t.Run("converts configurations", testKubeProxyConvertsConfigurations)
	t.Run("a taken port ends it if it is to fail hard", testTakenPortEndsTheProxyIfItIsToFailHard)
	t.Run("tries a taken port again", testTakenPortIsTriedAgain)
	t.Run("a bad kubeconfig ends it", testBadKubeconfigEndsTheProxy)
	t.Run("rules stay without valid credentials", testRulesStayWithoutValidCredentials)
	t.Run("asks again without permission", testProxyAsksAgainWithoutPermission)
	t.Run("a kernel without nftables ends it", testKernelWithoutNftablesEndsTheProxy)
	t.Run("a kernel without a feature ends it", testKernelWithoutAFeatureEndsTheProxy)
	t.Run("takes the place of kubeadm's kube-proxy", testKubeProxyTakesThePlaceOfKubeadmsKubeProxy)
}

// The binary, fed by an API server over HTTP, through outage and compaction, until it is
// stopped and cleaned up after.
func testKubeProxyProgramsWhatTheAPIServerHas(t *testing.T) {
	g := flows.FindCase(t, "load-balancer-policy-local-keeps-the-source")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	server, kubeconfig := lab.APIServer(t, l.Node)
	lab.Upload(t, server, g.ManifestsDir(t))
	p := lab.Start(t, l.Node, "kube-proxy", "--kubeconfig", kubeconfig, "--hostname-override", lab.NodeName,
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "-v", "2")
	want := g.Compile(t)
	await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, want) })
	sendFlows(t, l, g)

	other, slice := serviceAt("other", "10.96.0.99", "10.244.1.5") // so that the list after the outage is not empty
	lab.Create(t, server, other, slice)
	server.Compact()
	server.DropConnections()
	service := &corev1.Service{}
	service.Namespace, service.Name = "shop", "web"
	lab.Delete(t, server, service)
	await.Until(t, "a Service deleted during an outage is gone from the kernel", func() error {
		table, err := c.ReadTable(t.Context(), nft.FamilyIP, compiler.TableName)
		if err != nil {
			return err
		}
		if n := table.Set("service-ips").Len(); n != 1 {
			return fmt.Errorf("service-ips has %d elements, want that of the other Service", n)
		}
		return nil
	})

	if mode, err := getFrom(l.Node, "http://127.0.0.1:10249/proxyMode"); err != nil || mode != "nftables" {
		t.Errorf("/proxyMode = %q, %v; want nftables", mode, err)
	}
	metrics, err := getFrom(l.Node, "http://127.0.0.1:10249/metrics")
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"kubeproxy_sync_proxy_rules_duration_seconds_count", "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "kubeproxy_nftables_commit_bytes_sum"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("/metrics has no %s", name)
		}
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("after SIGTERM: %v, want exit code 0", err)
	}
	if table, err := c.ReadTable(t.Context(), nft.FamilyIP6, compiler.TableName); err != nil || table == nil {
		t.Errorf("after exit the table is %v, %v; want it to stay", table, err)
	}
	if err := lab.Start(t, l.Node, "kube-proxy", "--cleanup").Wait(); err != nil {
		t.Errorf("--cleanup: %v", err)
	}
	if listed := lab.Nft(t, l.Node, "", "list", "ruleset"); listed != "" {
		t.Errorf("--cleanup left:\n%s", listed)
	}
}

// ruledump prints, live and offline, what the golden says.
func testRuledumpPrintsTheGolden(t *testing.T) {
	g := flows.FindCase(t, "hairpin-over-cluster-ip")
	l := lab.ForTest(t)
	tables := g.Compile(t)
	replace(t, lab.Conn(t, l.Node), tables)
	for _, args := range [][]string{
		{"compile", "--manifests", g.ManifestsDir(t), "--node", "node-1", "--config", g.ConfigFile(t)},
		{"live"},
	} {
		p := lab.Start(t, l.Node, "ruledump", args...)
		if err := p.Wait(); err != nil {
			t.Errorf("ruledump %v: %v", args, err)
		}
		if p.Output() != printTables(tables) {
			t.Errorf("ruledump %s prints\n%s", args[0], p.Output())
		}
	}
}

// Bad input is refused with one clear line that says what to do.
func testKubeProxyRefusesBadInputWithOneLine(t *testing.T) {
	l := lab.ForTest(t)
	dir := t.TempDir()
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"another mode", `--proxy-mode: this kube-proxy does not have the mode "iptables"; set it to "nftables"`, []string{"--proxy-mode=iptables"}},
		{"a cluster CIDR that is none", `--cluster-cidr: Invalid value: "banana": must be a CIDR`, []string{"--cluster-cidr=banana"}},
		{"a detect-local mode that is none", `--detect-local-mode: Unsupported value: "Guess"`, []string{"--detect-local-mode=Guess"}},
		{"no bridge", `--pod-bridge-interface: Required value`, []string{"--detect-local-mode=BridgeInterface"}},
		{"node port addresses that are none", `--nodeport-addresses: Invalid value: "eth0": must be a CIDR`, []string{"--nodeport-addresses=eth0"}},
		{"two sources", "--manifests: cannot be combined", []string{"--manifests=" + dir, "--kubeconfig=x"}},
		{"no such kubeconfig", "kubeconfig " + filepath.Join(dir, "none"), []string{"--kubeconfig=" + filepath.Join(dir, "none")}},
		{"no such configuration", "read configuration: open " + filepath.Join(dir, "none"), []string{"--config=" + filepath.Join(dir, "none")}},
		{"a metrics address without a port", `--metrics-bind-address: Invalid value: "here": must be an IP address and a port`, []string{"--manifests=" + dir, "--metrics-bind-address=here"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab.Start(t, l.Node, "kube-proxy", append([]string{"--v=0"}, tt.args...)...).Fails(t, tt.want)
		})
	}
}
