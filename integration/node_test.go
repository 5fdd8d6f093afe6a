package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNode(t *testing.T) {
	t.Parallel()
	t.Run("is waited for", testProxyWaitsForItsNode)
	t.Run("is waited for half a minute at most", testProxyGoesOnWithoutANodeAfterHalfAMinute)
	t.Run("a list of Nodes that fails is not waited for for ever", testListOfNodesThatFailsIsNotWaitedForForEver)
	t.Run("another IP ends the proxy", testAnotherNodeIPEndsTheProxy)
	t.Run("addresses that vanish", testNodeAddressesThatVanish)
}

func testProxyWaitsForItsNode(t *testing.T) {
	f := newWithServer(t)
	lab.Delete(t, f.server, f.node)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	p.Says(t, `"Waiting for the Node; programming Services meanwhile" node="node-1" missing="the Node, addresses" upTo="30s"`)
	await.Until(t, "the Service's ClusterIP is programmed", func() error { return f.holds("service-ips", 1) })
	f.becomes(t, "503 200", `"the Node is waited for"`)
	if strings.Contains(p.Output(), "Node is known") {
		t.Error("the log says that the Node is known, and there is none")
	}
	lab.Create(t, f.server, f.node)
	f.applied(t)
	f.becomes(t, "200 200")
	p.Says(t, `"Node is known" node="node-1" ips="192.168.0.1, fd00:1::1"`)
	f.hasEvent(t, "Starting")
	if logged := p.Errors(); len(logged) > 0 {
		t.Errorf("error lines %q, want none", logged)
	}
}

// holds returns an error unless a set of the IPv4 table has that many elements.
func (f *troubled) holds(set string, elements int) error {
	table, err := f.conn.ReadTable(context.Background(), nft.FamilyIP, compiler.TableName)
	if err != nil {
		return err
	}
	if table == nil || table.Set(set) == nil || table.Set(set).Len() != elements {
		return fmt.Errorf("it does not have %d elements:\n%s", elements, table)
	}
	return nil
}

// The 30 seconds are those of docs/node.md.
func testProxyGoesOnWithoutANodeAfterHalfAMinute(t *testing.T) {
	f := newWithServer(t)
	lab.Delete(t, f.server, f.node)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	p.Says(t, firstSyncLine)
	f.becomes(t, "503 200")
	await.Within(t, 2*await.Patience, "it is ready", func() error {
		if got, body, err := f.health(); got != "200 200" {
			return fmt.Errorf("%s, %v: %s", got, err, body)
		}
		return nil
	})
	if logged := p.Errors(); len(logged) != 2 ||
		!strings.Contains(logged[0], `"Going on without a Node, because there is none of this name. If it has another one, set hostnameOverride: endpoints on it are not known as local" node="node-1" waited="30s"`) ||
		!strings.Contains(logged[1], `"Going on without the node's addresses; node ports do not answer on them until the Node has them" node="node-1" waited="30s"`) {
		t.Errorf("error lines %q, want those that say what is missing and how long it was waited for", logged)
	}
	f.metricIs(t, `kubeproxy_node_missing{what="node"}`, "1")
	if strings.Contains(p.Output(), "Node is known") {
		t.Error("the log says that the Node is known, and there is none")
	}
	f.metricIs(t, `kubeproxy_node_missing{what="addresses"}`, "1")

	lab.Create(t, f.server, f.node)
	f.applied(t)
	p.Says(t, `"Node is known" node="node-1" ips="192.168.0.1, fd00:1::1"`)
	f.metricIs(t, `kubeproxy_node_missing{what="addresses"}`, "0")
}

func testListOfNodesThatFailsIsNotWaitedForForEver(t *testing.T) {
	f := newWithServer(t)
	f.server.Refuse("nodes", http.StatusInternalServerError)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	p.Says(t, firstSyncLine)
	f.becomes(t, "503 200", `"problems":["the Node is waited for","cannot watch nodes"]`)
	f.server.Refuse("nodes", 0)
	await.Within(t, 2*await.Patience, "the rules are in the kernel", func() error { return lab.TableError(f.conn, f.want) })
	f.becomes(t, "200 200")
}

func testAnotherNodeIPEndsTheProxy(t *testing.T) {
	f := newWithServer(t)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	f.applied(t)
	p.Says(t, "Node is known")
	f.updateNode(t, "192.168.0.9")
	p.Fails(t, "node node-1: its addresses changed from 192.168.0.1, fd00:1::1 to 192.168.0.9, fd00:1::1; exiting, so that a restart sets up everything anew")
	f.stays(t)
}

// updateNode gives this node's Node other addresses.
func (f *withServer) updateNode(t *testing.T, ips ...string) {
	t.Helper()
	f.node.Status.Addresses = nil
	for _, ip := range ips {
		f.node.Status.Addresses = append(f.node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	lab.Update(t, f.server, f.node)
}

// outlived is a node with a node port that clients dial without pause, whatever happens to the Node.
type outlived struct {
	*withServer
	process *lab.Process
}

const outlivedPort = "192.168.0.1:30081"

func newOutlived(t *testing.T) *outlived {
	t.Helper()
	t.Parallel()
	f := &withServer{troubled: &troubled{lab: lab.ForTest(t)}}
	f.conn = lab.Conn(t, f.lab.Node)
	f.server, f.kubeconfig = lab.APIServer(t, f.lab.Node)
	servePod(t, f.lab, "pod", "10.244.1.5")
	f.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName}}
	service, slice := outageObjects("10.244.1.5")
	service.Spec.Type, service.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30081
	lab.Create(t, f.server, f.node, service, slice)
	f.updateNode(t, "192.168.0.1", "fd00:1::1")
	o := &outlived{withServer: f}
	o.begin(t)
	for _, family := range nft.Families {
		table, err := f.conn.ReadTable(t.Context(), family, compiler.TableName)
		if err != nil {
			t.Fatal(err)
		}
		f.want = append(f.want, table)
	}
	keepDialingAt(t, f.lab.Outside, outlivedPort)
	keepDialingAt(t, f.lab.Client, "10.96.0.10:80")
	return o
}

// begin starts the proxy and waits until it follows Services.
func (o *outlived) begin(t *testing.T) {
	t.Helper()
	o.process = o.start(t, "--kubeconfig="+o.kubeconfig)
	o.process.Says(t, firstSyncLine)
}

func (o *outlived) restart(t *testing.T) {
	t.Helper()
	if err := o.process.Stop(t); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
	o.begin(t)
	o.stays(t)
}

// ready checks that load balancers may send traffic.
func (o *outlived) ready(t *testing.T) {
	t.Helper()
	o.becomes(t, "200 200")
}

// follows checks that Services are followed, and that the rules are otherwise as they were.
func (o *outlived) follows(t *testing.T, name string) {
	t.Helper()
	service, slice := serviceAt(name, "10.96.0.77", "10.244.1.5")
	lab.Create(t, o.server, service, slice)
	await.Until(t, "a new Service", func() error { return o.holds("service-ips", 2) })
	lab.Delete(t, o.server, service, slice)
	await.Until(t, "the rules are what they were", func() error { return lab.TableError(o.conn, o.want) })
}

func testNodeAddressesThatVanish(t *testing.T) {
	const lost, back = `"The Node has lost addresses or pod CIDRs; keeping them in force" node="node-1" kept="192.168.0.1, fd00:1::1"`, "The Node has again what it had lost"
	t.Run("they stay in force, also over restarts, until they come back", func(t *testing.T) {
		o := newOutlived(t)
		o.updateNode(t)
		o.process.Says(t, lost)
		o.follows(t, "one")
		o.updateNode(t, "192.168.0.1", "fd00:1::1")
		o.process.Says(t, back)
		o.updateNode(t)

		o.restart(t)
		o.ready(t)
		o.process.Says(t, `"The Node lacks facts; going on with those of the previous run" node="node-1" missing="addresses" ips="192.168.0.1, fd00:1::1"`)
		o.follows(t, "two")
		o.updateNode(t, "192.168.0.1", "fd00:1::1")
		o.process.Says(t, "Node is known")
		o.follows(t, "three")
		if logged := o.process.Errors(); len(logged) > 0 {
			t.Errorf("error lines %q, want none", logged)
		}
	})
	t.Run("a Node that is deleted and registers anew", func(t *testing.T) {
		o := newOutlived(t)
		lab.Delete(t, o.server, o.node)
		o.process.Says(t, "Node of this proxy was deleted, keeping its addresses and zone")
		o.follows(t, "one")
		o.restart(t)
		o.becomes(t, "503 200", `"the Node is waited for"`) // it might have another name
		o.follows(t, "two")
		o.node.Status.Addresses = nil
		lab.Create(t, o.server, o.node)
		o.ready(t)
		o.restart(t)
		o.follows(t, "three")
		o.updateNode(t, "192.168.0.1", "fd00:1::1")
		o.process.Says(t, "Node is known")
		o.stays(t)
	})
	t.Run("a Node that comes back with another address ends the proxy, and not again after its restart", func(t *testing.T) {
		o := newOutlived(t)
		o.updateNode(t)
		o.process.Says(t, lost)
		o.updateNode(t, "192.168.0.9")
		o.process.Fails(t, "node node-1: its addresses changed from 192.168.0.1, fd00:1::1 to 192.168.0.9, fd00:1::1; exiting")
		o.stays(t)
		o.updateNode(t)
		o.begin(t)
		o.stays(t)
		o.updateNode(t, "192.168.0.1", "fd00:1::1")
		o.process.Says(t, "Node is known")
		time.Sleep(time.Second)
		o.follows(t, "one")
	})
}

func TestNodePortAddresses(t *testing.T) {
	t.Parallel()
	t.Run("health checks of a family that they do not name answer everywhere", testHealthChecksOfAnUnnamedFamilyAnswerEverywhere)
	t.Run("health checks answer on an address that comes later", testHealthChecksAnswerOnAnAddressThatComesLater)
}

// startWithNodePortAddresses starts a proxy for a Service with the health check port 32080.
func startWithNodePortAddresses(t *testing.T, addresses string) (*lab.Lab, *lab.Process) {
	t.Helper()
	g := flows.FindCase(t, "source-ranges-under-policy-local")
	l := lab.ForTest(t)
	text, err := os.ReadFile(g.ConfigFile(t))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, append(text, "nodePortAddresses: ["+addresses+"]\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	return l, lab.Start(t, l.Node, "kube-proxy", "--config", config, "--hostname-override="+lab.NodeName, "--manifests", g.ManifestsDir(t))
}

func awaitAnswer(t *testing.T, h *lab.Host, url string) {
	t.Helper()
	await.Until(t, url+" answers", func() error {
		_, err := getFrom(h, url)
		return err
	})
}

// The health checks of Services answer on the addresses of node ports: in a family that nodePortAddresses
// does not name, on every address. A warning says so.
func testHealthChecksOfAnUnnamedFamilyAnswerEverywhere(t *testing.T) {
	l, p := startWithNodePortAddresses(t, "10.244.1.254/32")
	for _, url := range []string{"http://10.244.1.254:32080", "http://[fd00:1::1]:32080", "http://[fd00:10:244:1::254]:32080", "http://[::1]:32080"} {
		awaitAnswer(t, l.Node, url)
	}
	if _, err := getFrom(l.Node, "http://192.168.0.1:32080"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the node's primary IPv4 address: %v, want a refusal", err)
	}
	if want := "nodePortAddresses: has no IPv6 address"; !strings.Contains(p.Output(), want) {
		t.Errorf("the log does not say %q:\n%s", want, p.Output())
	}
}

// Node ports answer on an address as soon as the machine has it, because the rules ask the routing table.
func testHealthChecksAnswerOnAnAddressThatComesLater(t *testing.T) {
	l, _ := startWithNodePortAddresses(t, "203.0.113.0/24, 10.244.1.254/32")
	awaitAnswer(t, l.Node, "http://10.244.1.254:32080")
	if err := l.Node.Do(func() error {
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(loopback, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(203, 0, 113, 9), Mask: net.CIDRMask(32, 32)}})
	}); err != nil {
		t.Fatal(err)
	}
	awaitAnswer(t, l.Node, "http://203.0.113.9:32080")
	awaitAnswer(t, l.Node, "http://10.244.1.254:32080")
}
