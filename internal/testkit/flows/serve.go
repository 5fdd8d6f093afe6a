package flows

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

// Serve serves the node-local API for the manifests at path, a file or a directory, until the test ends. It returns
// where, and the tracker, which takes changes.
func Serve(t testing.TB, path string) (target string, tr *tracker.Tracker) {
	t.Helper()
	objects, err := manifests.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	tr = tracker.New(tracker.Options{EveryNode: true})
	objects.Feed(tr)
	target = "unix://" + filepath.Join(t.TempDir(), "node-local.sock")
	ctx, stop := context.WithCancel(context.Background())
	listener, err := server.Listen(ctx, target, false)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.New(tr, server.Options{}).Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return target, tr
}
