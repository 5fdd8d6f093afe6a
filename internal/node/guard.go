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
//   - It keeps addresses and pod CIDRs in force that the Node had and has no more. This machine goes
//     on running while its Node is registered anew, or loses its addresses.
//   - At a start with a Node that lacks them, it goes on with those of the run before
//     (Options.PreviousNode), else without, and says so after a while (Options.Wait). Services are
//     programmed meanwhile. What comes later is taken as it comes.
//   - It ends when the Node has new ones in place of, or beside, those that it had before, as
//     kube-proxy v1.37 does, so that a restart sets up everything anew.
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
// the Node has new addresses or, if they count, pod CIDRs, and when the proxy cannot serve the IP
// families that it has to.
func (g *Guard) Run(ctx context.Context, sink tracker.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watch{Sink: sink, options: &g.options, logger: klog.FromContext(ctx), cancel: cancel}
	err := g.source.Run(ctx, w)
	return cmp.Or(w.stop(), err)
}
