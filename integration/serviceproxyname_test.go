package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// sideManifests are Services of one of two proxies: web at a ClusterIP and a node port, dns over UDP, idle
// without endpoints, and elsewhere, whose only endpoint is not on this node under externalTrafficPolicy
// Local. Function side fills in LABELS and SIDE.
const sideManifests = `{apiVersion: v1, kind: Service, metadata: {name: web-SIDE, namespace: shop, LABELS}, spec: {type: NodePort, clusterIP: 10.96.SIDE.1, clusterIPs: [10.96.SIDE.1], ports: [{port: 80, nodePort: 3SIDE080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-SIDE, namespace: shop, labels: {kubernetes.io/service-name: web-SIDE}}, addressType: IPv4, ports: [{name: "", port: 8080, protocol: TCP}], endpoints: [{addresses: [10.244.1.SIDE], nodeName: node-1}]}
---
{apiVersion: v1, kind: Service, metadata: {name: dns-SIDE, namespace: shop, LABELS}, spec: {type: ClusterIP, clusterIP: 10.96.SIDE.2, clusterIPs: [10.96.SIDE.2], ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: dns-SIDE, namespace: shop, labels: {kubernetes.io/service-name: dns-SIDE}}, addressType: IPv4, ports: [{name: "", port: 5353, protocol: UDP}], endpoints: [{addresses: [10.244.1.SIDE], nodeName: node-1}]}
---
{apiVersion: v1, kind: Service, metadata: {name: idle-SIDE, namespace: shop, LABELS}, spec: {type: ClusterIP, clusterIP: 10.96.SIDE.3, clusterIPs: [10.96.SIDE.3], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: elsewhere-SIDE, namespace: shop, LABELS}, spec: {type: NodePort, externalTrafficPolicy: Local, clusterIP: 10.96.SIDE.4, clusterIPs: [10.96.SIDE.4], ports: [{port: 80, nodePort: 3SIDE081}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: elsewhere-SIDE, namespace: shop, labels: {kubernetes.io/service-name: elsewhere-SIDE}}, addressType: IPv4, ports: [{name: "", port: 8080, protocol: TCP}], endpoints: [{addresses: [10.244.2.SIDE], nodeName: node-2}]}
---
`

// sideFlows has the results of packets to those Services while their proxy's rules are there.
const sideFlows = `
- {name: a pod reaches web-SIDE, from: client, to: "10.96.SIDE.1:80", expect: {endpoints: ["10.244.1.SIDE:8080"], source: kept}}
- {name: an outside host reaches web-SIDE masqueraded, from: outside, to: "10.96.SIDE.1:80", expect: {endpoints: ["10.244.1.SIDE:8080"], source: masqueraded}}
- {name: an outside host reaches web-SIDE over its node port, from: outside, to: "192.168.0.1:3SIDE080", expect: {endpoints: ["10.244.1.SIDE:8080"], source: masqueraded}}
- {name: the node reaches dns-SIDE, from: node, to: "10.96.SIDE.2:53", protocol: UDP, expect: {endpoints: ["10.244.1.SIDE:5353"]}}
- {name: a port that web-SIDE does not have is refused, from: client, to: "10.96.SIDE.1:81", expect: {result: refused}}
- {name: idle-SIDE is refused, from: client, to: "10.96.SIDE.3:80", expect: {result: refused}}
- {name: the node port of elsewhere-SIDE is dropped, from: outside, to: "192.168.0.1:3SIDE081", expect: {result: dropped}}
`

// serviceCIDR has addresses of both proxies' Services.
const serviceCIDR = "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/12]}, status: {conditions: [{type: Ready, status: \"True\"}]}}\n"

// unassigned is the flow that the proxy without a name drops.
const unassigned = `
- {name: an address that no Service has is dropped, from: client, to: "10.96.200.1:80", expect: {result: dropped}}
`

// secondName has every kind of character that a label's value may have; nft has to be
// able to read it in a table's name.
const (
	secondName  = "2nd_Proxy.x-y"
	secondTable = "kube-proxy." + secondName
)

// side fills a template in for one of the two proxies: 1 has no name, 2 is called secondName.
func side(n int, template string) string {
	labels := "labels: {}"
	if n == 2 {
		labels = "labels: {service.kubernetes.io/service-proxy-name: " + secondName + "}"
	}
	return strings.NewReplacer("LABELS", labels, "SIDE", fmt.Sprint(n)).Replace(template)
}

// beside has two proxies on one node, which read the same objects.
type beside struct {
	lab    *lab.Lab
	dir    string
	runner *flows.Runner
}

func newBeside(t *testing.T) *beside {
	t.Helper()
	b := &beside{lab: lab.ForTest(t), dir: flows.FindCase(t, "single-stack-ipv4").ManifestsDir(t)}
	objects := side(1, sideManifests) + side(2, sideManifests)
	b.write(t, "sides.yaml", objects+serviceCIDR)
	if err := os.Remove(filepath.Join(b.dir, "manifests.yaml")); err != nil {
		t.Fatal(err)
	}
	endpoints, err := flows.Endpoints([]byte(strings.TrimSuffix(objects, "---\n")))
	if err != nil {
		t.Fatal(err)
	}
	if b.runner, err = flows.NewRunner(b.lab, endpoints); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.runner.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// write replaces a file of the manifests in one step.
func (b *beside) write(t *testing.T, name, text string) {
	t.Helper()
	whole := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(whole, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(whole, filepath.Join(b.dir, name)); err != nil {
		t.Fatal(err)
	}
}

// start starts a proxy and waits until its rules are in the kernel.
func (b *beside) start(t *testing.T, n int) *lab.Process {
	t.Helper()
	args := []string{"--manifests=" + b.dir, "--hostname-override=" + lab.NodeName, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"}
	if n == 2 {
		args = append(args, "--service-proxy-name="+secondName, "--healthz-bind-address=127.0.0.1:20256", "--metrics-bind-address=127.0.0.1:20249")
	}
	p := lab.Start(t, b.lab.Node, "kube-proxy", args...)
	p.Says(t, firstSyncLine)
	return p
}

func (b *beside) send(t *testing.T, list ...string) {
	t.Helper()
	parsed, err := flows.Parse([]byte("flows:" + strings.Join(list, "")))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.runner.Run(parsed); err != nil {
		t.Error(err)
	}
}

// tables returns the names of all tables.
func (b *beside) tables(t *testing.T) []string {
	t.Helper()
	return sortedLines(strings.TrimSpace(lab.Nft(t, b.lab.Node, "", "list", "tables")))
}

func (b *beside) listing(t *testing.T, table string) string {
	t.Helper()
	return lab.Nft(t, b.lab.Node, "", "-s", "list", "table", "ip", table)
}

var (
	firstTables  = []string{"table ip kube-proxy", "table ip6 kube-proxy"}
	secondTables = []string{"table ip " + secondTable, "table ip6 " + secondTable}
)

// A second proxy serves the Services with a label in tables of its own, beside the first, which serves those without.
func TestServiceProxyName(t *testing.T) {
	t.Parallel()
	t.Run("two proxies serve their own Services side by side", func(t *testing.T) { testSideBySide(t, 1, 2) })
	t.Run("in whatever order they start", func(t *testing.T) { testSideBySide(t, 2, 1) })
	t.Run("a restart of one leaves the other alone", testRestartOfOneProxy)
	t.Run("a cleanup of one leaves the other alone", testCleanupOfOneProxy)
	t.Run("one does not end the other's UDP flows", testUDPFlowsOfTheOtherProxy)
	t.Run("there may be no Service with the label", testNoServiceWithTheLabel)
	t.Run("ruledump shows either's", testRuledumpOfTwoProxies)
	t.Run("a proxy keeps its rules behind a server with another name", testServerWithAnotherName)
	t.Run("a name that no label can have is refused", func(t *testing.T) {
		lab.Start(t, lab.ForTest(t).Node, "kube-proxy", "--service-proxy-name=a b").Fails(t, `--service-proxy-name: "a b": a valid label must be`)
		lab.Start(t, lab.ForTest(t).Node, "kube-proxy", "node-local-server", "--service-proxy-name=a b").Fails(t, `--service-proxy-name: "a b": a valid label must be`)
	})
}

func testSideBySide(t *testing.T, order ...int) {
	b := newBeside(t)
	for _, n := range order {
		b.start(t, n)
	}
	b.send(t, side(1, sideFlows), side(2, sideFlows), unassigned)
	if got, want := b.tables(t), slices.Concat(firstTables, secondTables); !slices.Equal(got, sortedLines(strings.Join(want, "\n"))) {
		t.Errorf("tables %q, want %q", got, want)
	}
	if text := b.listing(t, secondTable); !strings.Contains(text, "shop/web-2") {
		t.Errorf("nft lists\n%s", text)
	}
}

func testRestartOfOneProxy(t *testing.T) {
	b := newBeside(t)
	processes := map[int]*lab.Process{1: b.start(t, 1), 2: b.start(t, 2)}
	for n, other := range map[int]string{1: secondTable, 2: "kube-proxy"} {
		before := b.listing(t, other)
		if err := processes[n].Stop(t); err != nil {
			t.Error(err)
		}
		b.send(t, side(1, sideFlows), side(2, sideFlows), unassigned)
		processes[n] = b.start(t, n)
		b.send(t, side(1, sideFlows), side(2, sideFlows), unassigned)
		if after := b.listing(t, other); after != before {
			t.Errorf("table %s was\n%s\nand is\n%s", other, before, after)
		}
	}
}

func testCleanupOfOneProxy(t *testing.T) {
	b := newBeside(t)
	first, second := b.start(t, 1), b.start(t, 2)
	stop := func(p *lab.Process, cleanup ...string) {
		t.Helper()
		if err := p.Stop(t); err != nil {
			t.Error(err)
		}
		if err := lab.Start(t, b.lab.Node, "kube-proxy", append(cleanup, "--cleanup")...).Wait(); err != nil {
			t.Error(err)
		}
	}
	stop(second, "--service-proxy-name="+secondName)
	if got := b.tables(t); !slices.Equal(got, firstTables) {
		t.Errorf("tables %q, want %q", got, firstTables)
	}
	b.send(t, side(1, sideFlows), unassigned)
	second = b.start(t, 2)
	stop(first)
	if got := b.tables(t); !slices.Equal(got, secondTables) {
		t.Errorf("tables %q, want %q", got, secondTables)
	}
	b.send(t, side(2, sideFlows))
	if text := b.listing(t, secondTable); strings.Contains(text, "an address that no Service holds") {
		t.Errorf("the second proxy drops addresses of which it does not know whether the first has a Service there:\n%s", text)
	}
	stop(second, "--service-proxy-name="+secondName)
}

func testUDPFlowsOfTheOtherProxy(t *testing.T) {
	b := newBeside(t)
	b.start(t, 1)
	b.start(t, 2)
	if err := b.lab.Node.Do(func() error { // 30 s may be too short
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", []byte("600"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	send := func(n int) error {
		return b.lab.Client.Do(func() error {
			conn, err := net.Dial("udp", side(n, "10.96.SIDE.2:53"))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("?"))
			return err
		})
	}
	table, err := conntrack.Dial(int(b.lab.Node.NetNS().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	flowsAre := func(want ...string) error {
		got := []string{}
		_, err := table.DeleteFlows(t.Context(), model.IPv4, unix.IPPROTO_UDP, func(f conntrack.Flow) bool {
			got = append(got, f.Dialed.String())
			return false
		})
		slices.Sort(got)
		if got = slices.Compact(got); err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("there are flows to %q", got)
		}
		return err
	}
	has := func(want ...string) {
		t.Helper()
		await.Until(t, fmt.Sprintf("there are UDP flows to %q", want), func() error { return flowsAre(want...) })
	}
	await.Until(t, "each proxy has a UDP flow", func() error { // a busy machine may lose a packet
		return errors.Join(send(1), send(2), flowsAre("10.96.1.2:53", "10.96.2.2:53"))
	})
	withoutDNS := func(n int) string {
		documents := strings.Split(side(n, sideManifests), "---\n")
		return strings.Join(slices.Delete(documents, 2, 4), "---\n")
	}
	// Both proxies see each change.
	b.write(t, "sides.yaml", withoutDNS(1)+side(2, sideManifests)+serviceCIDR)
	has("10.96.2.2:53")
	b.write(t, "sides.yaml", withoutDNS(1)+withoutDNS(2)+serviceCIDR)
	has()
}

func testRuledumpOfTwoProxies(t *testing.T) {
	b := newBeside(t)
	b.start(t, 1)
	b.start(t, 2)
	ruledump := func(args ...string) string {
		t.Helper()
		p := lab.Start(t, b.lab.Node, "ruledump", args...)
		if err := p.Wait(); err != nil {
			t.Errorf("ruledump %q: %v", args, err)
		}
		return p.Output()
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16,fd00:10:244::/48\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for n, flag := range map[int][]string{1: nil, 2: {"--service-proxy-name=" + secondName}} {
		out := ruledump(append([]string{"services"}, flag...)...)
		if !strings.Contains(out, side(n, "shop/web-SIDE")) || strings.Contains(out, side(3-n, "shop/web-SIDE")) {
			t.Errorf("ruledump %q services prints\n%s", flag, out)
		}
		ruledump(append([]string{"diff", "--manifests=" + b.dir, "--node=" + lab.NodeName, "--config=" + config}, flag...)...) // exit status 0: equal
		dump := filepath.Join(t.TempDir(), "dump.json")
		if err := os.WriteFile(dump, []byte(ruledump(append([]string{"live", "-o", "json"}, flag...)...)), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := ruledump("services", "--dump="+dump); got != out {
			t.Errorf("the dump's Services are\n%s\nwant\n%s", got, out)
		}
	}
}

// Only the proxy without a name holds a state without Services.
func testNoServiceWithTheLabel(t *testing.T) {
	b := newBeside(t)
	p := b.start(t, 2)
	b.send(t, side(2, sideFlows))
	b.write(t, "sides.yaml", side(1, sideManifests)+serviceCIDR)
	await.Until(t, "the second proxy's tables have no Service", func() error {
		if text := b.listing(t, secondTable); strings.Contains(text, "shop/") {
			return errors.New(text)
		}
		return nil
	})
	if err := p.Stop(t); err != nil {
		t.Error(err)
	}
	b.start(t, 2)
}

// The state of a server for another proxy would replace all rules.
func testServerWithAnotherName(t *testing.T) {
	b := newBeside(t)
	socket := "unix://" + filepath.Join(private.Dir(t), "node-local.sock")
	serve := func(flags ...string) *lab.Process {
		t.Helper()
		p := lab.Start(t, b.lab.Node, "kube-proxy", append([]string{"node-local-server", "--manifests=" + b.dir, "--listen=" + socket}, flags...)...)
		p.Says(t, "Serving the node-local API")
		return p
	}
	follow := []string{"--node-local-source=" + socket, "--hostname-override=" + lab.NodeName}
	watch := append([]string{"node-local-watch"}, follow...)
	server := serve()
	proxy := lab.Start(t, b.lab.Node, "kube-proxy", append(follow, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48")...)
	proxy.Says(t, firstSyncLine)
	before := b.listing(t, "kube-proxy")
	if err := server.Stop(t); err != nil {
		t.Error(err)
	}
	serve("--service-proxy-name=" + secondName)
	refusal := fmt.Sprintf("the server's service-proxy-name is %q, the client's is %q", secondName, "")
	proxy.Says(t, strings.ReplaceAll(refusal, `"`, `\"`)) // as the log quotes it
	b.send(t, side(1, sideFlows))
	if after := b.listing(t, "kube-proxy"); after != before {
		t.Errorf("the table was\n%s\nand is\n%s", before, after)
	}
	if err := proxy.Stop(t); err != nil {
		t.Error(err)
	}
	lab.Start(t, b.lab.Node, "kube-proxy", watch...).Fails(t, refusal)
	lab.Start(t, b.lab.Node, "kube-proxy", append(watch, "--service-proxy-name="+secondName)...).Says(t, `"service":"web-2"`)
}
