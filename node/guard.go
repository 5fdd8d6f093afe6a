package node

import (
	"cmp"
	"context"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/tracker"
)

// Guard is a Source that hands on what another Source sees, and looks after the Node among it:
//
//   - It overrides the Node's addresses (Options.Override, Options.FamilyPolicy).
//   - It holds Synced back until the Node has addresses and, if they count, pod CIDRs, but not
//     for longer than the Options say. The rules of the run before go on working meanwhile.
//   - It ends when they change later, as kube-proxy v1.37 does, so that a restart sets up everything
//     anew. A Node that is deleted is no such change, unlike in kube-proxy: it may be registered
//     anew, and this machine goes on running meanwhile.
//
// Addresses that come only after Guard went on without are taken as they come.
type Guard struct {
	source  tracker.Source
	options Options
}

var _ tracker.Source = (*Guard)(nil)

// NewGuard returns a Guard over source.
func NewGuard(source tracker.Source, options Options) *Guard {
	return &Guard{source: source, options: options}
}

// Run implements tracker.Source. Beyond the errors of the guarded Source it returns one when
// the Node's addresses or pod CIDRs changed, when the Node was not given a pod CIDR in time, and
// when the proxy cannot serve the IP families that it has to.
func (g *Guard) Run(ctx context.Context, sink tracker.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watch{Sink: sink, options: &g.options, logger: klog.FromContext(ctx), cancel: cancel}
	err := g.source.Run(ctx, w)
	return cmp.Or(w.stop(), err)
}
