package flows

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

// Program is a backend, as a program, that is to pass the flows of the golden cases: a server of the node-local API
// serves the objects of a case, the program runs on the node of a lab, and every flow is really sent.
type Program struct {
	// Command returns the command line for a server at target.
	Command func(target string) *exec.Cmd
	// Ready is the text that the program prints when it has applied a state.
	Ready string
	// Applies says whether the backend promises what a flow expects. It may change the expectation, such as the source
	// address that an endpoint sees.
	Applies func(*Flow) bool
	// Excused says that a flow may fail like this.
	Excused func(*Failure) bool
	// Only, if set, names the cases whose flows the backend promises.
	Only []string
	// Without names cases that it does not promise, each with the reason.
	Without map[string]string
}

// Count counts flows.
type Count struct {
	// Sent counts the flows that were sent, All those of all cases.
	Sent, All int
}

// Run sends the flows of all cases that have no configuration of their own.
func (b Program) Run(t *testing.T) (count Count) {
	t.Helper()
	l := lab.ForTest(t)
	for _, c := range Cases(t) {
		all := c.Flows(t)
		count.All += len(all)
		if c.HasConfig() || b.Without[c.Name] != "" || b.Only != nil && !slices.Contains(b.Only, c.Name) {
			continue
		}
		list := b.applicable(all)
		count.Sent += len(list)
		if len(list) > 0 {
			t.Run(c.Name, func(t *testing.T) { b.try(t, l, c, list) })
		}
	}
	t.Logf("%d of %d flows apply", count.Sent, count.All)
	return count
}

func (b Program) applicable(all []Flow) (out []Flow) {
	for _, flow := range all {
		if b.Applies(&flow) {
			out = append(out, flow)
		}
	}
	return out
}

// try runs the program for one case.
func (b Program) try(t *testing.T, l *lab.Lab, c Case, list []Flow) {
	endpoints, err := Endpoints(c.Manifests())
	if err != nil {
		t.Fatal(err)
	}
	target, _ := Serve(t, c.ManifestsDir(t))
	p := lab.StartCommand(t, l.Node, b.Command(target))
	defer p.Stop(t)
	p.Says(t, b.Ready)
	r, err := NewRunner(l, endpoints)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = r.Run(list)
	for _, e := range parts(err) {
		var failure *Failure
		if b.Excused == nil || !errors.As(e, &failure) || !b.Excused(failure) {
			t.Error(e)
		}
	}
}

func parts(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
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
