package leftovers

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// interval is how often Watch looks. With 30,000 chains left behind, which is a large cluster's, one look takes 0.15 s.
const interval = 10 * time.Minute

// remedies says for each kind what to do, for the log.
var remedies = map[Kind]string{
	NFT: `stop any other kube-proxy on this node, then run "kube-proxy --cleanup", this program's or Kubernetes' own; ` +
		`it removes this proxy's tables too, which come back within about a second; this program's then exits with code 1`,
	Legacy: `stop any other kube-proxy on this node, then run Kubernetes' own "kube-proxy --cleanup" from its image, or restart the node`,
	IPVS:   `stop any other kube-proxy on this node, then run Kubernetes' own "kube-proxy --cleanup" from its image, or restart the node`,
}

// Watch looks for leftovers at once and then every ten minutes, until ctx ends. It calls onLook with how many of each kind
// there are, and logs an error for each kind when it is found first, and a line when it is gone.
func Watch(ctx context.Context, onLook func(count map[Kind]int)) {
	w := watch{logger: klog.FromContext(ctx), onLook: onLook}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		w.look(Find())
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
	// known is what was found last.
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
			count[kind] = w.known[kind] // probably still there: not everything could be looked at
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
