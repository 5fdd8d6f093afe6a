package flows

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

// Program is a backend, as a program, that runs on the node of a lab.
type Program struct {
	// Command returns the command line for a server at target.
	Command func(target string) *exec.Cmd
}

// Command builds the program in the current directory and returns how to run it with the flags that most examples have.
func Command(t *testing.T) func(target string) *exec.Cmd {
	t.Helper()
	netns.Need(t)
	program := Build(t)
	return func(target string) *exec.Cmd {
		return exec.Command(program, "-node-local-source", target, "-hostname-override", lab.NodeName, "-cluster-cidr", "10.244.0.0/16", "-cluster-cidr", "fd00:10:244::/48")
	}
}

// Build builds the program in the current directory and returns its path.
func Build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

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
	target = "unix://" + filepath.Join(private.Dir(t), "node-local.sock")
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
