package directreturn

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/vishvananda/netlink"
)

// withCounters is the configuration of kube-proxy in TestTools, for ruledump.
const withCounters = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: "10.244.0.0/16,fd00:244::/32"
featureGates: {NFTProxyDirectReturn: true, NFTProxyServiceCounters: true}
`

// What else works on such a Service, beginning with a takeover. The subtests follow each other.
func TestTools(t *testing.T) {
	t.Parallel()
	f := newFabric(t, false)
	f.startPods(t)
	for _, n := range f.nodes[1:] {
		n.gates = ",NFTProxyServiceCounters=true"
		address(t, n.Host, "eth0", n.objectAddr()) // for the health check
	}
	f.start(t, serving(2, 3), 2, 3)
	f.spread(t, 1)
	expectTakeover(t, f)
	before := f.counted(t)
	var open connections
	for _, family := range families {
		for client := range 6 {
			open = append(open, f.dialFrom(t, "tcp", family, client))
		}
	}
	t.Run("explain says where connections lead", func(t *testing.T) { expectExplained(t, f, open) })
	t.Run("the endpoint's node counts connections", func(t *testing.T) {
		counted := f.counted(t)
		for number := range counted {
			want := uint64(open.byPod()[fmt.Sprintf("pod-%d", number)])
			if got := counted[number] - before[number]; got != want {
				t.Errorf("node %d counts %d connections, want %d", number, got, want)
			}
		}
	})
	t.Run("healthCheckNodePort and policy Local", func(t *testing.T) { expectLocal(t, f) })
	t.Run("a Service without endpoints is refused and counted", func(t *testing.T) { expectRefused(t, f) })
	t.Run("services, graph and diff", func(t *testing.T) { expectTold(t, f.nodes[1]) })
	t.Run("cleanup leaves nothing", func(t *testing.T) {
		n := f.nodes[2]
		must(t, n.proxy.Stop(t))
		if out, err := n.run(t, "kube-proxy", "--cleanup"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		if listed := lab.Nft(t, n.Host, "", "list", "ruleset"); strings.Contains(listed, "table") {
			t.Errorf("it leaves\n%.2000s", listed)
		}
	})
}

// objectAddr is the address that its Node object has.
func (n *node) objectAddr() netip.Addr { return netip.AddrFrom4([4]byte{172, 31, 0, byte(n.number)}) }

// run runs a program of this module on a node.
func (n *node) run(t *testing.T, name string, args ...string) (out string, err error) {
	t.Helper()
	binary := lab.Binary(t, name)
	must(t, n.Do(func() error {
		var b []byte
		b, err = exec.Command(binary, args...).CombinedOutput()
		out = string(b)
		return nil
	}))
	return out, err
}

// startTool starts a command of ruledump that shows drops while they happen.
func (n *node) startTool(t *testing.T, command string, args ...string) *lab.Process {
	t.Helper()
	if command != "top" {
		args = append(args, "--yes")
	}
	p := lab.Start(t, n.Host, "ruledump", append([]string{command, "-o=json"}, args...)...)
	if command != "top" {
		p.Says(t, "in table ruledump-")
	}
	return p
}

// anotherProxy has rules as another proxy under policy Cluster. Its table has the name of ours, as that of Kubernetes.
const anotherProxy = `table %[1]s kube-proxy {
	chain prerouting { type nat hook prerouting priority dstnat; %[1]s daddr %[2]s tcp dport 80 meta mark set meta mark or 0x4000 dnat to %[3]s; }
	chain postrouting { type nat hook postrouting priority srcnat; meta mark and 0x4000 == 0x4000 masquerade; }
}
`

// expectTakeover starts the proxy of node 1, where another one has masqueraded connections. It stays to the test's end.
func expectTakeover(t *testing.T, f *fabric) {
	n := f.nodes[1]
	for _, family := range families {
		name := map[model.Family]string{model.IPv4: "ip", model.IPv6: "ip6"}[family]
		lab.Nft(t, n.Host, fmt.Sprintf(anotherProxy, name, direct.addr(family), netip.AddrPortFrom(podAddr(family, 2), 8080)), "-f", "-")
	}
	var open connections
	for _, family := range families {
		for client := range 5 {
			open = append(open, f.dialFrom(t, "tcp", family, client))
		}
	}
	if kept := open.kept(); kept != 0 {
		t.Fatalf("the other proxy keeps the source of %d connections", kept)
	}
	if lost := open.during(func() { f.start(t, serving(2, 3), 1) }); lost.lost() > 0 {
		t.Errorf("of connections of the other proxy %v", lost)
	}
	for _, family := range families {
		if c := f.dialFrom(t, "tcp", family, 7); c.source.Addr() != c.from {
			t.Errorf("after the takeover the endpoint sees %s as %s", c.from, c.source)
		}
	}
}

// expectExplained compares what ruledump explain says on all nodes with where connections lead.
func expectExplained(t *testing.T, f *fabric, open connections) {
	for _, c := range open {
		family := model.FamilyOf(c.from)
		from, to := c.LocalAddr().String(), netip.AddrPortFrom(direct.addr(family), 80).String()
		for _, n := range f.nodes[1:4] {
			pod, err := strconv.Atoi(strings.TrimPrefix(c.pod, "pod-"))
			must(t, err)
			want := "sent on, as it is, to where the routes lead to " + podAddr(family, pod).String() + "\n"
			if n.number == pod {
				want = "to " + netip.AddrPortFrom(podAddr(family, pod), 8080).String() + ", source kept\n"
			}
			if out, err := n.run(t, "ruledump", "explain", "--from", from, "--to", to); err != nil || !strings.Contains(out, want) {
				t.Errorf("%s: %s leads to %s, and explain does not say %q: %v\n%s", n.Name, from, c.pod, want, err, out)
			}
		}
	}
}

var counter = regexp.MustCompile(`counter packets (\d+)`)

// packets returns what the element of port 80 of an address counts.
func (n *node) packets(t *testing.T, family, set, addr string) uint64 {
	t.Helper()
	element := lab.Nft(t, n.Host, "", "get", "element", family, "kube-proxy", set, fmt.Sprintf("{ %s . tcp . 80 }", addr))
	found := counter.FindStringSubmatch(element)
	if found == nil {
		t.Fatalf("%s does not count:\n%s", set, element)
	}
	packets, err := strconv.ParseUint(found[1], 10, 64)
	must(t, err)
	return packets
}

// counted returns how many TCP connections nodes 1 to 3 count.
func (f *fabric) counted(t *testing.T) map[int]uint64 {
	t.Helper()
	counted := map[int]uint64{}
	for _, n := range f.nodes[1:4] {
		counted[n.number] = n.packets(t, "ip", "service-connections", direct.addr(model.IPv4).String()) +
			n.packets(t, "ip6", "service-connections", direct.addr(model.IPv6).String())
	}
	return counted
}

// moreServices are a Service under policy Local, for which the annotation is ignored, and one without endpoints.
const moreServices = `apiVersion: v1
kind: Service
metadata: {name: local, namespace: shop, annotations: {nftproxy.io/direct-return: "true"}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.9
  externalTrafficPolicy: Local
  healthCheckNodePort: 32009
  allocateLoadBalancerNodePorts: false
  ports: [{port: 80, targetPort: 8080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: local-1, namespace: shop, labels: {kubernetes.io/service-name: local}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.2.5], nodeName: node-2, conditions: {ready: true}}]
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop, annotations: {nftproxy.io/direct-return: "true"}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.8
  allocateLoadBalancerNodePorts: false
  ports: [{port: 80, targetPort: 8080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.8}]}}
`

// routeOne makes the router send packets to an address to one node.
func (f *fabric) routeOne(t *testing.T, to string, number int) {
	t.Helper()
	prefix := netip.PrefixFrom(netip.MustParseAddr(to), 32)
	must(t, f.router.Routes().RouteReplace(&netlink.Route{Dst: ipNet(prefix), Gw: f.nodeAddr(model.IPv4, number).AsSlice()}))
}

// expectLocal gives nodes 1 and 2 more Services.
func expectLocal(t *testing.T, f *fabric) {
	for number, want := range map[int]int{1: http.StatusServiceUnavailable, 2: http.StatusOK} {
		n := f.nodes[number]
		must(t, os.WriteFile(filepath.Join(n.manifests, "more.yaml"), []byte(moreServices), 0o600))
		await.Until(t, fmt.Sprintf("node %d answers %d at healthCheckNodePort", number, want), func() error {
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.DialContext}, Timeout: patience}
			answer, err := client.Get("http://" + n.objectAddr().String() + ":32009/healthz")
			if err != nil {
				return err
			}
			answer.Body.Close()
			if answer.StatusCode != want {
				return errors.New(answer.Status)
			}
			return nil
		})
		n.proxy.Says(t, "externalTrafficPolicy is Local, and direct return is for Cluster")
	}
	f.routeOne(t, "203.0.113.9", 2)
	must(t, f.client.Do(func() error {
		conn, err := net.DialTimeout("tcp", "203.0.113.9:80", patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		c := &connection{Conn: conn, in: bufio.NewReader(conn), network: "tcp"}
		if pod, source, err := c.ask(); err != nil || pod != "pod-2" || source != unmapped(conn.LocalAddr()) {
			t.Errorf("%s sees %s as %s: %v", pod, conn.LocalAddr(), source, err)
		}
		return nil
	}))
}

// expectRefused dials the Service without endpoints.
func expectRefused(t *testing.T, f *fabric) {
	f.routeOne(t, "203.0.113.8", 1)
	must(t, f.client.Do(func() error {
		c, err := net.DialTimeout("tcp", "203.0.113.8:80", patience)
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("it is not refused: %v", err)
		}
		return nil
	}))
	if counted := f.nodes[1].packets(t, "ip", "no-endpoint-services", "203.0.113.8"); counted < 1 {
		t.Error("the refusal is not counted")
	}
}

// expectTold ends the proxy of a node, and changes its rules.
func expectTold(t *testing.T, n *node) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(config, []byte(withCounters), 0o600))
	diff := []string{"diff", "--manifests", n.manifests, "--node", n.Name, "--config", config}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"services", "shop/direct"}, "203.0.113.1:80/TCP        External   Cluster  2          -         all      external-2"},
		{[]string{"graph", "shop/direct:p80-tcp"}, "source kept, on the endpoint's node"},
		{diff, ""},
	} {
		if out, err := n.run(t, "ruledump", tt.args...); err != nil || !strings.Contains(out, tt.want) {
			t.Errorf("%v: %v, and no %q\n%s", tt.args, err, tt.want, out)
		}
	}
	must(t, n.proxy.Stop(t)) // it would repair
	lab.Nft(t, n.Host, "", "delete", "element", "ip", "kube-proxy", "direct-ips", "{ 203.0.113.1 . tcp . 80 }")
	lab.Nft(t, n.Host, "", "flush", "map", "ip6", "kube-proxy", "direct-hops")
	out, err := n.run(t, "ruledump", diff...)
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "shop/direct:p80-tcp") || !strings.Contains(out, "direct-hops") {
		t.Errorf("diff: %v\n%.3000s", err, out)
	}
}
