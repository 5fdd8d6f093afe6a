package node

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/sysctl"
	"github.com/nftproxy/nftproxy/tracker"
)

const thisNode = "node-1"

// makeNode returns a Node with InternalIPs and pod CIDRs.
func makeNode(name string, ips, podCIDRs []string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.PodCIDRs = podCIDRs
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return n
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// kernel is a machine with or without IPv6.
func kernel(t *testing.T, ipv6 bool) sysctl.Tree {
	t.Helper()
	tree := sysctl.Tree{Root: t.TempDir()}
	if !ipv6 {
		return tree
	}
	dir := filepath.Join(tree.Root, "proc/net")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "if_inet6"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return tree
}

// hand is a Source that does what a test tells it to.
type hand struct {
	sink chan tracker.Sink
}

func (h hand) Run(ctx context.Context, sink tracker.Sink) error {
	h.sink <- sink
	<-ctx.Done()
	return nil
}

// guarded is a running guard between a hand and a Tracker.
type guarded struct {
	in    tracker.Sink
	out   *tracker.Tracker
	ended chan error

	mu       sync.Mutex
	reported []Missing
}

// missing returns what OnMissing was told so far.
func (g *guarded) missing() []Missing {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.reported)
}

func start(t *testing.T, options Options) *guarded {
	t.Helper()
	options.NodeName = thisNode
	if options.Kernel.Root == "" {
		options.Kernel = kernel(t, true)
	}
	h := hand{make(chan tracker.Sink)}
	skip := func(kind, reason string) { t.Errorf("the tracker was given a part of a %s to skip: %s", kind, reason) }
	g := &guarded{out: tracker.New(tracker.Options{NodeName: thisNode, OnSkip: skip}), ended: make(chan error, 1)}
	options.OnMissing = func(m Missing) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.reported = append(g.reported, m)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.ended <- NewSource(h, options).Run(ctx, g.out)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	g.in = await.Receive(t, "the sink of the source", h.sink)
	return g
}

// node returns what the next Sink was told of the Node since the last call; nil if it was not
// told Synced, or nothing new.
func (g *guarded) node() *model.Node {
	changes := g.out.Changes()
	if changes == nil {
		return nil
	}
	return changes.Node
}

// wait returns what Run returned.
func (g *guarded) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-g.ended:
		return err
	case <-time.After(time.Minute):
		t.Fatal("the guard goes on")
		return nil
	}
}
