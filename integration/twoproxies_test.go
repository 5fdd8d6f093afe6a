package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
)

// Two proxies run on one node, as after somebody has deployed two DaemonSets.
func TestTwoProxies(t *testing.T) {
	t.Run("that want the same apply changes together", testTwoProxiesThatWantTheSame)
	t.Run("that differ name each other and back off", testTwoProxiesThatDiffer)
}

// contestLine is what a proxy logs that backs off because another program undoes its repairs.
const contestLine = "Another program keeps changing the proxy's tables; comparing less often. Does a second proxy run on this node?"

// startSecond starts a second proxy, with ports of its own.
func (f *withServer) startSecond(t *testing.T, args ...string) *lab.Process {
	t.Helper()
	return f.start(t, append(args, "--kubeconfig="+f.kubeconfig, "--healthz-bind-address=127.0.0.1:20256", "--metrics-bind-address=127.0.0.1:20249")...)
}

func testTwoProxiesThatWantTheSame(t *testing.T) {
	f := newWithServer(t)
	first := f.start(t, "--kubeconfig="+f.kubeconfig)
	second := f.startSecond(t)
	second.Says(t, firstSyncLine)
	f.createFaultService(t)
	f.reaches(t, "first")
	time.Sleep(2 * time.Second) // each may have repaired what the other knew first
	stop := keepDialingAt(t, f.lab.Client, faultAddress+":80")
	f.moveFaultService(t, "10.244.1.6")
	f.reaches(t, "second")
	time.Sleep(time.Second)
	stop()
	f.reaches(t, "second")
	f.agree(t)
	f.becomes(t, "200 200")
	// What both delete is gone for the second.
	f.deleteFaultService(t)
	await.Until(t, "the Service is gone", func() error {
		if strings.Contains(lab.Nft(t, f.lab.Node, "", "list", "table", "ip", "kube-proxy"), faultAddress) {
			return errors.New("its address is there")
		}
		return nil
	})
	f.agree(t)
	f.becomes(t, "200 200")
	for _, p := range []*lab.Process{first, second} {
		if log := p.Output(); strings.Contains(log, contestLine) {
			t.Errorf("the two repaired each other's tables until one backed off:\n%s", log)
		}
	}
}

// agree waits until nobody has committed for three seconds: each of the proxies looks at the tables once a second.
func (f *withServer) agree(t *testing.T) {
	t.Helper()
	c := lab.Conn(t, f.lab.Node)
	last, since := generation(t, c), time.Now()
	await.Until(t, "nobody changes the tables any more", func() error {
		if now := generation(t, c); now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < 3*time.Second {
			return fmt.Errorf("generation %d came %v ago", last, quiet)
		}
		return nil
	})
}

func testTwoProxiesThatDiffer(t *testing.T) {
	f := newWithServer(t)
	f.createFaultService(t)
	first := f.start(t, "--kubeconfig="+f.kubeconfig)
	f.reaches(t, "first")
	stop := keepDialingAt(t, f.lab.Client, faultAddress+":80")
	second := f.startSecond(t, "--masquerade-all")
	first.Says(t, contestLine)
	if log, other := first.Output(), fmt.Sprintf("by kube-proxy (pid %d)", second.Cmd.Process.Pid); !strings.Contains(log, other) {
		t.Errorf("the log does not have %q; see Backend.lastForeignCommit:\n%s", other, log)
	}
	began, before := time.Now(), process.ProcessorTimeOf(t, first.Cmd.Process.Pid)
	time.Sleep(3 * time.Second)
	if used, took := process.ProcessorTimeOf(t, first.Cmd.Process.Pid)-before, time.Since(began); used > took/5 {
		t.Errorf("the first proxy used %v of the processor in %v; see contest", used, took)
	}
	stop()
	if err := second.Stop(t); err != nil {
		t.Error(err)
	}
	await.Until(t, "the first proxy has its rules back", func() error {
		if !strings.Contains(lab.Nft(t, f.lab.Node, "", "list", "table", "ip", "kube-proxy"), "ip saddr != 10.244.0.0/16 meta mark set") {
			return errors.New("the other's are there")
		}
		return nil
	})
}
