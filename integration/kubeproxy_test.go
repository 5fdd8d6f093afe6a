package integration

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/source/apiserver"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMain(m *testing.M) {
	process.ExecOnly()
	lab.Main(m)
}

func getFrom(h *lab.Host, url string) (string, error) {
	resp, err := clientOf(h).Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestKubeProxy(t *testing.T) {
	t.Parallel()
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
	frontends := func() (n int) {
		table, err := c.ReadTable(t.Context(), nft.FamilyIP, compiler.TableName)
		if err != nil {
			t.Fatal(err)
		}
		return table.Set("service-ips").Len()
	}
	before := frontends()
	lab.Create(t, server, other, slice)
	await.Until(t, "the other Service is in the kernel", func() error {
		if n := frontends(); n != before+1 {
			return fmt.Errorf("service-ips has %d elements, want %d", n, before+1)
		}
		return nil
	})
	server.Compact()
	server.DropConnections()
	service := &corev1.Service{}
	service.Namespace, service.Name = "shop", "web"
	lab.Delete(t, server, service)
	await.Until(t, "a Service deleted during an outage is gone from the kernel", func() error {
		if n := frontends(); n != 1 {
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
		if lab.Abandoned.ReplaceAllString(p.Output(), "") != flows.PrintTables(tables) {
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

// troubled is a node on which something is to go wrong, and what its proxy should program all the same.
type troubled struct {
	lab  *lab.Lab
	conn *nft.Conn
	g    flows.Case
	want []*nft.Table
}

func newTroubled(t *testing.T) *troubled {
	t.Helper()
	t.Parallel()
	const name = "single-stack-ipv4"
	f := &troubled{lab: lab.ForTest(t), g: flows.FindCase(t, name)}
	f.conn, f.want = lab.Conn(t, f.lab.Node), f.g.Compile(t)
	return f
}

// start starts the proxy as the golden case wants it.
func (f *troubled) start(t *testing.T, args ...string) *lab.Process {
	t.Helper()
	return lab.Start(t, f.lab.Node, "kube-proxy", append(f.args(), args...)...)
}

func (f *troubled) args() []string {
	return []string{"--hostname-override=" + lab.NodeName, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"}
}

func (f *troubled) applied(t *testing.T) {
	t.Helper()
	await.Until(t, "the rules are in the kernel", func() error { return lab.TableError(f.conn, f.want) })
}

func (f *troubled) stays(t *testing.T) {
	t.Helper()
	if err := lab.TableError(f.conn, f.want); err != nil {
		t.Errorf("the rules did not stay: %v", err)
	}
}

// nothingApplied checks that there is no table yet.
func (f *troubled) nothingApplied(t *testing.T) {
	t.Helper()
	if table, err := f.conn.ReadTable(t.Context(), nft.FamilyIP, compiler.TableName); err != nil || table != nil {
		t.Errorf("table %v, %v; want none", table, err)
	}
}

// withServer is a troubled node with an API server that has the case's objects.
type withServer struct {
	*troubled
	server     *apiservertest.Server
	kubeconfig string
	// node is this node's Node.
	node *corev1.Node
}

func newWithServer(t *testing.T) *withServer {
	t.Helper()
	f := &withServer{troubled: newTroubled(t)}
	f.server, f.kubeconfig = lab.APIServer(t, f.lab.Node)
	for _, node := range lab.Upload(t, f.server, f.g.ManifestsDir(t)).Nodes {
		if node.Name == lab.NodeName {
			f.node = node
		}
	}
	return f
}

// listen takes a port of the node away from the proxy.
func (f *troubled) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var listener net.Listener
	if err := f.lab.Node.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// servers are the proxy's own two, as they are called in messages.
var servers = []struct{ name, address, path, field, event string }{
	{"health server", "0.0.0.0:10256", "/healthz", "healthzBindAddress", "FailedToStartProxierHealthcheck"},
	{"metrics server", "127.0.0.1:10249", "/healthz", "metricsBindAddress", "FailedToStartMetricServer"},
}

func testTakenPortEndsTheProxyIfItIsToFailHard(t *testing.T) {
	for _, server := range servers {
		t.Run(server.name, func(t *testing.T) {
			f := newTroubled(t)
			f.listen(t, server.address)
			f.start(t, "--manifests="+f.g.ManifestsDir(t), "--bind-address-hard-fail").Fails(t,
				fmt.Sprintf("%s at %s: listen tcp %[2]s: bind: address already in use; stop what listens there, or choose another %s", server.name, server.address, server.field))
		})
	}
}

func testTakenPortIsTriedAgain(t *testing.T) {
	for _, server := range servers {
		t.Run(server.name, func(t *testing.T) {
			f := newWithServer(t)
			listener := f.listen(t, server.address)
			p := f.start(t, "--kubeconfig="+f.kubeconfig)
			f.applied(t)
			p.Says(t, fmt.Sprintf(`"Cannot serve, trying again" err="%s at %s: listen tcp %[2]s: bind: address already in use;`, server.name, server.address))
			f.hasEvent(t, server.event)
			listener.Close()
			await.Until(t, "the port answers", func() error {
				_, err := getFrom(f.lab.Node, "http://"+strings.Replace(server.address, "0.0.0.0", "127.0.0.1", 1)+server.path)
				return err
			})
			if err := p.Stop(t); err != nil {
				t.Errorf("the proxy ended with %v", err)
			}
		})
	}
}

func testBadKubeconfigEndsTheProxy(t *testing.T) {
	f := newWithServer(t)
	good, err := os.ReadFile(f.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	const token = "    token: "
	if !bytes.Contains(good, []byte(token)) {
		t.Fatalf("the kubeconfig has no token:\n%s", good)
	}
	for _, tt := range []struct{ name, content, want string }{
		{"missing", "", "no such file or directory"},
		{"not YAML", "clusters: [", "yaml: "},
		{"unknown context", strings.Replace(string(good), "current-context: test", "current-context: other", 1), "context was not found for specified context: other"},
		{"certificate file missing", strings.Replace(string(good), token, "    client-certificate: no.crt\n    client-key: no.key\n"+token, 1), "no.crt"},
	} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if tt.content != "" {
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p := f.start(t, "--kubeconfig="+path)
		p.Fails(t, tt.want)
		if got := strings.Join(p.Errors(), ""); !strings.Contains(got, "kubeconfig "+path+": ") {
			t.Errorf("%s: the error %s does not name the file", tt.name, got)
		}
	}
	f.nothingApplied(t)
}

// Credentials that the API server does not know, while rules of an earlier run are in the kernel.
func testRulesStayWithoutValidCredentials(t *testing.T) {
	f := newWithServer(t)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	f.applied(t)
	if err := p.Stop(t); err != nil {
		t.Error(err)
	}
	f.badToken(t)
	p = f.start(t, "--kubeconfig="+f.kubeconfig)
	p.Says(t, `"Cannot list; programming nothing before it is listed, and retrying" err="failed to list *v1.Service: Unauthorized" resource="services"`)
	f.stays(t)
	if err := p.Stop(t); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
	f.stays(t)
}

// What the proxy may not list is asked for until it may.
func testProxyAsksAgainWithoutPermission(t *testing.T) {
	f := newWithServer(t)
	f.server.Refuse("services", 403)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	p.Says(t, `"Cannot list; programming nothing before it is listed, and retrying" err="failed to list *v1.Service: services is forbidden`)
	f.nothingApplied(t)
	f.server.Refuse("services", 0)
	f.applied(t)
	p.Says(t, `"Watching again" resource="services"`)
	if err := p.Stop(t); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
}

// hasEvent waits for an event about the Node.
func (f *withServer) hasEvent(t *testing.T, reason string) {
	t.Helper()
	config := f.server.RESTConfig()
	config.Dial = f.lab.Node.DialContext
	client, err := apiserver.Client(config, nil, eventsv1.SchemeGroupVersion, &eventsv1.Event{}, &eventsv1.EventList{})
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "there is an event "+reason, func() error {
		var list eventsv1.EventList
		if err := client.Get().Namespace(metav1.NamespaceDefault).Resource("events").Do(t.Context()).Into(&list); err != nil {
			return err
		}
		for _, event := range list.Items {
			if event.Reason == reason && event.Regarding.Kind == "Node" && event.Regarding.Name == lab.NodeName {
				return nil
			}
		}
		return fmt.Errorf("there are %d others", len(list.Items))
	})
}

// usage has the descriptors and goroutines of a running proxy.
type usage struct {
	descriptors await.Descriptors
	goroutines  int
}

// spareGoroutines is the number of goroutines that may come and go with connections and timers.
const spareGoroutines = 8

func (f *troubled) usage(t *testing.T, p *lab.Process) usage {
	t.Helper()
	return usage{await.DescriptorsOf(t, p.Cmd.Process.Pid), f.goroutines(t)}
}

// comesBackTo checks that the proxy uses no more than before.
func (f *troubled) comesBackTo(t *testing.T, p *lab.Process, before usage) {
	t.Helper()
	await.NoMoreDescriptors(t, p.Cmd.Process.Pid, before.descriptors)
	await.Until(t, "the proxy has as many goroutines as before the fault; see /debug/pprof/goroutine", func() error {
		if now := f.goroutines(t); now > before.goroutines+spareGoroutines {
			return fmt.Errorf("%d, before there were %d", now, before.goroutines)
		}
		return nil
	})
}

func (f *troubled) goroutines(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(f.metric(t, "go_goroutines"))
	if err != nil {
		t.Errorf("metric go_goroutines: %v", err)
	}
	return n
}
