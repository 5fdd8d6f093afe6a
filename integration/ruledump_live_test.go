package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nftproxy/nftproxy/internal/ruledump"

	"github.com/nftproxy/nftproxy/internal/ruledump/verb"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

const (
	exampleManifests = "../docs/example/manifests"
	exampleConfig    = "../docs/example/config.yaml"
)

// runRuledump runs ruledump on a host and returns what it prints.
func runRuledump(t *testing.T, h *lab.Host, args ...string) string {
	t.Helper()
	p := lab.Start(t, h, "ruledump", args...)
	if err := p.Wait(); err != nil {
		t.Fatalf("ruledump %s: %v\n%s", strings.Join(args, " "), err, p.Output())
	}
	return lab.Abandoned.ReplaceAllString(p.Output(), "")
}

func exampleTables(t *testing.T) []*nft.Table {
	t.Helper()
	s, err := ruledump.FromManifests(exampleManifests, ruledump.Compilation{Node: "node-1", Config: exampleConfig})
	if err != nil {
		t.Fatal(err)
	}
	return s.Tables
}

func TestRuledump(t *testing.T) {
	t.Parallel()
	t.Run("prints the golden", testRuledumpPrintsTheGolden)
	t.Run("live prints what nft loads", testRuledumpLiveLoads)
	t.Run("diff names the Service", testRuledumpDiffLive)
	t.Run("says which permission it lacks", testRuledumpWithoutPermission)
	t.Run("says that there are no tables", testRuledumpWithoutTables)
	t.Run("watch tells each commit", testRuledumpWatch)
	t.Run("explain follows other programs' tables", testRuledumpOthers)
	t.Run("explain names what it cannot follow", testExplainNames)
	t.Run("explain knows hairpin mode", testExplainHairpin)
	t.Run("explain says what depends on a rate limit", testExplainRateLimit)
	t.Run("dump leaves out large sets of other programs", testDumpLeavesOut)
	t.Run("answers alike from every source", testRuledumpSources)
	t.Run("answers alike from a cluster", testRuledumpKubeconfig)
	t.Run("answers alike from a node-local server", testRuledumpNodeLocal)
	t.Run("answers soon at scale", testRuledumpAtScale)
	t.Run("explain tells finished connections from live ones", testRuledumpConnections)
	t.Run("beside a proxy takes its name and settings", testRuledumpBesideAProxy)
	t.Run("is smaller than the proxy", testRuledumpIsSmallerThanTheProxy)
}

// The linker keeps every exported method of every type if a program can reach text/template, which cobra uses for
// templates that a program sets.
func testRuledumpIsSmallerThanTheProxy(t *testing.T) {
	size := map[string]int64{}
	for _, name := range []string{"ruledump", "kube-proxy"} {
		file, err := os.Stat(lab.Binary(t, name))
		if err != nil {
			t.Fatal(err)
		}
		size[name] = file.Size()
	}
	if size["ruledump"] >= size["kube-proxy"] {
		t.Errorf("ruledump has %d bytes, kube-proxy %d: go build -ldflags=-dumpdep says what reaches reflect's Method", size["ruledump"], size["kube-proxy"])
	}
}

// What live prints, nft loads, and then the kernel holds the same.
func testRuledumpLiveLoads(t *testing.T) {
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	printed := runRuledump(t, l.Node, "live")
	lab.Nft(t, l.Node, "", "flush", "ruleset")
	lab.Nft(t, l.Node, printed, "-f", "-")
	if diff := cmp.Diff(printed, runRuledump(t, l.Node, "live")); diff != "" {
		t.Errorf("-printed +after nft loaded it:\n%s", diff)
	}
}

// A difference on a live node has a status of its own, and names the Service.
func testRuledumpDiffLive(t *testing.T) {
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	wanted := []string{"diff", "--manifests", exampleManifests, "--config", exampleConfig, "--node", "node-1"}
	if got := runRuledump(t, l.Node, wanted...); got != "no difference\n" {
		t.Errorf("of the same:\n%s", got)
	}
	lab.Nft(t, l.Node, "", "delete", "element", "ip", "kube-proxy", "service-ips", "{ 10.96.0.10 . tcp . 80 }")
	p := lab.Start(t, l.Node, "ruledump", wanted...)
	if err := p.Wait(); err == nil || p.Cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("an element less: %v", err)
	}
	for _, want := range []string{"- shop/web:http 10.96.0.10:80/TCP (ClusterIP): missing\n", `- ip kube-proxy service-ips: 10.96.0.10 . tcp . 80 comment "shop/web:http" : goto cluster-3`} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("no %q in\n%s", want, p.Output())
		}
	}
}

// nobody runs ruledump on a host as a user without any privilege and returns its exit status and output.
func nobody(t *testing.T, h *lab.Host, args ...string) (status int, output string) {
	t.Helper()
	program := lab.Binary(t, "ruledump")
	// Directories for tests are their owner's only.
	if err := os.Chmod(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	const uid = 65534
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	p := lab.StartCommand(t, h, cmd)
	_ = p.Wait() // the status says it
	return p.Cmd.ProcessState.ExitCode(), p.Output()
}

// Each command that reads the kernel says in one line which privilege it lacks. All others need none.
func testRuledumpWithoutPermission(t *testing.T) {
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	objects := t.TempDir()
	if err := os.CopyFS(objects, os.DirFS("../docs/example")); err != nil {
		t.Fatal(err)
	}
	dumped := filepath.Join(objects, "dump.json")
	if err := os.WriteFile(dumped, []byte(runRuledump(t, l.Node, "live", "-o", "json")), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(objects), objects} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	manifests := []string{"--manifests", filepath.Join(objects, "manifests"), "--config", filepath.Join(objects, "config.yaml"), "--node", "node-1"}
	packet := []string{"--from=198.51.100.7", "--to=10.96.0.10:80"}
	for _, command := range [][]string{
		{"services"}, append([]string{"explain"}, packet...), append([]string{"diff"}, manifests...), {"stats"}, {"stats", "-o", "metrics"},
		{"graph", "shop/web"}, {"connections"}, {"top"}, {"watch"}, {"trace", "--yes", "--to=shop/web"}, {"live"}, {"live", "-o", "json"}, {"live", "--clients"}, {"report", "-o", "-"},
	} {
		t.Run(strings.Join(command, " "), func(t *testing.T) {
			const want = "operation not permitted; nftables needs CAP_NET_ADMIN in the user namespace that owns the network namespace\n"
			status, output := nobody(t, l.Node, command...)
			if status != 2 || !strings.HasPrefix(output, "ruledump: ") || !strings.HasSuffix(output, want) || strings.Count(output, "\n") != 1 {
				t.Errorf("status %d, %q; want status 2 and one line that ends with %q", status, output, want)
			}
		})
	}
	for _, command := range [][]string{
		append([]string{"services"}, manifests...), {"services", "--dump", dumped}, append([]string{"compile"}, manifests...),
		append([]string{"explain", "--dump", dumped}, packet...), {"stats", "--dump", dumped}, {"graph", "shop/web", "--dump", dumped},
		append([]string{"diff", "--dump", dumped}, manifests...), {"live", "--dump", dumped}, {"schema"},
	} {
		t.Run("which is not needed for/"+command[0], func(t *testing.T) {
			if status, output := nobody(t, l.Node, command...); status != 0 {
				t.Errorf("status %d, %s", status, output)
			}
		})
	}
}

// A kernel without the proxy's tables is an error, in one line; to diff it is a difference.
func testRuledumpWithoutTables(t *testing.T) {
	l := lab.ForTest(t)
	lab.Nft(t, l.Node, "", "add", "table", "ip", "filter") // another program's does not count
	const want = "ruledump: the kernel has no table ip kube-proxy or ip6 kube-proxy in this network namespace, and no other mode of kube-proxy has rules: see whether the proxy runs, and whether this is the node's own namespace\n"
	run := func(args ...string) (status int, output string) {
		p := lab.Start(t, l.Node, "ruledump", args...)
		_ = p.Wait() // the status says it
		return p.Cmd.ProcessState.ExitCode(), lab.Abandoned.ReplaceAllString(p.Output(), "")
	}
	for _, command := range [][]string{{"services"}, {"explain", "--from=198.51.100.7", "--to=10.96.0.10:80"}, {"stats"}, {"graph", "shop/web"}, {"live"}} {
		t.Run(command[0], func(t *testing.T) {
			if status, output := run(command...); status != 2 || output != want {
				t.Errorf("status %d, %q", status, output)
			}
		})
	}
	t.Run("diff", func(t *testing.T) {
		status, output := run("diff", "--manifests", exampleManifests, "--config", exampleConfig, "--node", "node-1")
		if status != 1 || !strings.HasPrefix(output, want) {
			t.Errorf("status %d, %q", status, output)
		}
		for _, want := range []string{"- shop/web:http 10.96.0.10:80/TCP (ClusterIP): missing\n", "  - ip kube-proxy: table\n", "  - ip6 kube-proxy: table\n"} {
			if !strings.Contains(output, want) {
				t.Errorf("no %q in\n%s", want, output)
			}
		}
	})
	t.Run("kube-proxy's own table", func(t *testing.T) {
		lab.Nft(t, l.Node, "add table ip kube-proxy { comment \"rules for kube-proxy\"; }\nadd map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }", "-f", "-")
		for _, command := range [][]string{{"services"}, {"stats"}, {"diff", "--manifests", exampleManifests, "--config", exampleConfig, "--node", "node-1"}} {
			if status, output := run(command...); status != 2 || !strings.Contains(output, "table ip kube-proxy ") || strings.Count(output, "\n") != 1 {
				t.Errorf("%s: status %d, %q", command[0], status, output)
			}
		}
	})
}

// watchCost is the line that ruledump watch begins with, when it hears of commits.
const watchCost = "ruledump: while this runs, the kernel describes each element of each commit on this machine, in all network namespaces, in 8 KB of memory each; large commits take longer\n"

// Each commit to the proxy's tables is told, with who made it.
func testRuledumpWatch(t *testing.T) {
	l := lab.ForTest(t)
	conn := lab.Conn(t, l.Node)
	replace(t, conn, exampleTables(t))
	p := lab.Start(t, l.Node, "ruledump", "watch", "--parts=3")
	p.Says(t, watchCost)
	lab.Nft(t, l.Node, "", "add", "rule", "ip", "kube-proxy", "services", "counter", "accept")
	lab.Nft(t, l.Node, "", "add", "table", "ip", "other")
	lab.Nft(t, l.Node, "", "delete", "element", "ip", "kube-proxy", "service-ips", "{ 10.96.0.10 . tcp . 80 }")
	p.Says(t, `- element ip kube-proxy service-ips 10.96.0.10 . tcp . 80 comment "shop/web:http" : goto cluster-3`)
	lab.Nft(t, l.Node, "", "flush", "ruleset")
	p.Says(t, "-table 2")
	p.Says(t, "more\n")
	replace(t, conn, exampleTables(t))
	p.Says(t, "+table 2")
	for _, want := range []string{"by external: nft (", "+ rule ip kube-proxy services counter accept", fmt.Sprintf("by external: integration.tes (pid %d)", os.Getpid())} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("no %q in\n%s", want, p.Output())
		}
	}
	// This process outlives its commit, so its parent is known; nft may have ended.
	parent, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("integration.tes (pid %d), started by %s (pid %d)", os.Getpid(), strings.TrimSpace(string(parent)), os.Getppid()); !strings.Contains(p.Output(), want) {
		t.Errorf("no %q in\n%s", want, p.Output())
	}
	if strings.Contains(p.Output(), "other") {
		t.Errorf("tells of another table:\n%s", p.Output())
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("ends with %v", err)
	}
}

// A cluster's objects give the same answers as manifests of them, and nothing is written to the cluster.
func testRuledumpKubeconfig(t *testing.T) {
	l := lab.ForTest(t)
	server, kubeconfig := lab.APIServer(t, l.Node)
	lab.Upload(t, server, exampleManifests)
	for _, command := range [][]string{{"services", "-o", "wide"}, {"compile"}, {"explain", "--from=198.51.100.7", "--to=192.0.2.10:80"}, {"graph", "shop/web"}} {
		t.Run(command[0], func(t *testing.T) {
			from := append(command, "--config", exampleConfig, "--node", "node-1")
			want := runRuledump(t, l.Node, append(from, "--manifests", exampleManifests)...)
			if diff := cmp.Diff(want, runRuledump(t, l.Node, append(from, "--kubeconfig", kubeconfig)...)); diff != "" {
				t.Errorf("-manifests +cluster:\n%s", diff)
			}
		})
	}
	for _, r := range server.Requests("", "") {
		if r.Verb != "list" {
			t.Errorf("%+v", r)
		}
	}
}

// A node-local server gives the same answers as the manifests that it serves, but for the places of endpoints, which it
// does not tell.
func testRuledumpNodeLocal(t *testing.T) {
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	target, _ := flows.Serve(t, exampleManifests)
	for _, command := range [][]string{
		{"services"}, {"compile"}, {"explain", "--from=198.51.100.7", "--to=192.0.2.10:80"}, {"stats"}, {"diff"},
	} {
		t.Run(command[0], func(t *testing.T) {
			from := append(command, "--config", exampleConfig, "--node", "node-1")
			want := runRuledump(t, l.Node, append(from, "--manifests", exampleManifests)...)
			if diff := cmp.Diff(want, runRuledump(t, l.Node, append(from, "--node-local", target)...)); diff != "" {
				t.Errorf("-manifests +node-local:\n%s", diff)
			}
		})
	}
	t.Run("that is away is an error", func(t *testing.T) {
		p := lab.Start(t, l.Node, "ruledump", "services", "--node-local", "unix:///nonexistent.sock", "--node", "node-1")
		_ = p.Wait() // the status says it
		want := "ruledump: node-local server unix:///nonexistent.sock: no state of the node within 10s: "
		if status := p.Cmd.ProcessState.ExitCode(); status != 2 || !strings.HasPrefix(p.Output(), want) || !strings.Contains(p.Output(), "no such file or directory") {
			t.Errorf("status %d, %q", status, p.Output())
		}
	})
}

// explain tells finished connections from live ones, and marks those to what is no endpoint any more.
func testRuledumpConnections(t *testing.T) {
	l := lab.ForTest(t)
	conn := lab.Conn(t, l.Node)
	replace(t, conn, exampleTables(t))
	endpoints := []string{"10.244.1.5", "10.244.1.6"}
	for _, addr := range endpoints {
		pod, err := l.AddPod(addr, netip.MustParseAddr(addr))
		if err != nil {
			t.Fatal(err)
		}
		lab.ServeTCP(t, pod, addr+":8080", lab.Echo)
	}
	const client, dialed = "198.51.100.7", "192.0.2.10:80"
	explained := func() (e verb.Explanation) {
		t.Helper()
		if err := json.Unmarshal([]byte(runRuledump(t, l.Node, "explain", "--from="+client, "--to="+dialed, "-o=json")), &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := l.Outside.DialContext(t.Context(), "tcp", dialed)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	// Ended connections first, so that the live one is not the first by chance alone.
	for range 3 {
		dial().Close()
	}
	live := dial()
	if _, err := live.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var e verb.Explanation
	await.Until(t, "three of four connections have finished", func() error {
		if e = explained(); e.ConnectionsTotal != 4 || e.ConnectionsFinished != 3 {
			return fmt.Errorf("%+v", e.Connections)
		}
		return nil
	})
	if first := e.Connections[0]; first.State != "ESTABLISHED" || first.Finished || first.NoEndpoint || first.Source.String() != live.LocalAddr().String() {
		t.Errorf("first is %+v, want the live one, %s", first, live.LocalAddr())
	}
	if last := e.Connections[3]; last.State != "TIME_WAIT" || !last.Finished {
		t.Errorf("last is %+v, want one in TIME_WAIT", last)
	}

	server := e.Connections[0].Server
	key := fmt.Sprintf("192.0.2.10 . tcp . 80 . %d", slices.Index(endpoints, server.Addr().String()))
	lab.Nft(t, l.Node, fmt.Sprintf("delete element ip kube-proxy local-endpoints { %s }\nadd element ip kube-proxy local-endpoints { %s : 10.244.1.9 . 8080 }\n"+
		"delete element ip kube-proxy endpoints { %s }\nadd element ip kube-proxy endpoints { %s : 10.244.1.9 . 8080 }\n", key, key, key, key), "-f", "-")
	if first := explained().Connections[0]; !first.NoEndpoint || first.Server != server {
		t.Errorf("first is %+v, want one to an endpoint that is gone, %s", first, server)
	}
	text := runRuledump(t, l.Node, "explain", "--from="+client, "--to="+dialed)
	for _, want := range []string{
		"conntrack has connections of the client to this address (4, 3 of them finished); changed rules do not move them",
		fmt.Sprintf("  %s to %s: answered by %s, ESTABLISHED; the rules have no such endpoint\n", live.LocalAddr(), dialed, server),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Beside a running proxy, the node has the name that the proxy gives it, and diff takes the proxy's settings.
func testRuledumpBesideAProxy(t *testing.T) {
	l := lab.ForTest(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: 10.244.0.0/16\n" +
		"nftables: {masqueradeBit: 7}\nnodePortAddresses: [192.168.0.0/24, \"fd00:1::/64\"]\nfeatureGates: {NFTProxyServiceCounters: true}\nconntrack: {maxPerCore: 0, min: 0}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy := lab.Start(t, l.Node, "kube-proxy", "--config="+config, "--hostname-override=node-1", "--manifests="+exampleManifests)
	run := func(args ...string) (status int, output string) {
		p := lab.Start(t, l.Node, "ruledump", args...)
		_ = p.Wait() // the status says it
		return p.Cmd.ProcessState.ExitCode(), p.Output()
	}
	diff := []string{"diff", "--manifests", exampleManifests, "--node", "node-1"}
	await.Until(t, "diff finds no difference", func() error {
		const want = "compared with settings of the proxy at 127.0.0.1:10249\nno difference\n"
		if status, output := run(diff...); status != 0 || output != want {
			return fmt.Errorf("status %d, %s", status, output)
		}
		return nil
	})
	if status, output := run(append(diff, "--proxy-address=")...); status != 1 || !strings.HasPrefix(output, "compared with kube-proxy's default settings\n") {
		t.Errorf("with default settings: status %d, %s", status, output)
	}
	if status, output := run(append(diff, "--config", config)...); status != 0 || output != "no difference\n" {
		t.Errorf("with --config: status %d, %s", status, output)
	}
	if _, output := run("diff", "--manifests", exampleManifests, "--node", "node-2"); !strings.Contains(output, "ruledump: the proxy at 127.0.0.1:10249 says that this is node node-1, and --node is node-2\n") {
		t.Errorf("for another node:\n%s", output)
	}
	for want, command := range map[string][]string{
		"node node-1, ":                                         {"stats"},
		"shop/web on node-1":                                    {"graph", "shop/web"},
		"sent to one of 2 endpoints on node-1":                  {"explain", "--from=198.51.100.7", "--to=192.0.2.10:80"},
		"\"node\": \"node-1\",\n  \"nodeSource\": \"proxy\",\n": {"services", "-o=json"},
	} {
		if status, output := run(command...); status != 0 || !strings.Contains(output, want) {
			t.Errorf("%s has no %q:\n%s", command[0], want, output)
		}
	}
	if _, output := run("check"); !strings.Contains(output, "\nproxy: applied, last sync at ") {
		t.Errorf("check does not know the proxy:\n%s", output)
	}
	t.Run("report has its pages", func(t *testing.T) { expectReport(t, l.Node) })
	if err := proxy.Stop(t); err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if _, output := run("stats"); !lab.Abandoned.MatchString(output) {
		t.Errorf("nothing says that no proxy keeps the rules: %s", output)
	}
	withNote := run
	run = func(args ...string) (status int, output string) {
		status, output = withNote(args...)
		return status, lab.Abandoned.ReplaceAllString(output, "")
	}
	if status, output := run("stats"); status != 0 || !strings.HasPrefix(output, "node "+host+" (host name), ") {
		t.Errorf("without the proxy: status %d, %s", status, output)
	}
	status, output := run(diff...)
	const want = "connection refused: give its metrics address (--proxy-address), its configuration file (--config), or --proxy-address= for kube-proxy's defaults\n"
	if status != 2 || !strings.HasPrefix(output, "ruledump: no proxy answers at http://127.0.0.1:10249/configz: ") || !strings.HasSuffix(output, want) {
		t.Errorf("without the proxy: status %d, %s", status, output)
	}
}
