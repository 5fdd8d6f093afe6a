package node

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/source/apiserver"
	"github.com/nftproxy/nftproxy/tracker"
)

// publisher has a Source of this Node, and publishes the Node to it.
type publisher struct {
	source  tracker.Source
	publish func(t *testing.T, addresses ...string)
}

func fromAPIServer(t *testing.T) publisher {
	server := apiservertest.Start(t, apiservertest.Options{})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := server.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	source, err := apiserver.New(apiserver.Config{Kubeconfig: kubeconfig, NodeName: thisNode})
	if err != nil {
		t.Fatal(err)
	}
	store := server.Create
	return publisher{source, func(t *testing.T, addresses ...string) {
		t.Helper()
		if _, err := store(makeNode(thisNode, addresses, nil)); err != nil {
			t.Fatal(err)
		}
		store = server.Update
	}}
}

func fromManifests(t *testing.T) publisher {
	dir := t.TempDir()
	return publisher{manifests.New(dir), func(t *testing.T, addresses ...string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Node\nmetadata:\n  name: " + thisNode + "\nstatus:\n  addresses:\n"
		for _, address := range addresses {
			text += fmt.Sprintf("  - {type: %s, address: %q}\n", corev1.NodeInternalIP, address)
		}
		if err := os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}}
}

// nodes is a Backend that hands on the addresses of the node that it is given.
type nodes chan []netip.Addr

func (n nodes) Sync(_ context.Context, changes *model.Changes) error {
	if changes.Node != nil {
		n <- changes.Node.IPs
	}
	return nil
}

// From a Node that does not exist yet to one whose address changes, through all that a proxy
// is made of.
func testLifeOfANode(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) publisher{"API server": fromAPIServer, "manifests": fromManifests} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := begin(t)
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			tr := tracker.New(tracker.Options{NodeName: thisNode})
			synced := make(nodes, 10)
			loop := model.NewLoop(tr, synced, model.LoopOptions{})
			looping := make(chan error, 1)
			go func() { looping <- loop.Run(ctx) }()
			guard := NewSource(p.source, Options{NodeName: thisNode, Override: addrs("fd00::9"), Wait: time.Hour, Kernel: kernel(t, true)})
			ended := make(chan error, 1)
			go func() { ended <- guard.Run(ctx, tr) }()

			p.publish(t, "192.0.2.1", "fd00::1")
			// The source may have listed everything before the Node came. Then the override is known alone at first.
			override, both := addrs("fd00::9"), addrs("fd00::9", "192.0.2.1")
			for given := override; slices.Equal(given, override); {
				select {
				case given = <-synced:
					if !slices.Equal(given, override) && !slices.Equal(given, both) {
						t.Fatalf("the backend was given %v, want %v", given, both)
					}
				case err := <-ended:
					t.Fatalf("it ended: %v", err)
				case <-ctx.Done():
					t.Fatal("the backend was not given the Node")
				}
			}
			p.publish(t, "192.0.2.1", "fd00::2") // overridden
			p.publish(t, "192.0.2.2", "fd00::2")
			const want = "node node-1: its addresses changed from fd00::9, 192.0.2.1 to fd00::9, 192.0.2.2; exiting, so that a restart sets up everything anew"
			if err := <-ended; err == nil || err.Error() != want {
				t.Errorf("got error %v, want %s", err, want)
			}
			stop()
			<-looping
			if len(synced) > 0 {
				t.Errorf("the backend was given %v after the first Node", <-synced)
			}
		})
	}
}

func testStoppingIsNoError(t *testing.T) {
	p := fromAPIServer(t)
	p.publish(t, "192.0.2.1")
	ctx, stop := context.WithCancel(t.Context())
	tr := tracker.New(tracker.Options{NodeName: thisNode})
	ended := make(chan error, 1)
	go func() { ended <- NewSource(p.source, Options{NodeName: thisNode}).Run(ctx, tr) }()
	await.Receive(t, "a change", tr.Dirty())
	stop()
	if err := <-ended; err != nil {
		t.Errorf("got error %v", err)
	}
}
