package apiserver

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"k8s.io/klog/v2"
)

// promptly bounds the time until Run returns. It must be shorter than any back-off that Run could
// be in (30 s and more), and long enough for a busy machine.
const promptly = 20 * time.Second

func testRunEndsWithItsContext(t *testing.T) {
	tests := map[string]func(t *testing.T, c *cluster, sink *recorder, logs *logLines){
		"while it watches": func(t *testing.T, c *cluster, sink *recorder, _ *logLines) {
			awaitWatches(t, c, sink)
		},
		"while the server is away from the start": func(t *testing.T, c *cluster, _ *recorder, logs *logLines) {
			c.server.Stop()
			await.True(t, "a failure", func() bool { return logs.count("connection refused") > 0 })
		},
		"while the server is away": func(t *testing.T, c *cluster, sink *recorder, logs *logLines) {
			awaitWatches(t, c, sink)
			c.server.Stop()
			await.True(t, "a failure", func() bool { return logs.count("connection refused") > 0 })
		},
		"while a resource is refused": func(t *testing.T, c *cluster, sink *recorder, _ *logLines) {
			c.server.Refuse("servicecidrs", 404)
			c.server.DropConnections()
			await.True(t, "Synced", sink.synced)
		},
	}
	for name, reach := range tests {
		t.Run(name, func(t *testing.T) {
			if assets != "" {
				t.Skip("a real API server cannot be told to go away")
			}
			forEachServerInTurn(t, func(t *testing.T, c *cluster) {
				if strings.Contains(name, "from the start") {
					c.server.Stop()
				}
				source, err := New(Config{Kubeconfig: c.kubeconfig, NodeName: thisNode, QPS: -1})
				if err != nil {
					t.Fatal(err)
				}
				sink, logs := newRecorder(), &logLines{}
				ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logs.logger(0)))
				defer cancel()
				returned := make(chan error, 1)
				go func() { returned <- source.Run(ctx, sink) }()
				reach(t, c, sink, logs)

				cancel()
				select {
				case err := <-returned:
					if err != nil {
						t.Errorf("Run returned %v, want nil", err)
					}
				case <-time.After(promptly):
					t.Fatalf("Run did not return within %v", promptly)
				}
				checkNoneLeft(t)
			})
		})
	}
}

func testRunWithAnEndedContext(t *testing.T) {
	c := inProcess(t, apiservertest.Options{})
	source, err := New(Config{Kubeconfig: c.kubeconfig, NodeName: thisNode})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	sink := newRecorder()
	if err := source.Run(ctx, sink); err != nil {
		t.Errorf("Run returned %v, want nil", err)
	}
	if sink.synced() {
		t.Error("Synced without having listed anything")
	}
	checkNoneLeft(t)
}

// checkNoneLeft waits until no goroutine runs an informer, a connection or anything of this package
// but tests. Those that only notice the end of a connection may take a moment.
func checkNoneLeft(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(promptly)
	for {
		left := leftovers()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines left:\n%s", len(left), strings.Join(left, "\n\n"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func leftovers() []string {
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 2)
	var left []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		for _, ours := range []string{"client-go/tools/cache", "apiserver.(*", "watch.(*StreamWatcher)", "ClientConn).readLoop"} {
			if strings.Contains(stack, ours) && !strings.Contains(stack, "apiservertest.") && !strings.Contains(stack, "testing.tRunner") {
				left = append(left, stack)
				break
			}
		}
	}
	return left
}
