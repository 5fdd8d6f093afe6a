package node

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nftproxy/nftproxy/model"
)

// nodeFeed is a Feed of one Node, which the test sets before each Take.
type nodeFeed struct{ node model.Node }

func (f *nodeFeed) Dirty() <-chan struct{} { return nil }
func (f *nodeFeed) Resync()                {}
func (f *nodeFeed) Take() (*model.Changes, []time.Time) {
	node := f.node
	return &model.Changes{Node: &node}, nil
}

func TestRemote(t *testing.T) {
	var missing []Missing
	var accepted []model.Node
	feed := &nodeFeed{}
	options := Options{NodeName: thisNode, Override: addrs("fd00::9"), Kernel: kernel(t, true), Wait: time.Hour, OnMissing: func(m Missing) { missing = append(missing, m) }}
	remote := NewRemote(t.Context(), feed, options, func(n model.Node) { accepted = append(accepted, n) })
	take := func(said, want model.Node) {
		t.Helper()
		feed.node = said
		changes, _ := remote.Take()
		if diff := cmp.Diff(&want, changes.Node, sameAddrs); diff != "" {
			t.Errorf("the Node in the changes (-want +got):\n%s", diff)
		}
	}
	node := func(ips ...string) model.Node { return model.Node{Name: thisNode, IPs: addrs(ips...)} }
	leaving := node("fd00::9", "192.0.2.1")
	leaving.GoingAway = true
	take(node(), node("fd00::9"))
	take(node("192.0.2.1", "fd00::1"), node("fd00::9", "192.0.2.1"))
	take(leaving, leaving)
	take(node("192.0.2.2"), leaving) // it requires a restart
	if diff := cmp.Diff([]model.Node{node("fd00::9"), node("fd00::9", "192.0.2.1"), leaving}, accepted, sameAddrs); diff != "" {
		t.Errorf("accepted Nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Missing{{Node: true, Waiting: true}, {}}, missing); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
	const want = "node node-1: its addresses changed from fd00::9, 192.0.2.1 to fd00::9, 192.0.2.2; exiting, so that a restart sets up everything anew"
	if err := remote.Run(t.Context()); err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	t.Run("stopping is no error", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := NewRemote(ctx, feed, options, nil).Run(ctx); err != nil {
			t.Errorf("got error %v", err)
		}
	})
}
