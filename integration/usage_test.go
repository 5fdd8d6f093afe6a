package integration

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/nftproxy/nftproxy/integration/await"
	"github.com/nftproxy/nftproxy/integration/lab/labtest"
	"github.com/nftproxy/nftproxy/integration/leaks"
)

// usage is what a proxy that runs has in use.
type usage struct {
	descriptors leaks.Descriptors
	goroutines  int
}

// spareGoroutines is how many may come and go with connections and timers.
const spareGoroutines = 8

func (f *troubled) usage(t *testing.T, p *labtest.Process) usage {
	t.Helper()
	return usage{leaks.Of(t, p.Cmd.Process.Pid), f.goroutines(t)}
}

// comesBackTo checks that the proxy uses no more than before.
func (f *troubled) comesBackTo(t *testing.T, p *labtest.Process, before usage) {
	t.Helper()
	leaks.Within(t, p.Cmd.Process.Pid, before.descriptors)
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
