package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

func testOutageLosesNothing(t *testing.T) {
	forEachObedientServer(t, "go away and come back", func(t *testing.T, c *cluster) {
		c.create(t, service("kept"), service("changed"), service("gone"))
		sink := c.run(t)
		awaitWatches(t, c, sink)
		watchedFor(t, c, sink)

		c.server.Stop()
		c.delete(t, service("gone"))
		c.change(t, c.server.Update, service("changed", "step", "2"))
		c.change(t, c.server.Create, service("new"))
		c.change(t, c.server.Create, slice("new-a", "new"))
		// A Service that was another one while nobody looked arrives as what it is now.
		c.delete(t, service("kept"))
		c.change(t, c.server.Create, service("kept", "step", "again"))
		if err := c.server.Resume(); err != nil {
			t.Fatal(err)
		}

		await.True(t, "the deletion", sink.lacks("services/default/gone"))
		await.True(t, "the update", sink.labelled("services/default/changed", "2"))
		await.True(t, "the recreated Service", sink.labelled("services/default/kept", "again"))
		await.True(t, "the new Service", sink.has("services/default/new"))
		await.True(t, "the new slice", sink.has("endpointslices/default/new-a"))
		if got := lists(c.server, "services"); got != 1 {
			t.Errorf("Services were listed %d times, want once: the history was all there", got)
		}
		if sink.syncs != 1 {
			t.Errorf("Synced was called %d times, want once", sink.syncs)
		}
	})
}

func testDroppedConnectionsAreReplaced(t *testing.T) {
	forEachObedientServer(t, "drop connections", func(t *testing.T, c *cluster) {
		sink := c.run(t)
		awaitWatches(t, c, sink)
		for i := range 2 {
			c.server.DropConnections()
			// These race with the clients that notice the cut.
			for j := range 2 {
				name := fmt.Sprintf("svc-%d-%d", i, j)
				c.change(t, c.server.Create, service(name))
				c.change(t, c.server.Create, slice(name+"-a", name))
			}
			for j := range 2 {
				name := fmt.Sprintf("svc-%d-%d", i, j)
				await.True(t, name, sink.has("services/default/"+name))
				await.True(t, name+"-a", sink.has("endpointslices/default/"+name+"-a"))
			}
		}
	})
}

func testServerThatIsAwayAtFirst(t *testing.T) {
	forEachObedientServer(t, "be away at first", func(t *testing.T, c *cluster) {
		c.create(t, service("web"))
		c.server.Stop()
		logs := &logLines{}
		sink := c.runLogged(t, logs)
		await.True(t, "a message about services", func() bool {
			return logs.count("Cannot list; programming nothing before it is listed", `"resource"="services"`, "connection refused") > 0
		})
		if sink.synced() {
			t.Fatal("Synced without a server")
		}
		if err := c.server.Resume(); err != nil {
			t.Fatal(err)
		}
		await.True(t, "Synced", sink.synced)
		if sink.atSynced["services/default/web"] == nil {
			t.Error("the Service was not published before Synced")
		}
		if logs.count("Watching again", `"resource"="services"`) != 1 {
			t.Errorf("the end of the outage is not in the log:\n%s", logs)
		}
	})
}

func testOutageIsLoggedOnce(t *testing.T) {
	logs := &logLines{}
	ctx := klog.NewContext(context.Background(), logs.logger(0))
	o := newOutage("services")
	refused := errors.New("connection refused")
	for range 3 {
		o.failed(ctx, refused)
	}
	o.failed(ctx, errors.New("certificate expired"))
	o.failed(ctx, io.EOF)
	o.failed(ctx, apierrors.NewResourceExpired("too old"))
	o.over(ctx)
	o.over(ctx)
	o.failed(ctx, refused)

	for text, want := range map[string]int{
		"connection refused": 2, "certificate expired": 1, "EOF": 0, "too old": 0, "Watching again": 1,
	} {
		if got := logs.count(text); got != want {
			t.Errorf("%q was logged %d times, want %d:\n%s", text, got, want, logs)
		}
	}
}

func testErrorsOfAnEndingContextAreNotLogged(t *testing.T) {
	logs := &logLines{}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logs.logger(9)))
	cancel()
	newOutage("services").failed(ctx, context.Canceled)
	if logs.String() != "" {
		t.Errorf("logged while stopping:\n%s", logs)
	}
}

// logLines is a log.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) logger(verbosity int) klog.Logger {
	return funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, prefix+" "+args)
	}, funcr.Options{Verbosity: verbosity})
}

// count returns how many lines hold all the texts.
func (l *logLines) count(texts ...string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
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

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
