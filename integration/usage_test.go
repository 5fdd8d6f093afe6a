package integration

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// usage is what a proxy that runs has in use.
type usage struct {
	descriptors await.Descriptors
	goroutines  int
}

// spareGoroutines is how many may come and go with connections and timers.
const spareGoroutines = 8

func (f *troubled) usage(t *testing.T, p *lab.Process) usage {
	t.Helper()
	return usage{await.DescriptorsOf(t, p.Cmd.Process.Pid), f.goroutines(t)}
}

// comesBackTo checks that the proxy uses no more than before.
func (f *troubled) comesBackTo(t *testing.T, p *lab.Process, before usage) {
	t.Helper()
	await.NoMoreDescriptors(t, p.Cmd.Process.Pid, before.descriptors)
	await.Until(t, "the proxy has as many goroutines as before the fault; see /debug/pprof/goroutine", func() error {
		if now := f.goroutines(t); now > before.goroutines+spareGoroutines {
			return fmt.Errorf("%d, before there were %d", now, before.goroutines)
		}
		return nil
	})
}

func (f *troubled) goroutines(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(f.metric(t, "go_goroutines"))
	if err != nil {
		t.Errorf("metric go_goroutines: %v", err)
	}
	return n
}
