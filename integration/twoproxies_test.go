package integration

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/integration/await"
	"github.com/nftproxy/nftproxy/integration/lab/labtest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Two proxies run on one node, as after somebody has deployed two DaemonSets.
func TestTwoProxies(t *testing.T) {
	t.Run("that want the same apply changes together", testTwoProxiesThatWantTheSame)
	t.Run("that differ name each other and back off", testTwoProxiesThatDiffer)
}

// faultService is a Service that clients of the lab can dial, with its endpoints on node-1.
func faultService(address string, endpoints ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	service, slice := outageObjects(endpoints...)
	service.Name, slice.Name = "fault", "fault"
	slice.Labels[discoveryv1.LabelServiceName] = "fault"
	service.Spec.ClusterIP, service.Spec.ClusterIPs = address, []string{address}
	return service, slice
}

// faultAddress is that of faultService in these tests.
const faultAddress = "10.96.0.77"

// reaches waits until a new connection to faultService reaches a pod.
func (f *troubled) reaches(t *testing.T, pod string) {
	t.Helper()
	f.reachesWithin(t, await.Patience, pod)
}

func (f *troubled) reachesWithin(t *testing.T, patience time.Duration, pod string) {
	t.Helper()
	await.Within(t, patience, "the Service leads to "+pod, func() error {
		conn, name, err := dialAt(f.lab.Client, faultAddress+":80")
		if err != nil {
			return err
		}
		conn.Close()
		if name != pod {
			return fmt.Errorf("it leads to %s", name)
		}
		return nil
	})
}

// processorTime is what a process has used of the processors so far.
func processorTime(t *testing.T, p *labtest.Process) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	ticks := 0
	for _, field := range strings.Fields(rest)[11:13] { // utime and stime, proc(5)
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all architectures
	return time.Duration(ticks) * tick
}

// startSecond starts a second proxy, with ports of its own.
func (f *withServer) startSecond(t *testing.T, args ...string) *labtest.Process {
	t.Helper()
	return f.start(t, append(args, "--kubeconfig="+f.kubeconfig, "--healthz-bind-address=127.0.0.1:20256", "--metrics-bind-address=127.0.0.1:20249")...)
}

func testTwoProxiesThatWantTheSame(t *testing.T) {
	f := newWithServer(t)
	servePod(t, f.lab, "first", "10.244.1.5")
	servePod(t, f.lab, "second", "10.244.1.6")
	f.start(t, "--kubeconfig="+f.kubeconfig)
	f.startSecond(t).Says(t, firstSyncLine)
	service, slice := faultService(faultAddress, "10.244.1.5")
	(&uploader{t, f.server}).create(service)
	(&uploader{t, f.server}).create(slice)
	f.reaches(t, "first")
	time.Sleep(2 * time.Second) // each may have repaired what the other knew first
	stop := keepDialingAt(t, f.lab.Client, faultAddress+":80")
	_, slice = faultService(faultAddress, "10.244.1.6")
	if _, err := f.server.Update(slice); err != nil {
		t.Fatal(err)
	}
	f.reaches(t, "second")
	time.Sleep(time.Second)
	stop()
	f.reaches(t, "second")
	f.becomes(t, "200 200")
}

func testTwoProxiesThatDiffer(t *testing.T) {
	f := newWithServer(t)
	servePod(t, f.lab, "first", "10.244.1.5")
	service, slice := faultService(faultAddress, "10.244.1.5")
	(&uploader{t, f.server}).create(service)
	(&uploader{t, f.server}).create(slice)
	first := f.start(t, "--kubeconfig="+f.kubeconfig)
	f.reaches(t, "first")
	stop := keepDialingAt(t, f.lab.Client, faultAddress+":80")
	second := f.startSecond(t, "--masquerade-all")
	const contest = "Another program keeps changing the proxy's tables; comparing less often. Does a second proxy run on this node?"
	first.Says(t, contest)
	if log := first.Output(); !strings.Contains(log, "by kube-proxy (pid ") {
		t.Errorf("the log does not name the other program; see Backend.lastForeignCommit:\n%s", log)
	}
	began, before := time.Now(), processorTime(t, first)
	time.Sleep(3 * time.Second)
	if used, took := processorTime(t, first)-before, time.Since(began); used > took/5 {
		t.Errorf("the first proxy used %v of the processor in %v; see contest", used, took)
	}
	stop()
	if err := second.Stop(t); err != nil {
		t.Error(err)
	}
	await.Until(t, "the first proxy has its rules back", func() error {
		if !strings.Contains(labtest.Nft(t, f.lab.Node, "", "list", "table", "ip", "kube-proxy"), "mark-unless-local") {
			return errors.New("the other's are there")
		}
		return nil
	})
}
