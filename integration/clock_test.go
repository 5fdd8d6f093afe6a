package integration

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/sys/unix"
)

// TestClockJumps has the proxy's wall clock jump. Nothing but what people read may depend on it.
func TestClockJumps(t *testing.T) {
	t.Run("in either direction delay no change", testClockJumpsDelayNoChange)
}

func testClockJumpsDelayNoChange(t *testing.T) {
	f := newWithServer(t)
	pods := []string{"first", "second"}
	f.createFaultService(t)
	var jump atomic.Int64 // in nanoseconds
	p := f.startWithClock(t, &jump, "--kubeconfig="+f.kubeconfig)
	end := f.dialThroughout(t, p)

	// The server's certificate is valid for a day to either side.
	for i, by := range []time.Duration{10 * time.Hour, -10 * time.Hour, 0} {
		jump.Store(int64(by))
		await.Until(t, fmt.Sprintf("the proxy's clock has jumped by %v", by), func() error { return f.clockIs(time.Now().Add(by)) })
		f.moveFaultService(t, fmt.Sprintf("10.244.1.%d", 5+(i+1)%2))
		f.reachesWithin(t, 10*time.Second, pods[(i+1)%2])
		f.becomes(t, "200 200")
	}
	end()
}

// clockIs says what is wrong with the time that health tells.
func (f *troubled) clockIs(want time.Time) error {
	_, body, err := f.health()
	if err != nil {
		return err
	}
	var told struct{ CurrentTime time.Time }
	if err := json.Unmarshal([]byte(body), &told); err != nil {
		return err
	}
	if off := told.CurrentTime.Sub(want).Abs(); off > time.Minute {
		return fmt.Errorf("it is off by %v", off)
	}
	return nil
}

// startWithClock starts the proxy with a wall clock that is off by jump. Its other clocks are the machine's.
func (f *troubled) startWithClock(t *testing.T, jump *atomic.Int64, args ...string) *lab.Process {
	t.Helper()
	p := lab.NewProcess(t, exec.Command(lab.Binary(t, "kube-proxy"), append(f.args(), args...)...))
	tell := func(c *process.Call) process.Verdict {
		now := time.Now().Add(time.Duration(jump.Load()))
		timespec := binary.NativeEndian.AppendUint64(nil, uint64(now.Unix()))
		c.Store(c.Argument(1), binary.NativeEndian.AppendUint64(timespec, uint64(now.Nanosecond())))
		return process.Return(0)
	}
	if err := process.OnThread(func() error {
		err := unix.Setns(int(f.lab.Node.NetNS().Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = process.Install(process.WallClock(process.Judged), tell)
		}
		if err == nil {
			err = process.StartWithoutVDSO(p.Cmd)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return p
}
