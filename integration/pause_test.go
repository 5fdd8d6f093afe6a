package integration

import (
	"flag"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/integration/await"
	"github.com/prometheus/procfs"
)

var pause = flag.Duration("pause", 5*time.Second, "how long TestPause stops the proxy")

// A proxy that is stopped (SIGSTOP), as when a hypervisor stops its machine, answers nothing; the rules work on. When it
// goes on, it catches up by itself.
func TestPause(t *testing.T) {
	t.Run("loses no change", testPauseLosesNoChange)
}

func testPauseLosesNoChange(t *testing.T) {
	f := newWithServer(t)
	servePod(t, f.lab, "first", "10.244.1.5")
	servePod(t, f.lab, "second", "10.244.1.6")
	service, slice := faultService(faultAddress, "10.244.1.5")
	(&uploader{t, f.server}).create(service)
	(&uploader{t, f.server}).create(slice)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	f.reaches(t, "first")
	f.becomes(t, "200 200")
	before := f.usage(t, p)
	stop := keepDialingAt(t, f.lab.Client, faultAddress+":80")

	if err := p.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// A signal takes its time: each thread stops when it comes to it.
	await.Until(t, "all threads are stopped", func() error {
		threads, err := procfs.AllThreads(p.Cmd.Process.Pid)
		for _, thread := range threads {
			stat, err := thread.Stat()
			if err != nil || stat.State != "T" {
				return fmt.Errorf("thread %d is in state %q, %v", thread.PID, stat.State, err)
			}
		}
		return err
	})
	_, slice = faultService(faultAddress, "10.244.1.6")
	if _, err := f.server.Update(slice); err != nil {
		t.Fatal(err)
	}
	time.Sleep(*pause)
	if codes, body, err := f.health(); err == nil {
		t.Errorf("a stopped process answers %s %s", codes, body)
	}
	f.reaches(t, "first")
	if err := p.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	f.reaches(t, "second")
	f.becomes(t, "200 200")
	await.Until(t, "health has no problem", func() error {
		if _, body, err := f.health(); err != nil || strings.Contains(body, "problems") {
			return fmt.Errorf("%s, %v", body, err)
		}
		return nil
	})
	stop()
	f.comesBackTo(t, p, before)
	if err := p.Stop(t); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
}
