package integration

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
)

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
	p.Says(t, `"Cannot list; programming nothing before it is listed, and retrying" err="failed to list *v1.Service: the server has asked for the client to provide credentials (get services)" resource="services"`)
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
	var client *eventsclient.EventsV1Client
	config := f.server.RESTConfig()
	config.Dial = f.lab.Node.DialContext
	client, err := eventsclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "there is an event "+reason, func() error {
		list, err := client.Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil {
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
