package leftovers

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"
)

const (
	// interval is the time between two looks. With 30,000 chains, which a large cluster leaves behind, one look takes 0.07 s.
	interval = 10 * time.Minute
	// closeInterval is that time in the hour after a removal.
	closeInterval = time.Minute
	// passTime bounds a look with a removal.
	passTime = 2 * time.Minute
	// drainInterval is the time between two looks at connections of the mode ipvs.
	drainInterval = 10 * time.Second
	// Rules that come back conflictReturns times within conflictTime are the work of another, running kube-proxy. It counts as
	// stopped after conflictTime without leftovers: it can take minutes to write its rules.
	conflictReturns = 3
	conflictTime    = time.Hour
)

const remedy = "stop any other kube-proxy on this node, then restart this one with --leftovers=remove"

// Options say what Watch does.
type Options struct {
	// Synced is closed when the proxy's own rules serve. Then Watch removes leftovers. Nil: it only reports them.
	Synced <-chan struct{}
	// Remover removes them.
	Remover Remover
	// OnLook is called with the count of each kind. conflict says that another kube-proxy put its rules back again and again;
	// Watch leaves them then, until there have been none for an hour.
	OnLook func(count map[Kind]int, draining Draining, conflict bool)
}

// Watch looks for leftovers until ctx ends: at once, or after o.Synced, and then every ten minutes, or every minute in the
// hour after a removal, or every ten seconds while connections of the mode ipvs keep something. It logs what it removes, an
// error when it first finds a kind that stays, and a line when that is gone.
func Watch(ctx context.Context, o Options) {
	w := watch{logger: klog.FromContext(ctx), Options: o, find: Find, back: o.Remover.back, remove: o.Remover.remove}
	if o.Synced != nil {
		select {
		case <-ctx.Done():
			return
		case <-o.Synced:
		}
	}
	for {
		w.pass(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-time.After(w.pause(time.Now())):
		}
	}
}

// pause returns the time to the next look.
func (w *watch) pause(now time.Time) time.Duration {
	switch {
	case w.draining != (Draining{}):
		return drainInterval
	case now.Sub(w.removedAt) < conflictTime:
		return closeInterval
	}
	return interval
}

type watch struct {
	Options
	logger klog.Logger
	find   func(context.Context) ([]Leftover, error)
	back   func([]Leftover) string
	remove func(context.Context, []Leftover) (Removal, error)
	// removedAt is the time of the last removal. foundAt is the time of the last look that found something.
	removedAt, foundAt time.Time
	// returns are the times of the last hour at which a look found what had been removed before.
	returns  []time.Time
	conflict bool
	// known has the counts of the last look.
	known map[Kind]int
	// failed is the text of the last error, and kept the number of chains that the last removal kept.
	failed string
	kept   int
	// draining is from the last removal, and told from the last line in the log about it, at toldAt.
	draining Draining
	toldAt   time.Time
}

// pass looks once, and removes what it finds.
func (w *watch) pass(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	found, err := w.find(ctx)
	if len(found) > 0 || err != nil {
		w.foundAt = now
	}
	w.judge(found, now)
	if w.Synced == nil || w.conflict || len(found) == 0 {
		w.draining = Draining{}
	} else {
		removal, failure := w.remove(ctx, found)
		w.logRemoval(removal, now)
		if failure == nil {
			w.drain(removal, now)
		}
		found, err = w.find(ctx)
		err = errors.Join(failure, err)
	}
	w.look(found, err)
}

// judge decides, before anything is removed, whether another kube-proxy runs.
func (w *watch) judge(found []Leftover, now time.Time) {
	w.returns = slices.DeleteFunc(w.returns, func(t time.Time) bool { return now.Sub(t) >= conflictTime })
	if w.conflict {
		w.conflict = now.Sub(w.foundAt) < conflictTime
		return
	}
	back := w.back(found)
	if back == "" {
		return
	}
	if w.returns = append(w.returns, now); len(w.returns) >= conflictReturns {
		w.conflict, w.returns = true, nil
		w.logger.Error(nil, "Another kube-proxy runs on this node: its rules are back after each removal; leaving them in place",
			"returns", conflictReturns, "example", back, "remedy", remedy)
	}
}

func (w *watch) logRemoval(r Removal, now time.Time) {
	if r.Removed.Count > 0 {
		w.removedAt = now
		w.logger.Info("Removed the rules that another mode of kube-proxy left behind", "count", r.Removed.Count, "example", r.Removed.First[0])
	}
	if n := r.Kept.Count; n > 0 && n != w.kept {
		w.logger.Info("Kept chains of kube-proxy that another program uses", "chains", n, "example", r.Kept.First[0])
	}
	w.kept = r.Kept.Count
}

// drain says how far the mode ipvs is from its end: at its begin, every ten minutes, and at its end.
func (w *watch) drain(r Removal, now time.Time) {
	if r.Ended > 0 {
		w.logger.Info("Ended connections of the mode ipvs: its virtual servers stayed for them as long as they may", "connections", r.Ended)
	}
	if d := r.Draining; d != (Draining{}) && (w.draining == (Draining{}) || now.Sub(w.toldAt) >= interval) {
		w.toldAt = now
		w.logger.Info("Connections of the mode ipvs keep its virtual servers, which get no new ones; removing each when it has none",
			"connections", d.Connections, "virtualServers", d.VirtualServers, "addresses", d.Addresses, "timeout", w.Remover.DrainTimeout.String())
	}
	w.draining = r.Draining
}

func (w *watch) look(found []Leftover, err error) {
	w.logFailure(err)
	count := map[Kind]int{}
	for _, l := range found {
		count[l.Kind] = l.Count
		if w.known[l.Kind] == 0 && w.draining == (Draining{}) {
			w.logger.Error(nil, "Another mode of kube-proxy left rules behind; they go on serving Services that were changed or deleted since",
				"kind", l.Kind, "count", l.Count, "example", l.Example, "remedy", remedy)
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
	w.OnLook(count, w.draining, w.conflict)
}

// logFailure logs an error once for as long as it stays the same.
func (w *watch) logFailure(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != w.failed {
		w.logger.Info("Cannot find or remove everything that kube-proxy's other modes may have left behind", "reason", text)
	}
	w.failed = text
}
