package takeover

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// realModes are kube-proxy's modes that this kernel has. In iptables mode the variant says which iptables programs
// kube-proxy finds.
var realModes = []struct{ name, mode, variant string }{
	{"nftables", "nftables", ""},
	{"iptables-nft", "iptables", "nft"},
	{"iptables-legacy", "iptables", "legacy"},
}

// TestRealKubeProxy swaps a running kube-proxy of Kubernetes for this one and back, under traffic. On the way this one
// is killed while it takes over, and is restarted.
func TestRealKubeProxy(t *testing.T) {
	if *kubeProxy == "" {
		t.Skip("it needs Kubernetes' kube-proxy: make test-kubernetes")
	}
	for _, m := range realModes {
		for _, services := range []int{100, 5000} {
			t.Run(fmt.Sprintf("%s, %d Services", m.name, services), func(t *testing.T) {
				n := newRealNode(t, m.mode, m.variant, services)
				theirs, ours := n.startKubernetes(t), (*lab.Process)(nil)
				takeOver := func() { ours = n.takeOver(t, theirs) }
				n.loseNothing(t, "this proxy takes over, and is killed meanwhile", takeOver)
				n.loseNothing(t, "this proxy restarts", func() {
					ours.Stop(t)
					ours = n.startOurs(t)
				})
				wayBack := func() {
					ours.Stop(t)
					theirs = n.startKubernetes(t)
				}
				if m.mode == "nftables" {
					n.loseNothing(t, "kube-proxy goes on", wayBack)
				} else {
					n.logLoss(t, wayBack)
				}
				n.loseNothing(t, "this proxy takes over again", takeOver)
			})
		}
	}
}

// loseNothing does something while connections come and go, of which none may go wrong but by bad luck (unlucky).
func (n *realNode) loseNothing(t *testing.T, what string, do func()) {
	t.Helper()
	t.Log(what)
	tr := startClients(t, n.streams())
	do()
	tr.finish(t)
}

// logLoss goes back to mode iptables. kube-proxy deletes this proxy's tables when it starts, and serves from its first
// sync, so connections do go wrong.
func (n *realNode) logLoss(t *testing.T, wayBack func()) {
	t.Helper()
	tr := startClients(t, n.streams())
	wayBack()
	tr.end()
	t.Logf("on the way back %d new connections went wrong, and %d of %d established ones: %v", len(tr.lost), len(tr.broken), len(tr.established), errors.Join(tr.broken...))
}

// streams are those of the manifests. In mode iptables nothing answers at a port that a ClusterIP does not have.
func (n *realNode) streams() []*stream {
	streams := streamsOf(n.lab)
	if n.variant != "" {
		streams = slices.DeleteFunc(streams, func(s *stream) bool { return s.to == "10.96.0.10:81" })
	}
	return streams
}

// realNode is a node with an API server that has the manifests and more Services.
type realNode struct {
	lab           *lab.Lab
	conn          *nft.Conn
	server        *apiservertest.Server
	kubeconfig    string
	mode, variant string
	path          string
	// awaited counts the Services by which a proxy showed that it had synced.
	awaited int
}

func newRealNode(t *testing.T, mode, variant string, services int) *realNode {
	t.Helper()
	l := lab.ForTest(t)
	n := &realNode{lab: l, conn: lab.Conn(t, l.Node), mode: mode, variant: variant, path: t.TempDir()}
	if variant != "" {
		n.path = iptablesPath(t, variant)
	}
	n.server, n.kubeconfig = lab.APIServer(t, l.Node)
	lab.Upload(t, n.server, manifestsFile)
	for i := range services {
		lab.Create(t, n.server, furtherService(i)...)
	}
	serveEndpoints(t, l)
	return n
}

// furtherService is a Service whose endpoints nobody dials.
func furtherService(i int) []apiservertest.Object {
	name := fmt.Sprintf("further-%d", i)
	ip := netip.AddrFrom4([4]byte{10, 96, byte(16 + i>>8), byte(i)}).String()
	endpoints := []discoveryv1.Endpoint{}
	for e := range 2 {
		endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 244, byte(128 + i>>7), byte(2*i + e)}).String()}})
	}
	port := int32(servedPorts[0])
	return []apiservertest.Object{
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "further", Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "further", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: &port, Protocol: new(corev1.ProtocolTCP)}},
			Endpoints:   endpoints,
		},
	}
}

func (n *realNode) flags() []string { return append(slices.Clone(flags), "--kubeconfig", n.kubeconfig) }

// startKubernetes starts Kubernetes' kube-proxy, and waits until it has synced.
func (n *realNode) startKubernetes(t *testing.T) *lab.Process {
	t.Helper()
	p := startKubernetes(t, n.lab.Node, n.path, append(n.flags(), "--proxy-mode="+n.mode)...)
	n.awaitSync(t)
	return p
}

// awaitSync waits until Services that are new are served, one of each family: kube-proxy syncs one family after the
// other.
func (n *realNode) awaitSync(t *testing.T) {
	t.Helper()
	n.awaited++
	awaitNewService(t, n.lab, n.server, fmt.Sprintf("10.96.7.%d", n.awaited))
	awaitNewService(t, n.lab, n.server, fmt.Sprintf("fd00:10:96::7:%d", n.awaited))
}

// takeOver stops kube-proxy and starts this proxy, which is killed at some instant, and once more.
func (n *realNode) takeOver(t *testing.T, kubernetes *lab.Process) (ours *lab.Process) {
	t.Helper()
	kubernetes.Stop(t)
	p := lab.Start(t, n.lab.Node, "kube-proxy", n.flags()...)
	instant := rand.N(time.Second)
	t.Logf("kill -9 after %v", instant)
	time.Sleep(instant)
	if err := p.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	ours = n.startOurs(t)
	if n.variant != "" {
		awaitNoLeftovers(t, n.lab.Node, n.variant)
	}
	n.expectOurTables(t)
	return ours
}

// startOurs starts this proxy, and waits until it has synced.
func (n *realNode) startOurs(t *testing.T) *lab.Process {
	t.Helper()
	p := lab.Start(t, n.lab.Node, "kube-proxy", n.flags()...)
	n.awaitSync(t)
	return p
}

// expectOurTables checks that nothing of kube-proxy's is in the tables.
func (n *realNode) expectOurTables(t *testing.T) {
	t.Helper()
	for _, family := range nft.Families {
		table, err := n.conn.ReadTable(t.Context(), family, compiler.TableName)
		if err != nil {
			t.Fatal(err)
		}
		for _, chain := range table.Chains {
			if strings.Contains(chain.Name, "/") {
				t.Errorf("table %s has kube-proxy's chain %s", family, chain.Name)
			}
		}
	}
	if !strings.Contains(lab.Nft(t, n.lab.Node, "", "list", "table", "ip", "kube-proxy"), "map endpoints") {
		t.Error("table ip kube-proxy lacks this proxy's map endpoints")
	}
}
