package apiservertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// startTimeout bounds the time until both etcd and kube-apiserver answer.
const startTimeout = 2 * time.Minute

// StartBinaries starts the etcd and the kube-apiserver in folder assets (what KUBEBUILDER_ASSETS
// names), empty and on free loopback ports, and returns a kubeconfig for them. Everybody with the
// token may do everything. Both are stopped when the test ends; what they logged is shown if it
// failed.
func StartBinaries(tb testing.TB, assets string) (kubeconfig string) {
	tb.Helper()
	dir := tb.TempDir()
	ports := freePorts(tb, 3)
	client, peer := "http://"+ports[0], "http://"+ports[1]
	startBinary(tb, filepath.Join(assets, "etcd"),
		"--name=test", "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer)

	cert, err := NewAuthority(serverName, time.Now().Add(aDay))
	if err != nil {
		tb.Fatalf("making a certificate: %v", err)
	}
	token := rand.Text()
	certFile := writeFile(tb, dir, "tls.crt", cert.CertPEM())
	keyFile := writeFile(tb, dir, "tls.key", cert.KeyPEM())
	tokenFile := writeFile(tb, dir, "tokens.csv", fmt.Appendf(nil, "%s,%s,1,system:masters\n", token, user))
	_, port, _ := net.SplitHostPort(ports[2])
	startBinary(tb, filepath.Join(assets, "kube-apiserver"),
		"--etcd-servers="+client, "--bind-address=127.0.0.1", "--secure-port="+port,
		"--tls-cert-file="+certFile, "--tls-private-key-file="+keyFile, "--cert-dir="+dir,
		"--token-auth-file="+tokenFile, "--authorization-mode=RBAC",
		"--service-account-issuer=https://"+serverName,
		"--service-account-key-file="+certFile, "--service-account-signing-key-file="+keyFile,
		"--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount")

	kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(kubeconfig, "https://"+ports[2], cert.CertPEM(), token); err != nil {
		tb.Fatalf("writing a kubeconfig: %v", err)
	}
	waitUntilReady(tb, kubeconfig)
	return kubeconfig
}

// startBinary starts a program that is told to end, and waited for, when the test ends.
func startBinary(tb testing.TB, path string, args ...string) {
	tb.Helper()
	var output bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		tb.Fatalf("starting %s: %v", path, err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait() // ended by a signal: always an error
		if tb.Failed() {
			tb.Logf("%s said:\n%s", filepath.Base(path), output.String())
		}
	})
}

// waitUntilReady polls /readyz with the kubeconfig's credentials.
func waitUntilReady(tb testing.TB, kubeconfig string) {
	tb.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		tb.Fatalf("reading back the kubeconfig: %v", err)
	}
	config.NegotiatedSerializer = Codecs
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		tb.Fatalf("making a client: %v", err)
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
			tb.Fatalf("kube-apiserver is not ready after %v: status %d: %v", startTimeout, status, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// freePorts returns loopback addresses that nobody listens on. Another process could take one
// before it is used; the program that wants it then fails to start, and says so.
func freePorts(tb testing.TB, n int) []string {
	tb.Helper()
	var free []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatalf("looking for a free port: %v", err)
		}
		defer l.Close() // all at the end, so that no port is found twice
		free = append(free, l.Addr().String())
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
