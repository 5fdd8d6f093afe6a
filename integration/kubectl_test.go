package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// cluster is an API server with a proxy's pod on a node, and kubectl's plugin elsewhere.
type cluster struct {
	*lab.Lab
	server             *apiservertest.Server
	kubeconfig, plugin string
	// stdin is the standard input of the plugin.
	stdin string
}

// proxyPod returns a proxy's pod on a node.
func proxyPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"k8s-app": "kube-proxy"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "sidecar"}, {Name: "kube-proxy"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func newCluster(t *testing.T, plugin string, options apiservertest.Options) *cluster {
	t.Helper()
	c := &cluster{Lab: lab.ForTest(t), plugin: plugin, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	replace(t, lab.Conn(t, c.Node), exampleTables(t))
	if err := c.Outside.Do(func() error {
		c.server = apiservertest.Start(t, options)
		return c.server.WriteKubeconfig(c.kubeconfig)
	}); err != nil {
		t.Fatal(err)
	}
	lab.Upload(t, c.server, exampleManifests)
	client := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "client"}, Spec: corev1.PodSpec{NodeName: "node-1"}}
	client.Status.PodIP, client.Status.PodIPs = "10.244.1.250", []corev1.PodIP{{IP: "10.244.1.250"}, {IP: "fd00:10:244:1::250"}}
	lab.Create(t, c.server, client, proxyPod("kube-proxy-1", "node-1"), proxyPod("kube-proxy-2", "node-2"))
	ruledump := lab.Binary(t, "ruledump")
	c.server.SetKubelet(apiservertest.Kubelet{
		Log: func(_, pod string) string { return "the log of " + pod + "\n" },
		Exec: func(ctx context.Context, in *apiservertest.Command) (int, error) {
			if in.Pod != "kube-proxy-1" || in.Container != "kube-proxy" {
				return 0, fmt.Errorf("exec: %q: executable file not found in $PATH", in.Args[0])
			}
			cmd := exec.CommandContext(ctx, ruledump, in.Args[1:]...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = in.Stdin, in.Stdout, in.Stderr, await.Patience
			if err := c.Node.Do(cmd.Start); err != nil {
				return 0, err
			}
			err := cmd.Wait()
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				return exit.ExitCode(), nil
			}
			return 0, err
		},
	})
	return c
}

// run runs the plugin outside the node.
func (c *cluster) run(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*await.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.plugin, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), &out, &errs
	if err := c.Outside.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the status says it
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestKubectl(t *testing.T) {
	t.Parallel()
	plugin := filepath.Join(t.TempDir(), "kubectl-nftproxy")
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath", "-o", plugin, "../cmd/kubectl-nftproxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for name, test := range map[string]func(*testing.T, string){
		"answers as ruledump on the node":    testKubectlAnswers,
		"answers over SPDY too":              testKubectlSPDY,
		"names pods":                         testKubectlNames,
		"checks all nodes":                   testKubectlCheck,
		"gives ruledump a terminal":          testKubectlTerminal,
		"writes a report with the pod's log": testKubectlReport,
		"says which flag helps":              testKubectlErrors,
		"says which permission it lacks":     testKubectlForbidden,
	} {
		t.Run(name, func(t *testing.T) { test(t, plugin) })
	}
}

func testKubectlAnswers(t *testing.T, plugin string) {
	c := newCluster(t, plugin, apiservertest.Options{})
	onNode := func(args ...string) string { return runRuledump(t, c.Node, args...) }
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"a pod and a Service":             {[]string{"explain", "pod/client", "svc/web", "-n", "shop"}, onNode("explain", "--from=10.244.1.250", "--to=10.96.0.10:80/tcp")},
		"names with namespaces":           {[]string{"explain", "pod/shop/client", "service/shop/web:http"}, onNode("explain", "--from=10.244.1.250", "--to=10.96.0.10:80/tcp")},
		"an address":                      {[]string{"-nshop", "--node=node-1", "explain", "198.51.100.7", "svc/web:80"}, onNode("explain", "--from=198.51.100.7", "--to=10.96.0.10:80/tcp")},
		"flags of ruledump":               {[]string{"explain", "-o", "json", "--from=pod/shop/client", "--to", "192.0.2.10:80"}, onNode("explain", "-o=json", "--from=10.244.1.250", "--to=192.0.2.10:80")},
		"Services of a namespace":         {[]string{"services", "-n", "shop", "--node", "node-1"}, onNode("services", "-n", "shop")},
		"a Service of services":           {[]string{"services", "svc/web", "-n=shop", "--pod=kube-proxy-1"}, onNode("services", "shop/web")},
		"a context of the kubeconfig":     {[]string{"services", "-A", "--node=node-1", "--kubeconfig", c.kubeconfig, "--selector=k8s-app in (kube-proxy)"}, onNode("services", "-A")},
		"a command that ruledump gets so": {[]string{"graph", "--node=node-1", "--", "-n", "shop", "web"}, onNode("graph", "-n", "shop", "web")},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := c.run(t, tt.args...)
			if diff := cmp.Diff(tt.want, stdout); diff != "" || status != 0 {
				t.Errorf("status %d (-on the node +kubectl nftproxy):\n%s%s", status, diff, stderr)
			}
		})
	}
	t.Run("ruledump's exit status is its own", func(t *testing.T) {
		status, stdout, stderr := c.run(t, "services", "--node=node-1", "svc/shop/none")
		if status != 2 || stdout != "" || !strings.Contains(stderr, "ruledump: the rules have no ") {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
	})
	if n := len(c.server.Requests("list", "services")); n > 0 {
		t.Errorf("%d requests to list all Services", n)
	}
}

// The names come by the access of the proxy whose pod runs ruledump.
func testKubectlNames(t *testing.T, plugin string) {
	c := newCluster(t, plugin, apiservertest.Options{})
	server, kubeconfig := lab.APIServer(t, c.Node)
	uploadPods(t, server)
	serveConfigz(t, c.Node, kubeconfig)
	for _, tt := range []struct {
		args  string
		named bool
	}{
		{"services svc/web -n shop -o wide --node node-1", true},
		{"explain pod/client svc/web -n shop", true},
		{"graph svc/shop/web --node=node-1", true},
		{"services svc/web -n shop -o wide --node node-1 --names=false", false},
	} {
		status, stdout, stderr := c.run(t, strings.Fields(tt.args)...)
		if named := strings.Contains(stdout, "=shop/web-0@node-1"); named != tt.named || status != 0 || stderr != "" {
			t.Errorf("%s: status %d\n%s%s", tt.args, status, stdout, stderr)
		}
	}
}

// The proxy's pod on the other node has no ruledump.
func testKubectlCheck(t *testing.T, plugin string) {
	c := newCluster(t, plugin, apiservertest.Options{})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := c.run(t, "check", "-n", "shop", "--", "--proxy-address=")
	for _, want := range []string{"NODE ", host + " ", "broken ", "node-2 ", "unknown ", "\nbroken  no ready endpoint ", "1: " + host, "shop/empty",
		"\nnode-2 is not known: pod kube-proxy-2 has no ruledump: "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if status != 1 {
		t.Errorf("status %d, want 1: %s", status, stderr)
	}
	if status, stdout, stderr = c.run(t, "check", "svc/shop/web", "--node=node-1", "-o", "json"); !strings.Contains(stdout, `"kind": "Check"`) || strings.Contains(stdout, "shop/empty") {
		t.Errorf("of one node: status %d\n%s%s", status, stdout, stderr)
	}
}

func testKubectlSPDY(t *testing.T, plugin string) {
	c := newCluster(t, plugin, apiservertest.Options{WithoutWebsockets: true})
	status, stdout, stderr := c.run(t, "explain", "pod/client", "svc/web", "-n", "shop")
	if diff := cmp.Diff(runRuledump(t, c.Node, "explain", "--from=10.244.1.250", "--to=10.96.0.10:80/tcp"), stdout); diff != "" || status != 0 {
		t.Errorf("status %d (-on the node +kubectl nftproxy):\n%s%s", status, diff, stderr)
	}
	status, _, stderr = c.run(t, "services", "--node=node-1", "svc/shop/none")
	if status != 2 || !strings.Contains(stderr, "ruledump: the rules have no ") {
		t.Errorf("status %d, %q", status, stderr)
	}
}

func testKubectlReport(t *testing.T, plugin string) {
	c := newCluster(t, plugin, apiservertest.Options{})
	report := filepath.Join(t.TempDir(), "report.tar.gz")
	status, stdout, stderr := c.run(t, "report", "-o", report, "--node", "node-1")
	if status != 0 || stdout != "" || !strings.HasSuffix(stderr, "kubectl nftproxy: wrote "+report+"\n") {
		t.Fatalf("status %d, %q, %q", status, stdout, stderr)
	}
	if log := readReport(t, report)["log.txt"]; log != "the log of kube-proxy-1\n" {
		t.Errorf("log.txt is %q", log)
	}
	if diff := cmp.Diff(runRuledump(t, c.Node, "services"), runRuledump(t, c.Outside, "services", "--dump", report)); diff != "" {
		t.Errorf("-on the node +from the report:\n%s", diff)
	}
	t.Run("without the permission to read logs has none", func(t *testing.T) {
		c.server.Refuse("pods/log", 403)
		status, stdout, stderr := c.run(t, "report", "--output=-", "--node", "node-1")
		if status != 0 || !strings.HasPrefix(stdout, "\x1f\x8b") || !strings.Contains(stderr, "not in the report: the log: ") || !strings.Contains(stderr, "resources: [pods/log], verbs: [get]") {
			t.Errorf("status %d, %.10q, %s", status, stdout, stderr)
		}
	})
	t.Run("that fails leaves no file, and the one before", func(t *testing.T) {
		before, fresh := readReport(t, report)["report.json"], filepath.Join(t.TempDir(), "fresh.tar.gz")
		for _, output := range []string{"-o" + fresh, "--output=" + report} {
			if status, _, _ := c.run(t, "report", "--bad", "--node", "node-1", output); status != 2 {
				t.Errorf("status %d", status)
			}
		}
		if _, err := os.Stat(fresh); !errors.Is(err, os.ErrNotExist) || readReport(t, report)["report.json"] != before {
			t.Errorf("%v", err)
		}
	})
	t.Run("goes to the file whose name is in the flag, with another log", func(t *testing.T) {
		joined := filepath.Join(t.TempDir(), "joined.tar.gz")
		c.stdin = "another log\n"
		defer func() { c.stdin = "" }()
		status, _, stderr := c.run(t, "report", "-o"+joined, "--node", "node-1", "--log", "-")
		if log := readReport(t, joined)["log.txt"]; status != 0 || log != c.stdin {
			t.Errorf("status %d, log %q: %s", status, log, stderr)
		}
	})
}

func testKubectlErrors(t *testing.T, plugin string) {
	c := newCluster(t, plugin, apiservertest.Options{})
	second := proxyPod("kube-proxy-3", "node-3")
	other := proxyPod("kube-proxy-4", "node-3")
	multiport := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "many"}, Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.99", ClusterIPs: []string{"10.96.0.99"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}, {Name: "dns", Port: 53, Protocol: "UDP"}},
	}}
	headless := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "headless"}, Spec: corev1.ServiceSpec{
		Type: "ClusterIP", ClusterIP: "None", ClusterIPs: []string{"None"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}},
	}}
	pending := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pending"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	lab.Create(t, c.server, second, other, multiport, headless, pending)
	for _, tt := range []struct {
		name, args, want string
	}{
		{"no node", "services", "4 nodes have a proxy: --node names the one to ask, and so does a client, such as pod/NAME"},
		{"a node without a proxy", "services --node node-9", "node node-9 has no running pod in namespace kube-system with labels k8s-app=kube-proxy: --proxy-namespace and --selector name the proxy's, --node another node"},
		{"no proxy", "services --selector app=none", "there is no running pod in namespace kube-system with labels app=none: --proxy-namespace and --selector name the proxy's"},
		{"two proxies", "services --node node-3", "node node-3 has several pods in namespace kube-system with labels k8s-app=kube-proxy: --pod chooses one of kube-proxy-3, kube-proxy-4"},
		{"a pod that is not there", "services --pod none", "there is no pod none in namespace kube-system (--proxy-namespace names another)"},
		{"a client that is not there", "explain pod/none svc/web", "there is no pod none in namespace default (-n names another)"},
		{"a client without an address", "explain pod/shop/pending svc/web", "pod shop/pending has no address yet (phase Pending)"},
		{"a Service that is not there", "explain pod/client svc/none -n shop", "there is no Service none in namespace shop (-n names another)"},
		{"a Service with two ports", "explain pod/client svc/many -n shop", "the Service shop/many has the ports [http:80, dns:53]: name one, as in svc/many:80"},
		{"a headless Service", "explain pod/client svc/headless -n shop", "the Service shop/headless has no ClusterIP of the client's IP family (type ClusterIP, ClusterIPs [None])"},
		{"a client alone", "explain pod/client -n shop", "explain takes a client and a destination, such as pod/a svc/b:80"},
		{"a file of this machine", "services --dump=node.json", "--dump reads a file on this machine, and the command runs in the proxy's pod: use ruledump"},
		{"a flag without its value", "services --node", "--node needs a value"},
		{"an image without ruledump", "services --node node-2", "pod kube-proxy-2 has no ruledump: --selector and --container name nftproxy's pods: "},
		{"no such context", "services --context none", `context "none" does not exist (--kubeconfig and --context say which cluster)`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, stdout, stderr := c.run(t, strings.Fields(tt.args)...)
			if status != 2 || stdout != "" || !strings.HasPrefix(stderr, "kubectl nftproxy: "+tt.want) {
				t.Errorf("status %d, %q\n%swant %s", status, stdout, stderr, tt.want)
			}
		})
	}
}

func testKubectlForbidden(t *testing.T, plugin string) {
	for resource, tt := range map[string]struct{ args, want string }{
		"pods/exec": {"services --node node-1", "a Role in namespace kube-system needs the rule {apiGroups: [\"\"], resources: [pods/exec], verbs: [create, get]}\n"},
		"pods":      {"services --node node-1", "a Role in namespace kube-system needs the rule {apiGroups: [\"\"], resources: [pods], verbs: [list]}\n"},
		"services":  {"explain pod/shop/client svc/shop/web", "a Role in namespace shop needs the rule {apiGroups: [\"\"], resources: [services], verbs: [get]}\n"},
	} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, plugin, apiservertest.Options{})
			c.server.Refuse(resource, 403)
			status, stdout, stderr := c.run(t, strings.Fields(tt.args)...)
			if status != 2 || stdout != "" || !strings.HasSuffix(stderr, tt.want) || !strings.Contains(stderr, "forbidden") {
				t.Errorf("status %d, %q\n%swant %s", status, stdout, stderr, tt.want)
			}
		})
	}
}

// On a terminal ruledump gets one too, and the answer is on it.
func testKubectlTerminal(t *testing.T, plugin string) {
	c := newCluster(t, plugin, apiservertest.Options{})
	asked := make(chan apiservertest.Command, 1)
	c.server.SetKubelet(apiservertest.Kubelet{Exec: func(_ context.Context, in *apiservertest.Command) (int, error) {
		asked <- *in
		_, err := in.Stdout.Write([]byte("on a terminal\r\n"))
		return 7, err
	}})
	master, slave := newTerminal(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*await.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, plugin, "services", "--node=node-1")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	if err := c.Outside.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if in := await.Receive(t, "what the server is asked for", asked); !in.TTY || in.Stdin == nil || in.Stderr != nil {
		t.Errorf("the server was asked for %+v", in)
	}
	_ = cmd.Wait() // the status says it
	written := []unix.PollFd{{Fd: int32(master.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(written, int(await.Patience.Milliseconds())); n == 0 {
		t.Fatalf("nothing is on the terminal: %v, status %d", err, cmd.ProcessState.ExitCode())
	}
	text := make([]byte, 100)
	n, err := master.Read(text)
	if status := cmd.ProcessState.ExitCode(); err != nil || string(text[:n]) != "on a terminal\r\n" || status != 7 {
		t.Errorf("status %d, %q, %v", status, text[:n], err)
	}
	if state, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil || state.Lflag&unix.ECHO == 0 {
		t.Errorf("the terminal was left raw: %v", err)
	}
}

// newTerminal returns both ends of a pseudo-terminal.
func newTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}
