package apiservertest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// startTimeout bounds the time until both etcd and kube-apiserver answer.
const startTimeout = 2 * time.Minute

// RealOptions say how the programs run.
type RealOptions struct {
	// Assets is the folder with etcd and kube-apiserver, such as `make kubernetes` writes.
	Assets string
	// Do calls a function where the programs run. Default: where the test runs.
	Do func(func() error) error
	// Dial reaches the programs. Default: from where the test runs.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// ServiceRange has the ranges from which ClusterIPs are allocated, separated by commas. The first address of the first
	// range belongs to Service default/kubernetes. Default: 10.96.0.0/16,fd00:10:96::/112.
	ServiceRange string
	// WithoutWatchList turns streaming lists off, as in servers older than Kubernetes 1.32.
	WithoutWatchList bool
}

// Real is Kubernetes' own kube-apiserver with an etcd, on free loopback ports. It has what [Server] leaves out: defaults,
// validation, the allocation of ClusterIPs, storage.
type Real struct {
	// Kubeconfig is the path of a file with the server and a token. Everybody with the token may do everything.
	Kubeconfig string

	tb               testing.TB
	options          RealOptions
	data             string
	etcdURL          string
	etcdArgs, args   []string
	etcd, apiserver  *binary
	restClientConfig *rest.Config
}

// StartBinaries starts the etcd and the kube-apiserver in folder assets (what KUBEBUILDER_ASSETS
// names), empty, and returns a kubeconfig for them. Both are stopped when the test ends; what they
// logged is shown if it failed.
func StartBinaries(tb testing.TB, assets string) (kubeconfig string) {
	tb.Helper()
	return StartReal(tb, RealOptions{Assets: assets}).Kubeconfig
}

// StartReal starts both programs without objects, and waits until they are ready. They end with the test; what they
// logged is shown if it failed.
func StartReal(tb testing.TB, options RealOptions) *Real {
	tb.Helper()
	if options.Do == nil {
		options.Do = func(fn func() error) error { return fn() }
	}
	if options.Dial == nil {
		options.Dial = (&net.Dialer{}).DialContext
	}
	dir := tb.TempDir()
	r := &Real{Kubeconfig: filepath.Join(dir, "kubeconfig"), tb: tb, options: options, data: filepath.Join(dir, "etcd")}
	ports := r.freePorts(3)
	client, peer := "http://"+ports[0], "http://"+ports[1]
	r.etcdURL = client
	r.etcdArgs = []string{
		"--name=test", "--data-dir=" + r.data, "--unsafe-no-fsync",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer,
	}
	cert, err := NewAuthority(serverName, time.Now().Add(aDay))
	if err != nil {
		tb.Fatalf("making a certificate: %v", err)
	}
	token := rand.Text()
	certFile := writeFile(tb, dir, "tls.crt", cert.CertPEM())
	keyFile := writeFile(tb, dir, "tls.key", cert.KeyPEM())
	tokenFile := writeFile(tb, dir, "tokens.csv", fmt.Appendf(nil, "%s,%s,1,system:masters\n", token, user))
	_, port, _ := net.SplitHostPort(ports[2])
	r.args = []string{
		"--etcd-servers=" + client, "--bind-address=127.0.0.1", "--secure-port=" + port,
		// Kubernetes 1.37 refuses to advertise a loopback address, unless nobody writes the endpoints of Service kubernetes.
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--tls-cert-file=" + certFile, "--tls-private-key-file=" + keyFile, "--cert-dir=" + dir,
		"--token-auth-file=" + tokenFile, "--authorization-mode=RBAC",
		"--service-account-issuer=https://" + serverName,
		"--service-account-key-file=" + certFile, "--service-account-signing-key-file=" + keyFile,
		"--service-cluster-ip-range=" + cmp.Or(options.ServiceRange, "10.96.0.0/16,fd00:10:96::/112"), "--disable-admission-plugins=ServiceAccount",
	}
	if options.WithoutWatchList {
		r.args = append(r.args, "--feature-gates=WatchList=false")
	}
	if err := writeKubeconfig(r.Kubeconfig, "https://"+ports[2], cert.CertPEM(), token); err != nil {
		tb.Fatalf("writing a kubeconfig: %v", err)
	}
	if r.restClientConfig, err = clientcmd.BuildConfigFromFlags("", r.Kubeconfig); err != nil {
		tb.Fatalf("reading back the kubeconfig: %v", err)
	}
	r.restClientConfig.NegotiatedSerializer, r.restClientConfig.Dial = Codecs, options.Dial
	tb.Cleanup(r.end)
	r.StartStorage()
	r.Start()
	return r
}

// end stops both programs, and shows what they logged if the test failed.
func (r *Real) end() {
	for _, b := range []*binary{r.apiserver, r.etcd} {
		if b == nil {
			continue
		}
		b.stop()
		if r.tb.Failed() {
			r.tb.Logf("%s said:\n%s", filepath.Base(b.cmd.Path), b.output.String())
		}
	}
}

// Start starts kube-apiserver and waits until it is ready.
func (r *Real) Start() {
	r.tb.Helper()
	r.apiserver = r.start("kube-apiserver", r.args)
	r.awaitReady()
}

// Stop ends kube-apiserver in good order.
func (r *Real) Stop() { r.apiserver.stop() }

// Kill ends kube-apiserver at once, with SIGKILL.
func (r *Real) Kill() {
	_ = r.apiserver.cmd.Process.Kill()
	r.apiserver.stop()
}

// StartStorage starts etcd.
func (r *Real) StartStorage() {
	r.tb.Helper()
	r.etcd = r.start("etcd", r.etcdArgs)
}

// StopStorage ends etcd.
func (r *Real) StopStorage() { r.etcd.stop() }

// WipeStorage deletes all that etcd has stored, while it is stopped. It returns the directory to which it moved that.
func (r *Real) WipeStorage() (backup string) {
	r.tb.Helper()
	backup = filepath.Join(r.tb.TempDir(), "etcd")
	if err := os.Rename(r.data, backup); err != nil {
		r.tb.Fatal(err)
	}
	return backup
}

// RestoreStorage puts back what WipeStorage moved, while etcd is stopped.
func (r *Real) RestoreStorage(backup string) {
	r.tb.Helper()
	if err := errors.Join(os.RemoveAll(r.data), os.Rename(backup, r.data)); err != nil {
		r.tb.Fatal(err)
	}
}

// Compact has etcd forget the history up to now. Watches from an earlier version expire, once kube-apiserver has
// forgotten it too, which it does when it starts.
func (r *Real) Compact() {
	r.tb.Helper()
	key := base64.StdEncoding.EncodeToString([]byte("/"))
	var now struct{ Header struct{ Revision string } }
	r.askStorage("/v3/kv/range", map[string]any{"key": key, "count_only": true}, &now)
	r.askStorage("/v3/kv/compaction", map[string]any{"revision": now.Header.Revision, "physical": true}, &struct{}{})
}

// askStorage sends a request to etcd's JSON gateway.
func (r *Real) askStorage(path string, request map[string]any, answer any) {
	r.tb.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		r.tb.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DialContext: r.options.Dial, DisableKeepAlives: true}, Timeout: startTimeout}
	response, err := client.Post(r.etcdURL+path, "application/json", bytes.NewReader(body))
	if err != nil {
		r.tb.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	if err := errors.Join(err, json.Unmarshal(text, answer)); err != nil {
		r.tb.Fatalf("etcd %s: %v: %s", path, err, text)
	}
}

// Config is a client configuration for kube-apiserver.
func (r *Real) Config() *rest.Config { return rest.CopyConfig(r.restClientConfig) }

// awaitReady polls /readyz with the kubeconfig's credentials.
func (r *Real) awaitReady() {
	r.tb.Helper()
	client, err := rest.UnversionedRESTClientFor(r.restClientConfig)
	if err != nil {
		r.tb.Fatalf("making a client: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		var status int
		err := client.Get().AbsPath("/readyz").Do(ctx).StatusCode(&status).Error()
		if status == http.StatusOK {
			return
		}
		select {
		case <-ctx.Done():
			r.tb.Fatalf("kube-apiserver is not ready after %v: status %d: %v", startTimeout, status, err)
		case <-r.apiserver.ended:
			r.tb.Fatalf("kube-apiserver has ended: %v\n%s", r.apiserver.cmd.ProcessState, r.apiserver.output.String())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// binary is a program that runs.
type binary struct {
	cmd    *exec.Cmd
	output await.Buffer
	// ended is closed when the process has ended.
	ended chan struct{}
}

// start starts a program of the folder.
func (r *Real) start(name string, args []string) *binary {
	r.tb.Helper()
	b := &binary{cmd: exec.Command(filepath.Join(r.options.Assets, name), args...), ended: make(chan struct{})}
	b.cmd.Stdout, b.cmd.Stderr = &b.output, &b.output
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends the test, which ends the programs in turn
	if err := r.options.Do(b.cmd.Start); err != nil {
		r.tb.Fatalf("starting %s: %v", name, err)
	}
	go func() {
		defer close(b.ended)
		_ = b.cmd.Wait() // ended by a signal: always an error
	}()
	return b
}

// stop tells the program to end, and waits until it has.
func (b *binary) stop() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(20*time.Second, func() { _ = b.cmd.Process.Kill() })
	defer kill.Stop()
	<-b.ended
}

// freePorts returns loopback addresses that nobody listens on where the programs run. Another process could take one
// before it is used; the program that wants it then fails to start, and says so.
func (r *Real) freePorts(n int) (free []string) {
	r.tb.Helper()
	if err := r.options.Do(func() error {
		for range n {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			defer l.Close() // all at the end, so that no port is found twice
			free = append(free, l.Addr().String())
		}
		return nil
	}); err != nil {
		r.tb.Fatalf("looking for a free port: %v", err)
	}
	return free
}

func writeFile(tb testing.TB, dir, name string, data []byte) string {
	tb.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}
