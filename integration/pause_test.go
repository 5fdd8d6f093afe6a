package integration

import (
	"flag"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
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
	f.createFaultService(t)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	end := f.dialThroughout(t, p)

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
	f.moveFaultService(t, "10.244.1.6")
	time.Sleep(*pause)
	if codes, body, err := f.health(); err == nil {
		t.Errorf("a stopped process answers %s %s", codes, body)
	}
	f.reaches(t, "first")
	if err := p.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	f.reaches(t, "second")
	f.recovers(t)
	end()
}
