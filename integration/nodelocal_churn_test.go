package integration

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
)

var (
	churnChanges = flag.Int("node-local-changes", 1500, "changes of objects in TestNodeLocalChurn; the project's promise is for 10000")
	churnSeed    = flag.Uint64("node-local-seed", 0, "the seed of TestNodeLocalChurn; 0 draws one")
)

// churnServices is the number of Services that come, go and change.
const churnServices = 40

// churnPods is the network of the pods.
const churnPods = "10.244.0.0/16"

// serverMetrics is the address of the server's metrics, which count the full states that it has sent.
const serverMetrics = "127.0.0.1:10400"

// churn is an API server whose objects change, a server and a backend that are killed,
// and a relay between them that is cut.
type churn struct {
	t        *testing.T
	random   *rand.Rand
	lab      *lab.Lab
	conn     *nft.Conn
	server   *apiservertest.Server
	node     *corev1.Node
	services map[int]*corev1.Service
	slices   map[int]*discoveryv1.EndpointSlice

	relay              *relay
	nodeLocal, backend func() *lab.Process
	running            [2]*lab.Process // the server, the backend
	counts             map[string]int
}

func TestNodeLocalChurn(t *testing.T) {
	t.Run("with kills and cuts ends with the right tables", testNodeLocalChurnWithKills)
}

// Each process is killed, and their connection cut, at random points while objects change. Each time
// the kernel ends with the tables that a compiler makes of the objects from nothing; a connection
// that was cut resumes without a full state.
func testNodeLocalChurnWithKills(t *testing.T) {
	t.Parallel()
	seed := *churnSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("to repeat it: -node-local-seed %d -node-local-changes %d", seed, *churnChanges)
	c := newChurn(t, seed)
	for range *churnChanges {
		c.change()
		time.Sleep(time.Duration(c.random.IntN(4)) * time.Millisecond)
		switch c.random.IntN(240) {
		case 0:
			c.kill("server", 0, c.nodeLocal)
		case 1:
			c.kill("backend", 1, c.backend)
		case 2:
			c.cut()
		case 3:
			c.check()
		}
	}
	c.check()
	// Each at least once, whatever was drawn.
	c.kill("server", 0, c.nodeLocal)
	c.check()
	c.cut()
	c.kill("backend", 1, c.backend)
	c.check()
	t.Logf("%d changes; %v", *churnChanges, c.counts)
}

func newChurn(t *testing.T, seed uint64) *churn {
	l := lab.ForTest(t)
	server, kubeconfig := lab.APIServer(t, l.Node)
	dir := private.Dir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	c := &churn{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), lab: l, conn: lab.Conn(t, l.Node), server: server,
		services: map[int]*corev1.Service{}, slices: map[int]*discoveryv1.EndpointSlice{}, counts: map[string]int{},
		node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lab.NodeAddrs.IPv4.String()}},
		}},
		nodeLocal: func() *lab.Process {
			return lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--kubeconfig", kubeconfig, "--listen", "unix://"+at("server"), "--metrics-bind-address", serverMetrics)
		},
		backend: func() *lab.Process {
			return lab.Start(t, l.Node, "kube-proxy", "--node-local-source", "unix://"+at("relay"), "--hostname-override", lab.NodeName, "--cluster-cidr", churnPods)
		},
	}
	lab.Create(t, server, c.node)
	for range churnServices {
		c.change()
	}
	c.relay = startRelay(t, at("relay"), at("server"))
	c.running = [2]*lab.Process{c.nodeLocal(), c.backend()}
	c.check()
	return c
}

// change creates, updates or deletes one object.
func (c *churn) change() {
	c.t.Helper()
	i := c.random.IntN(churnServices)
	meta := metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i)}
	switch c.random.IntN(6) {
	case 0:
		c.setService(i, 80+c.random.IntN(3))
	case 1:
		remove(c, c.services, i)
	case 2:
		remove(c, c.slices, i)
	default:
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{
			{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)},
		}}
		for e := range c.random.IntN(5) {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", 1+e, 1+c.random.IntN(200))}})
		}
		store(c, c.slices, i, slice)
	}
}

func (c *churn) setService(i, port int) {
	c.t.Helper()
	address := fmt.Sprint("10.96.1.", i)
	store(c, c.services, i, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i)}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIP: address, ClusterIPs: []string{address},
		Ports: []corev1.ServicePort{{Port: int32(port), NodePort: int32(30000 + i), Protocol: corev1.ProtocolTCP}},
	}})
}

func store[T apiservertest.Object](c *churn, objects map[int]T, i int, object T) {
	c.t.Helper()
	write := c.server.Create
	if _, exists := objects[i]; exists {
		write = c.server.Update
	}
	if _, err := write(object); err != nil {
		c.t.Fatal(err)
	}
	objects[i] = object
}

func remove[T apiservertest.Object](c *churn, objects map[int]T, i int) {
	c.t.Helper()
	if object, exists := objects[i]; exists {
		if err := c.server.Delete(object); err != nil {
			c.t.Fatal(err)
		}
		delete(objects, i)
	}
}

// kill ends a process with SIGKILL and starts another one, after some changes that it does not see.
func (c *churn) kill(name string, which int, start func() *lab.Process) {
	c.t.Helper()
	c.counts["kills of the "+name]++
	p := c.running[which]
	if err := p.Cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	_ = p.Wait()
	for range c.random.IntN(5) {
		c.change()
	}
	c.running[which] = start()
	if c.random.IntN(2) == 0 {
		c.check()
	}
}

// cut breaks the connection of the two while objects change.
func (c *churn) cut() {
	c.t.Helper()
	c.counts["cuts"]++
	c.check() // then the backend has all of a state, and knows its revision
	before := c.fullStates()
	c.relay.cut()
	for range 20 {
		c.change()
	}
	c.check()
	await.Until(c.t, "the backend connects again", func() error { // changes that leave the state as it was need no connection
		if !c.relay.connected() {
			return errors.New("it has not")
		}
		return nil
	})
	if now := c.fullStates(); now != before {
		c.t.Errorf("%d full states were sent after a cut connection, want none", now-before)
	}
}

// fullStates returns how many full states the server that runs now has sent.
func (c *churn) fullStates() (n int) {
	c.t.Helper()
	body, err := getFrom(c.lab.Node, "http://"+serverMetrics+"/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	const metric = `kubeproxy_node_local_batches_total{full="true"} `
	_, rest, found := strings.Cut(body, metric)
	if _, err := fmt.Sscan(rest, &n); !found || err != nil || n == 0 {
		c.t.Fatalf("the server's metrics say %d full states (%v), and at least one was sent", n, err)
	}
	return n
}

// check waits until the kernel has the tables that belong to the objects. Before, it changes a Service that nothing
// else changes: the tables can only be right after both processes that run now have heard of that.
func (c *churn) check() {
	c.t.Helper()
	c.counts["checks"]++
	c.setService(churnServices, 1000+c.counts["checks"])
	objects := manifests.Objects{Nodes: []*corev1.Node{c.node}}
	for _, s := range c.services {
		objects.Services = append(objects.Services, s)
	}
	for _, s := range c.slices {
		objects.EndpointSlices = append(objects.EndpointSlices, s)
	}
	config := compiler.Default()
	config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix(churnPods)}
	want, err := flows.Compile(&objects, tracker.Options{NodeName: lab.NodeName}, config)
	if err != nil {
		c.t.Fatal(err)
	}
	await.Until(c.t, "the kernel has the wanted tables", func() error { return lab.TableError(c.conn, want) })
}

// relay carries connections between unix sockets.
type relay struct {
	mu    sync.Mutex
	conns []net.Conn // since the last cut
}

// startRelay carries connections from one unix socket to others, to one after the other.
func startRelay(t *testing.T, from string, to ...string) *relay {
	t.Helper()
	listener, err := net.Listen("unix", from)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{}
	t.Cleanup(func() { listener.Close(); r.cut() })
	go func() {
		for i := 0; ; i++ {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", to[i%len(to)])
			if err != nil {
				client.Close()
				continue
			}
			r.carry(client, server)
		}
	}()
	return r
}

func (r *relay) carry(a, b net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, a, b)
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // it ends when either side goes
			pair[0].Close()
			pair[1].Close()
		}()
	}
}

// connected reports whether there was a connection since the last cut.
func (r *relay) connected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns) > 0
}

// cut breaks all connections without a word.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		conn.Close()
	}
	r.conns = nil
}
