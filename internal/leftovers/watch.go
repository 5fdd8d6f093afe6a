package leftovers

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// interval is the time between two looks. With 30,000 chains, which a large cluster leaves behind, one look takes 0.3 s.
const interval = 10 * time.Minute

// remedies says for each kind how to remove it, for the log.
var remedies = map[Kind]string{
	NFT: `stop any other kube-proxy on this node, then run "kube-proxy --cleanup", this program's or Kubernetes' own; ` +
		`it removes this proxy's tables too, which come back within about a second; this program's then exits with code 1`,
	Legacy: `stop any other kube-proxy on this node, then run Kubernetes' own "kube-proxy --cleanup" from its image, or restart the node`,
	IPVS:   `stop any other kube-proxy on this node, then run Kubernetes' own "kube-proxy --cleanup" from its image, or restart the node`,
}

// Watch looks for leftovers at once and then every ten minutes, until ctx ends. It calls onLook with the count of each
// kind, logs an error when it first finds a kind, and a line when the kind is gone.
func Watch(ctx context.Context, onLook func(count map[Kind]int)) {
	w := watch{logger: klog.FromContext(ctx), onLook: onLook}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		w.look(Find(ctx))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

type watch struct {
	logger klog.Logger
	onLook func(count map[Kind]int)
	// known has the counts of the last look.
	known map[Kind]int
	// failed is the text of the last error.
	failed string
}

func (w *watch) look(found []Leftover, err error) {
	w.logFailure(err)
	count := map[Kind]int{}
	for _, l := range found {
		count[l.Kind] = l.Count
		if w.known[l.Kind] == 0 {
			w.logger.Error(nil, "Another mode of kube-proxy left rules behind; they go on serving Services that were changed or deleted since",
				"kind", l.Kind, "count", l.Count, "example", l.Example, "remedy", remedies[l.Kind])
		}
	}
	for _, kind := range Kinds {
		switch {
		case w.known[kind] == 0 || count[kind] > 0:
		case err != nil:
			count[kind] = w.known[kind] // probably still there: the look failed in some place
		default:
			w.logger.Info("The rules that another mode of kube-proxy left behind are gone", "kind", kind)
		}
	}
	w.known = count
	w.onLook(count)
}

// logFailure logs an error once for as long as it stays the same.
func (w *watch) logFailure(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != w.failed {
		w.logger.Info("Cannot look for everything that kube-proxy's other modes may have left behind", "reason", text)
	}
	w.failed = text
}
