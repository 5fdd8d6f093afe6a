package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// kubeadm's ConfigMap and command line, and an API server: what a node of a cluster made with kubeadm has, on which only the program
// was exchanged.
func testKubeProxyTakesThePlaceOfKubeadmsKubeProxy(t *testing.T) {
	f := newWithServer(t)
	configuration := kubeadmConfig(t)
	f.want = compileFor(t, f.g, configuration)
	script := fmt.Sprintf(`
		mount -t tmpfs tmpfs /var/lib
		mkdir /var/lib/kube-proxy
		cp %s /var/lib/kube-proxy/config.conf
		cp %s /var/lib/kube-proxy/kubeconfig.conf`, configuration, f.kubeconfig)
	p := lab.StartCommand(t, f.lab.Node, inMounts(script, lab.Binary(t, "kube-proxy"), "--config=/var/lib/kube-proxy/config.conf", "--hostname-override="+lab.NodeName))
	f.applied(t)
	sendFlows(t, f.lab, f.g)
	f.hasEvent(t, "Starting")
	for _, url := range []string{"http://127.0.0.1:10256/healthz", "http://127.0.0.1:10249/metrics"} {
		if _, err := getFrom(f.lab.Node, url); err != nil {
			t.Error(err)
		}
	}
	if errors := p.Errors(); len(errors) > 0 {
		t.Errorf("error lines %q, want none", errors)
	}

	inside := filepath.Join("/proc", fmt.Sprint(p.Cmd.Process.Pid), "root/var/lib/kube-proxy/config.conf")
	data, err := os.ReadFile(inside)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(inside, append(data, "# changed\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Fails(t, "configuration /var/lib/kube-proxy/config.conf has changed: exiting, to be restarted with it")
	f.stays(t)
}
