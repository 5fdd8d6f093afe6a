package integration

import (
	"bytes"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/integration/await"
	"github.com/nftproxy/nftproxy/integration/syscalls"
	"golang.org/x/sys/unix"
)

// A transaction that the kernel does not answer, and the kubelet, which kills what has not ended 30 s
// after SIGTERM.
func TestSIGTERM(t *testing.T) {
	t.Run("during a sync that does not end, the proxy ends with code 0", func(t *testing.T) {
		f := newWithServer(t)
		hangs, release := make(chan struct{}), make(chan struct{})
		hang := sync.OnceFunc(func() { close(hangs) })
		t.Cleanup(func() { close(release) })
		p := f.startFiltered(t, syscalls.Calls(syscalls.Judged, unix.SYS_SENDMSG), func(c *syscalls.Call) syscalls.Verdict {
			if bytes.Contains(c.Message(), []byte("shop/hanging")) {
				hang()
				<-release
			}
			return syscalls.Pass
		}, "--kubeconfig="+f.kubeconfig)
		f.applied(t)
		service, slice := outageObjects("10.244.1.5")
		service.Name, slice.Name, service.Spec.ClusterIP, service.Spec.ClusterIPs = "hanging", "hanging", "10.96.0.99", []string{"10.96.0.99"}
		slice.Labels["kubernetes.io/service-name"] = "hanging"
		(&uploader{t, f.server}).create(service)
		(&uploader{t, f.server}).create(slice)
		select {
		case <-hangs:
		case <-time.After(await.Patience):
			t.Fatalf("no sync of the Service; the log:\n%s", p.Output())
		}

		if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- p.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("it ended with %v", err)
			}
		case <-time.After(20 * time.Second):
			p.Cmd.Process.Kill()
			<-ended
			t.Errorf("still running after 20 s; the log:\n%s", p.Output())
		}
		if log := p.Output(); !strings.Contains(log, "Leaving a sync that is still under way") || !strings.Contains(log, "Stopping; the rules stay in the kernel") {
			t.Errorf("the log does not say why:\n%s", log)
		}
		f.stays(t)
	})
}
