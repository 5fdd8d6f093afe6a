package backendtest

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
	"github.com/nftproxy/nftproxy/source/manifests"
	"github.com/nftproxy/nftproxy/tracker"
)

// Brain serves the node-local API for the manifests at path, a file or a directory, until the test ends. It returns
// where, and the tracker, which takes changes.
func Brain(t testing.TB, path string) (target string, tr *tracker.Tracker) {
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

// Lines asks the brain at target for the state of node-1 and returns it as kube-proxy node-local-watch prints it: an
// Update of the node-local API a line, in JSON with the field names of the .proto file.
func Lines(t testing.TB, target string) (lines []byte) {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := nodelocalv1.NewNodeLocalClient(conn).Get(t.Context(), &nodelocalv1.GetRequest{Node: lab.NodeName})
	if err != nil {
		t.Fatal(err)
	}
	for {
		update, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		line, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(update)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, line...), '\n')
	}
}
