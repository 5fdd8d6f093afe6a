package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// TestCompatibility sends packets beside what network plugins and caches do to a node. docs/compatibility.md says of
// which programs these are. Rules of firewalls are in testdata/foreign.
func TestCompatibility(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"bridge", "ptp"} {
		t.Run("CNI plugins "+plugin+", firewall and portmap", func(t *testing.T) { testCNIPlugins(t, plugin) })
	}
	t.Run("NodeLocal DNSCache answers before the rules", testNodeLocalDNS)
	t.Run("preflight of several nodes is one table", testPreflightOfNodes)
}

// A Service of two pods behind CNI plugins: 10.244.9.2 is the endpoint, 10.244.9.3 a client.
const cniManifests = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.244.9.2], nodeName: node-1}]
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
`

// serveManifests writes the rules of a node for manifests.
func serveManifests(t *testing.T, node *lab.Host, manifests string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := ruledump.FromManifests(path, ruledump.Compilation{Node: lab.NodeName, Config: exampleConfig})
	if err != nil {
		t.Fatal(err)
	}
	replace(t, lab.Conn(t, node), s.Tables)
}

// inside is a network namespace: a host of the lab, or one that a plugin joins.
type inside interface{ Do(func() error) error }

// tellClients serves TCP at an address: each client gets a name and its own address.
func tellClients(t *testing.T, in inside, at, name string) {
	t.Helper()
	var listener net.Listener
	if err := in.Do(func() (err error) {
		listener, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			fmt.Fprintf(conn, "%s sees %s", name, host)
			conn.Close()
		}
	}()
}

// asked returns what a server said, or "dropped" if no answer comes in time.
func asked(t *testing.T, in inside, network, to string, patience time.Duration) (answer string) {
	t.Helper()
	err := in.Do(func() error {
		conn, err := net.DialTimeout(network, to, patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		if network == "udp" {
			return await.Poll(patience, func() error { // a datagram may be lost
				if _, err := conn.Write([]byte("?")); err != nil {
					return err
				}
				_ = conn.SetReadDeadline(time.Now().Add(min(patience, 2*time.Second)))
				buffer := make([]byte, 100)
				n, err := conn.Read(buffer)
				answer = string(buffer[:n])
				return err
			})
		}
		text, err := io.ReadAll(conn)
		answer = string(text)
		return err
	})
	if timeout := (net.Error)(nil); errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return "dropped"
	}
	if err != nil {
		return err.Error()
	}
	return answer
}

func wantAnswer(t *testing.T, in inside, what, network, to, want string) {
	t.Helper()
	patience := await.Patience
	if want == "dropped" {
		patience = time.Second
	}
	if got := asked(t, in, network, to, patience); got != want {
		t.Errorf("%s to %s %s: %q, want %q", what, network, to, got, want)
	}
}

// cniPlugins is the directory of Debian's package containernetworking-plugins.
const cniPlugins = "/usr/lib/cni"

// addPod runs a chain of plugins for a new pod, as a container runtime does, and returns its namespace.
func addPod(t *testing.T, node *lab.Host, id string, chain ...map[string]any) *netns.Namespace {
	t.Helper()
	pod := netns.ForTest(t)
	var result json.RawMessage
	for _, config := range chain {
		config["cniVersion"], config["name"] = "1.0.0", "pods"
		if result != nil {
			config["prevResult"] = result
		}
		text, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		plugin := exec.Command(filepath.Join(cniPlugins, config["type"].(string)))
		plugin.Stdin = strings.NewReader(string(text))
		plugin.Env = append(os.Environ(), "CNI_PATH="+cniPlugins, "CNI_COMMAND=ADD", "CNI_IFNAME=eth0", "CNI_CONTAINERID="+id,
			fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), pod.FD()))
		if err := node.Do(func() (err error) {
			result, err = plugin.Output()
			return err
		}); err != nil {
			t.Fatalf("%s: %v: %s", config["type"], err, result)
		}
	}
	return pod
}

func testCNIPlugins(t *testing.T, plugin string) {
	l := lab.ForTest(t)
	serveManifests(t, l.Node, cniManifests)
	network := map[string]any{
		"type": plugin, "ipMasq": true,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": t.TempDir(), "ranges": [][]map[string]string{{{"subnet": "10.244.9.0/24"}}},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		},
	}
	if plugin == "bridge" {
		network["bridge"], network["isGateway"], network["hairpinMode"] = "cni0", true, true
	}
	firewall := map[string]any{"type": "firewall", "backend": "iptables"}
	portmap := map[string]any{
		"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true},
		"runtimeConfig": map[string]any{"portMappings": []map[string]any{{"hostPort": 8088, "containerPort": 8080, "protocol": "tcp"}}},
	}
	server := addPod(t, l.Node, "server", network, firewall, portmap)
	delete(network, "prevResult")
	delete(firewall, "prevResult")
	client := addPod(t, l.Node, "client", network, firewall)
	tellClients(t, server, "10.244.9.2:8080", "pod")
	tellClients(t, l.Outside, "198.51.100.7:80", "outside")

	wantAnswer(t, client, "a pod", "tcp", "10.96.0.10:80", "pod sees 10.244.9.3")
	wantAnswer(t, server, "the pod itself", "tcp", "10.96.0.10:80", "pod sees 10.244.9.1")
	wantAnswer(t, l.Node, "the node", "tcp", "10.96.0.10:80", "pod sees 10.244.9.1")
	wantAnswer(t, l.Outside, "a client outside", "tcp", "192.168.0.1:30080", "pod sees 10.244.9.1")
	wantAnswer(t, l.Remote, "another node", "tcp", "192.168.0.1:30080", "pod sees 10.244.9.1")
	wantAnswer(t, l.Outside, "a client outside, to the host port", "tcp", "192.168.0.1:8088", "pod sees 198.51.100.7")
	wantAnswer(t, client, "a pod that leaves the cluster", "tcp", "198.51.100.7:80", "outside sees 192.168.0.1")

	// The plugin firewall accepts what pods send, and answers to them. KUBE-FORWARD accepted the rest in mode iptables.
	run := func(command string) {
		t.Helper()
		if p := lab.StartCommand(t, l.Node, exec.Command("sh", "-e", "-c", command)); p.Wait() != nil {
			t.Fatal(p.Output())
		}
	}
	run("iptables -P FORWARD DROP")
	wantAnswer(t, client, "a pod, FORWARD drops", "tcp", "10.96.0.10:80", "pod sees 10.244.9.3")
	wantAnswer(t, l.Node, "the node, FORWARD drops", "tcp", "10.96.0.10:80", "pod sees 10.244.9.1")
	wantAnswer(t, l.Outside, "a client outside, FORWARD drops", "tcp", "192.168.0.1:30080", "dropped")
	const dropped = "dropped by ip filter FORWARD"
	if text := preflightOf(t, l.Node); !strings.Contains(text, dropped) || !strings.Contains(text, "portmap (CNI)") {
		t.Errorf("preflight says\n%s", text)
	}
	run("iptables -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT")
	wantAnswer(t, l.Outside, "a client outside, FORWARD accepts what is translated", "tcp", "192.168.0.1:30080", "pod sees 10.244.9.1")

	if text := preflightOf(t, l.Node); strings.Contains(text, dropped) {
		t.Errorf("preflight says\n%s", text)
	}
}

// preflightOf returns what preflight says about a node. Its status is that of the findings.
func preflightOf(t *testing.T, node *lab.Host) string {
	t.Helper()
	p := lab.Start(t, node, "ruledump", "preflight", "-o=json")
	_ = p.Wait()
	return p.Output()
}

// As the DaemonSet does: preflight stays on each node until it is told to end, and the logs become one table.
func testPreflightOfNodes(t *testing.T) {
	l := lab.ForTest(t)
	config := filepath.Join(t.TempDir(), "config.conf")
	const text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: 10.244.0.0/16\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if p := lab.StartCommand(t, l.Remote, exec.Command("iptables", "-t", "nat", "-N", "KUBE-SERVICES")); p.Wait() != nil {
		t.Fatal(p.Output())
	}
	var logs string
	for _, node := range []*lab.Host{l.Node, l.Remote} {
		p := lab.Start(t, node, "ruledump", "preflight", "-o=json", "--stay", "--from-config", config, "--node", node.Name)
		p.Says(t, "\n}\n")
		if err := p.Stop(t); err != nil {
			t.Errorf("%s: %v", node.Name, err)
		}
		logs += p.Output()
	}
	collect := exec.Command(lab.Binary(t, "ruledump"), "preflight", "--collect", "-")
	collect.Stdin = strings.NewReader(logs)
	p := lab.StartCommand(t, l.Node, collect)
	_ = p.Wait() // its status is that of the worst node
	table := strings.Join(strings.Fields(p.Output()), " ")
	for _, want := range []string{"node-2 look at the findings first iptables 0", "node-1 go nftables 0 0", "the settings mean mode nftables, and the node has rules of mode iptables"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, p.Output())
		}
	}
}

const dnsManifests = `apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.53
  clusterIPs: [10.96.0.53]
  ports: [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 53, protocol: TCP}, {name: metrics, port: 9153}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 53, protocol: TCP}, {name: metrics, port: 9153}]
endpoints: [{addresses: [10.244.2.250], nodeName: node-2}]
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
`

// What the cache does where kube-proxy is in another mode than ipvs: the address of the Service on an interface of its
// own, and no tracking of its packets, so that nothing translates them.
const nodeLocalDNS = `ip link add nodelocaldns type bridge; ip addr add 10.96.0.53/32 dev nodelocaldns; ip addr add 169.254.20.10/32 dev nodelocaldns; ip link set nodelocaldns up
for address in 10.96.0.53 169.254.20.10; do for protocol in udp tcp; do
	iptables -t raw -A PREROUTING -d $address -p $protocol --dport 53 -j NOTRACK
	iptables -t raw -A OUTPUT -s $address -p $protocol --sport 53 -j NOTRACK
	iptables -t raw -A OUTPUT -d $address -p $protocol --dport 53 -j NOTRACK
	iptables -A INPUT -d $address -p $protocol --dport 53 -j ACCEPT
	iptables -A OUTPUT -s $address -p $protocol --sport 53 -j ACCEPT
done; done`

func testNodeLocalDNS(t *testing.T) {
	l := lab.ForTest(t)
	serveManifests(t, l.Node, dnsManifests)
	const endpoint = "10.244.2.250"
	tellClients(t, l.Remote, endpoint+":53", "endpoint")
	tellClients(t, l.Remote, endpoint+":9153", "endpoint")
	answerUDP(t, l.Remote, endpoint+":53", "endpoint")
	wantAnswer(t, l.Client, "a pod", "udp", "10.96.0.53:53", "endpoint")
	wantAnswer(t, l.Client, "a pod", "tcp", "10.96.0.53:53", "endpoint sees 10.244.1.250")

	if p := lab.StartCommand(t, l.Node, exec.Command("sh", "-e", "-c", nodeLocalDNS)); p.Wait() != nil {
		t.Fatal(p.Output())
	}
	for _, address := range []string{"10.96.0.53", "169.254.20.10"} {
		tellClients(t, l.Node, address+":53", "cache")
		answerUDP(t, l.Node, address+":53", "cache")
		wantAnswer(t, l.Client, "a pod", "udp", address+":53", "cache")
		wantAnswer(t, l.Client, "a pod", "tcp", address+":53", "cache sees 10.244.1.250")
		wantAnswer(t, l.Node, "the node", "udp", address+":53", "cache")
		for _, protocol := range []string{"udp", "tcp"} {
			text := runRuledump(t, l.Node, "explain", "--from=10.244.1.250", "--to="+address+":53/"+protocol)
			if !strings.Contains(text, "\nuntouched, to "+address+":53, a process of the node") || strings.Contains(text, "possible fates") ||
				!strings.Contains(text, "a rule keeps it from connection tracking") {
				t.Errorf("explain does not say that the cache answers %s:53/%s:\n%s", address, protocol, text)
			}
		}
	}
	if text := runRuledump(t, l.Node, "explain", "--from=10.244.1.250", "--to=10.96.0.53:9153/tcp"); !strings.Contains(text, "\nto "+endpoint+":9153") {
		t.Errorf("explain does not say that the endpoint answers another port:\n%s", text)
	}
	// The rest of the Service stays with the proxy.
	wantAnswer(t, l.Client, "a pod, to another port", "tcp", "10.96.0.53:9153", "endpoint sees 10.244.1.250")
	if text := preflightOf(t, l.Node); !strings.Contains(text, "NodeLocal DNSCache") {
		t.Errorf("preflight does not name it:\n%s", text)
	}
}

// answerUDP answers each datagram with a name.
func answerUDP(t *testing.T, host *lab.Host, at, name string) {
	t.Helper()
	var conn net.PacketConn
	if err := host.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 100)
		for {
			_, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(name), from)
		}
	}()
}
