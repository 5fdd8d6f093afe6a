package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// resources are those that the proxy watches.
var resources = []string{"services", "endpointslices", "nodes", "servicecidrs"}

// linesWith returns how many lines of the log hold all the texts.
func linesWith(p *lab.Process, texts ...string) (n int) {
	for line := range strings.Lines(p.Output()) {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			n++
		}
	}
	return n
}

// expectLines checks how often each resource is named together with a text.
func expectLines(t *testing.T, p *lab.Process, text string, want int) {
	t.Helper()
	for _, resource := range resources {
		if got := linesWith(p, text, fmt.Sprintf("resource=%q", resource)); got != want {
			t.Errorf("%d lines %q about %s, want %d", got, text, resource, want)
		}
	}
}

// goodLog checks that a log has no errors or warnings, and says in the end that all is well.
func goodLog(t *testing.T, p *lab.Process) {
	t.Helper()
	for line := range strings.Lines(p.Output()) {
		if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "W") {
			t.Errorf("the log of a good start has the line %s", line)
		}
	}
	if linesWith(p, "Node is known") != 1 || linesWith(p, firstSyncLine) != 1 {
		t.Error("the log does not say once that the Node is known, and once that Services are programmed")
	}
}

// What an operator reads: a start, an outage that is long enough for many tries, and the recovery.
func TestLogOfAnOutage(t *testing.T) {
	const outage = 36 * time.Second
	t.Run("of a proxy that runs", func(t *testing.T) {
		f := newWithServer(t)
		p := f.start(t, "--kubeconfig="+f.kubeconfig)
		p.Says(t, firstSyncLine)
		f.becomes(t, "200 200")
		goodLog(t, p)

		f.server.Stop()
		time.Sleep(outage)
		expectLines(t, p, "Cannot watch; keeping the last known state and retrying", 1)
		if errors := p.Errors(); len(errors) != len(resources) {
			t.Errorf("%d error lines, want one for each of %d resources", len(errors), len(resources))
		}
		f.becomes(t, "200 200", `"problems":["cannot watch endpointslices","cannot watch nodes","cannot watch servicecidrs","cannot watch services"]`)
		f.metricIs(t, `kubeproxy_watch_failing{resource="services"}`, "1")

		f.resume(t)
		await.Within(t, 3*await.Patience, "everything is watched again", func() error {
			if got := linesWith(p, "Watching again", "outage=", "failures="); got != len(resources) {
				return fmt.Errorf("%d of %d resources", got, len(resources))
			}
			return nil
		})
		expectLines(t, p, "Watching again", 1)
		f.metricIs(t, `kubeproxy_watch_failing{resource="services"}`, "0")
		if got := linesWith(p, firstSyncLine); got != 1 {
			t.Errorf("the log says %d times that Services are programmed for the first time", got)
		}
	})
	t.Run("that begins before the proxy", func(t *testing.T) {
		f := newWithServer(t)
		f.server.Stop()
		p := f.start(t, "--kubeconfig="+f.kubeconfig)
		time.Sleep(outage)
		if errors := p.Errors(); len(errors) != len(resources)+1 || linesWith(p, "Unable to write event") != 1 {
			t.Errorf("error lines %q, want one for each resource and one for an event", errors)
		}
		for _, line := range []string{firstSyncLine, "Node is known", "Watching again"} {
			if linesWith(p, line) > 0 {
				t.Errorf("the log says %q", line)
			}
		}
		f.resume(t)
		await.Within(t, 3*await.Patience, "Services are programmed", func() error {
			if linesWith(p, firstSyncLine) == 0 {
				return fmt.Errorf("not yet")
			}
			return nil
		})
		f.applied(t)
	})
}
