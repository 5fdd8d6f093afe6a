package integration

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/integration/lab/labtest"
	"github.com/nftproxy/nftproxy/internal/ruledump/snapshot"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/source/apiserver/apiservertest"
	"github.com/nftproxy/nftproxy/source/manifests"
)

const (
	exampleManifests = "../docs/example/manifests"
	exampleConfig    = "../docs/example/config.yaml"
)

// ruledump runs ruledump on a host and returns what it prints.
func ruledump(t *testing.T, h *lab.Host, args ...string) string {
	t.Helper()
	p := labtest.Start(t, h, "ruledump", args...)
	if err := p.Wait(); err != nil {
		t.Fatalf("ruledump %s: %v\n%s", strings.Join(args, " "), err, p.Output())
	}
	return p.Output()
}

func exampleTables(t *testing.T) []*nft.Table {
	t.Helper()
	s, err := snapshot.FromManifests(exampleManifests, snapshot.Compilation{Node: "node-1", Config: exampleConfig})
	if err != nil {
		t.Fatal(err)
	}
	return s.Tables
}

// What live prints, nft loads, and then the kernel holds the same.
func TestRuledumpLiveLoads(t *testing.T) {
	l := labtest.New(t)
	replace(t, labtest.Conn(t, l.Node), exampleTables(t))
	printed := ruledump(t, l.Node, "live")
	labtest.Nft(t, l.Node, "", "flush", "ruleset")
	labtest.Nft(t, l.Node, printed, "-f", "-")
	if diff := cmp.Diff(printed, ruledump(t, l.Node, "live")); diff != "" {
		t.Errorf("-printed +after nft loaded it:\n%s", diff)
	}
}

// A difference on a live node has a status of its own, and names the Service.
func TestRuledumpDiffLive(t *testing.T) {
	l := labtest.New(t)
	replace(t, labtest.Conn(t, l.Node), exampleTables(t))
	wanted := []string{"diff", "--manifests", exampleManifests, "--config", exampleConfig, "--node", "node-1"}
	if got := ruledump(t, l.Node, wanted...); got != "no difference\n" {
		t.Errorf("of the same:\n%s", got)
	}
	labtest.Nft(t, l.Node, "", "delete", "element", "ip", "kube-proxy", "service-ips", "{ 10.96.0.10 . tcp . 80 }")
	p := labtest.Start(t, l.Node, "ruledump", wanted...)
	if err := p.Wait(); err == nil || p.Cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("an element less: %v", err)
	}
	for _, want := range []string{"- shop/web:http 10.96.0.10:80/TCP (ClusterIP): wanted, and not there\n", `- ip kube-proxy service-ips: 10.96.0.10 . tcp . 80 comment "shop/web:http" : goto cluster-3`} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("no %q in\n%s", want, p.Output())
		}
	}
}

// Each commit to the proxy's tables is told, with who made it.
func TestRuledumpWatch(t *testing.T) {
	l := labtest.New(t)
	conn := labtest.Conn(t, l.Node)
	replace(t, conn, exampleTables(t))
	p := labtest.Start(t, l.Node, "ruledump", "watch", "--parts=3")
	// The first commits may come before it listens.
	for i := 0; !strings.Contains(p.Output(), "+rule 1") && i < 200; i++ {
		labtest.Nft(t, l.Node, "", "add", "rule", "ip", "kube-proxy", "services", "counter", "accept")
	}
	labtest.Nft(t, l.Node, "", "add", "table", "ip", "other")
	labtest.Nft(t, l.Node, "", "delete", "element", "ip", "kube-proxy", "service-ips", "{ 10.96.0.10 . tcp . 80 }")
	p.Says(t, `- element ip kube-proxy service-ips 10.96.0.10 . tcp . 80 comment "shop/web:http" : goto cluster-3`)
	labtest.Nft(t, l.Node, "", "flush", "ruleset")
	p.Says(t, "-table 2")
	p.Says(t, "more\n")
	replace(t, conn, exampleTables(t))
	p.Says(t, "+table 2")
	for _, want := range []string{"by foreign: nft (pid ", "+ rule ip kube-proxy services counter accept", "by foreign: integration.tes (pid "} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("no %q in\n%s", want, p.Output())
		}
	}
	if strings.Contains(p.Output(), "other") {
		t.Errorf("tells of another table:\n%s", p.Output())
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("ends with %v", err)
	}
}

// A cluster's objects give the same answers as manifests of them, and nothing is written to the cluster.
func TestRuledumpKubeconfig(t *testing.T) {
	l := labtest.New(t)
	server, kubeconfig := labtest.APIServer(t, l.Node)
	objects, err := manifests.Load(exampleManifests)
	if err != nil {
		t.Fatal(err)
	}
	var all []apiservertest.Object
	for _, o := range objects.Nodes {
		all = append(all, o)
	}
	for _, o := range objects.ServiceCIDRs {
		all = append(all, o)
	}
	for _, o := range objects.Services {
		all = append(all, o)
	}
	for _, o := range objects.EndpointSlices {
		all = append(all, o)
	}
	for _, o := range all {
		if _, err := server.Create(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range [][]string{{"services", "-o", "wide"}, {"compile"}, {"explain", "--from=198.51.100.7", "--to=192.0.2.10:80"}, {"graph", "shop/web"}} {
		t.Run(command[0], func(t *testing.T) {
			from := append(command, "--config", exampleConfig, "--node", "node-1")
			want := ruledump(t, l.Node, append(from, "--manifests", exampleManifests)...)
			if diff := cmp.Diff(want, ruledump(t, l.Node, append(from, "--kubeconfig", kubeconfig)...)); diff != "" {
				t.Errorf("-manifests +cluster:\n%s", diff)
			}
		})
	}
	for _, verb := range []string{"create", "update", "delete", "watch"} {
		for _, plural := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
			if n := len(server.Requests(verb, plural)); n > 0 {
				t.Errorf("%d requests to %s %s", n, verb, plural)
			}
		}
	}
}
