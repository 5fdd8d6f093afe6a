package manifests

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// Source watches a directory of manifests. Make one with New; the fields may be set
// before Run.
type Source struct {
	// Dir is the directory, absolute or relative to the working directory.
	Dir string
	// Quiet is the time without changes before the Source reads the directory, so that it reads no half-written file.
	// Default 50 ms. It reads a directory that changes all the time after 20 times as long. Before the first read, the
	// modification times of the directory and the files count.
	Quiet time.Duration
	// Rescan is the interval at which the Source reads the directory without a notification. The kernel notifies of no
	// changes in network file systems, behind links into other directories, and when no inotify watches are left.
	// Default 1 minute.
	Rescan time.Duration

	// Guard decides about implausible directories; nil stands for a new guard.
	Guard *model.ListGuard
	// MayBeEmpty says that the directory may have no Services, as for a proxy with a service-proxy-name.
	MayBeEmpty bool
	// OnFailing, if set, is called with "manifests" and true when the directory or a file in it begins to be unreadable,
	// and with false when everything is read again. It must not block.
	OnFailing func(resource string, failing bool)

	directory directory
	// failing is the last argument of OnFailing.
	failing bool

	// mu guards the fields below, and is held during calls of the sink: losses may drop objects at any time.
	mu sync.Mutex
	// published has the objects of the sink. losses decides for each of kinds about missing objects.
	published map[id]metav1.Object
	losses    []*model.Losses[id]
	// synced says that the sink has got all objects once.
	synced bool
	// told holds the errors of the last read, with the time of the next log line about each. ignored holds the logged
	// ignored kinds.
	told    map[string]reminder
	ignored map[groupKind]bool
}

// reminder holds the time at which a persistent error is logged again.
type reminder struct {
	at time.Time
	// waits returns the next waits; nil before the first.
	waits *backoff.ExponentialBackOff
}

// maxReminder bounds the time between two log lines about a persistent error. The first time is Source.Rescan, and each
// next one is twice as long.
const maxReminder = time.Hour

var _ tracker.Source = (*Source)(nil)

// New returns a Source over the directory dir.
func New(dir string) *Source {
	return &Source{Dir: dir, Quiet: 50 * time.Millisecond, Rescan: time.Minute}
}

// Run implements tracker.Source. It is synced when it has read the directory and each file in it once: until then it
// logs the errors, with back-off, and passes them to Sink.Waiting. Later a file with an error keeps its last good
// objects, and all objects stay while the directory is missing or unreadable. Guard decides about missing objects. The
// only error is an unknown working directory for a relative Dir. Run must not be called twice.
func (s *Source) Run(ctx context.Context, sink tracker.Sink) error {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return err
	}
	s.published, s.ignored = map[id]metav1.Object{}, map[groupKind]bool{}
	for _, k := range kinds {
		s.losses = append(s.losses, model.NewLosses(s.Guard, model.LossesOptions[id]{
			Resource: k.resource, Awaited: k.namespaced, MayBeEmpty: s.MayBeEmpty, Logger: klog.FromContext(ctx), Lock: &s.mu,
			Drop: func(id id) {
				k.remove(sink, id.namespace, id.name)
				delete(s.published, id)
			},
			Believed: func() { s.sync(sink) },
		}))
	}

	// The watch begins before the first read, so that no change is lost.
	w := newWatch(ctx, dir, s.Quiet, s.Rescan)
	defer w.close()
	for read := w.settle(ctx); read; read = w.wait(ctx) {
		s.refresh(ctx, dir, sink)
	}
	return nil
}

// refresh reads the directory and publishes the differences from the last time.
func (s *Source) refresh(ctx context.Context, dir string, sink tracker.Sink) {
	errs := s.directory.refresh(dir)
	if failing := len(errs) > 0; failing != s.failing {
		s.failing = failing
		if s.OnFailing != nil {
			s.OnFailing("manifests", failing)
		}
	}
	objects, duplicates := s.directory.objects()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logErrors(ctx, append(errs, duplicates...))
	s.logIgnored(ctx)
	if missing := s.directory.missing; len(missing) > 0 && !s.synced {
		sink.Waiting(waitingFor(missing))
		return
	}
	s.publish(objects, sink)
}

// sync calls Sink.Synced once, when all lists are believed. It needs mu.
func (s *Source) sync(sink tracker.Sink) {
	for i, l := range s.losses {
		if reason := l.Reason(); !l.Believed() && reason != "" {
			sink.Waiting(kinds[i].resource + ": " + reason)
		}
		if !l.Believed() {
			return
		}
	}
	if !s.synced {
		s.synced = true
		sink.Synced()
	}
}

// waitingFor returns the first error and the number of further errors.
func waitingFor(missing []error) string {
	text := "manifests: " + missing[0].Error()
	if more := len(missing) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// publish sets new and changed objects before it deletes missing ones, so that a renamed object leaves no gap. It needs
// mu.
func (s *Source) publish(objects map[id]metav1.Object, sink tracker.Sink) {
	before := maps.Clone(s.published)
	for _, id := range slices.SortedFunc(maps.Keys(objects), id.compare) {
		o := objects[id]
		if old := before[id]; old != o && (old == nil || !equality.Semantic.DeepEqual(old, o)) {
			kinds[id.kind].set(sink, o)
		}
		s.published[id] = o
	}
	for k, l := range s.losses {
		l.List(served(k, before), served(k, objects), otherStorage(k, before, objects))
	}
	s.sync(sink)
}

// served maps the objects of a kind to what they serve.
func served(kind int, objects map[id]metav1.Object) map[id]string {
	all := map[id]string{}
	for id, o := range objects {
		if id.kind == kind {
			all[id] = kinds[kind].serves(o)
		}
	}
	return all
}

// otherStorage reports whether default/kubernetes has another UID than before.
func otherStorage(kind int, before, now map[id]metav1.Object) bool {
	kubernetes := id{kind, metav1.NamespaceDefault, "kubernetes"}
	old, found := before[kubernetes]
	latest, still := now[kubernetes]
	return found && still && old.GetUID() != "" && latest.GetUID() != "" && old.GetUID() != latest.GetUID()
}

// logErrors logs new errors, and persistent ones with back-off.
func (s *Source) logErrors(ctx context.Context, errs []error) {
	logger, now := klog.FromContext(ctx), time.Now()
	consequence := "Manifest cannot be used; programming nothing before everything was read once"
	if s.synced {
		consequence = "Manifest cannot be used, keeping the last good one if any"
	}
	told := make(map[string]reminder, len(errs))
	for _, err := range errs {
		text := err.Error()
		if _, twice := told[text]; twice {
			continue
		}
		next := s.told[text]
		if !now.Before(next.at) {
			logger.Error(err, consequence, "dir", s.Dir)
			if next.waits == nil {
				next.waits = &backoff.ExponentialBackOff{InitialInterval: s.Rescan, Multiplier: 2, MaxInterval: maxReminder}
			}
			next.at = now.Add(next.waits.NextBackOff())
		}
		told[text] = next
	}
	if len(s.told) > 0 && len(told) == 0 {
		logger.Info("All manifests are good again", "dir", s.Dir)
	}
	s.told = told
}

// logIgnored logs each ignored kind once.
func (s *Source) logIgnored(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(s.directory.files)) {
		for _, gk := range s.directory.files[name].ignored {
			if !s.ignored[gk] {
				s.ignored[gk] = true
				klog.FromContext(ctx).Info("Ignoring objects of a kind that a Service proxy does not need",
					"apiVersion", gk.apiVersion, "kind", gk.kind, "file", name)
			}
		}
	}
}
