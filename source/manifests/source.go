package manifests

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/tracker"
)

// Source watches a directory of manifests. Make one with New; the fields may be set
// before Run.
type Source struct {
	// Dir is the directory, absolute or relative to the working directory.
	Dir string
	// Quiet is how long the directory must be without changes before it is read, so
	// that a file is not read while it is written. Default 50 ms. A directory that
	// changes all the time is read after 20 times as long.
	Quiet time.Duration
	// Rescan is how often the directory is read without a notice of a change. The kernel gives
	// none for network file systems, for links into other directories, and when the system has
	// no inotify watches left. Default 1 minute.
	Rescan time.Duration

	directory directory
	published map[id]object
	// told holds the errors of the last read, and ignored the kinds ignored so far. Each is logged once.
	told    map[string]bool
	ignored map[groupKind]bool
}

var _ tracker.Source = (*Source)(nil)

// New returns a Source over the directory dir.
func New(dir string) *Source {
	return &Source{Dir: dir, Quiet: 50 * time.Millisecond, Rescan: time.Minute}
}

// Run implements tracker.Source. It returns an error if Dir is not a directory when it
// starts. It logs errors of files, and keeps the last good objects of such a file. If the directory
// is deleted later, its objects stay until there is a directory again. Run must not be called twice.
func (s *Source) Run(ctx context.Context, sink tracker.Sink) error {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return err
	}
	if info, err := os.Stat(dir); err != nil {
		return fmt.Errorf("manifest directory: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("manifest directory: %s is not a directory", dir)
	}
	s.published, s.ignored = map[id]object{}, map[groupKind]bool{}

	// The watch begins before the first read, so that nothing falls in between.
	w := newWatch(ctx, dir, s.Quiet, s.Rescan)
	defer w.close()
	s.refresh(ctx, dir, sink)
	sink.Synced()
	for w.wait(ctx) {
		s.refresh(ctx, dir, sink)
	}
	return nil
}

// refresh reads the directory and publishes the differences from the last time.
func (s *Source) refresh(ctx context.Context, dir string, sink tracker.Sink) {
	errs := s.directory.refresh(dir)
	objects, duplicates := s.directory.objects()
	s.logErrors(ctx, append(errs, duplicates...))
	s.logIgnored(ctx)
	s.publish(objects, sink)
}

// publish sets what is new or different before it deletes what is gone, so that an
// object that moves to another name leaves no gap.
func (s *Source) publish(objects map[id]object, sink tracker.Sink) {
	for _, id := range slices.SortedFunc(maps.Keys(objects), id.compare) {
		o := objects[id]
		old, known := s.published[id]
		if known && (old.value == o.value || equality.Semantic.DeepEqual(old.value, o.value)) {
			continue
		}
		o.set(sink)
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.published), id.compare) {
		if _, still := objects[id]; !still {
			id.remove(sink)
		}
	}
	s.published = objects
}

// logErrors logs the errors that were not there the last time.
func (s *Source) logErrors(ctx context.Context, errs []error) {
	logger := klog.FromContext(ctx)
	told := make(map[string]bool, len(errs))
	for _, err := range errs {
		text := err.Error()
		if !s.told[text] && !told[text] {
			logger.Error(err, "Manifest cannot be used, keeping the last good one if any", "dir", s.Dir)
		}
		told[text] = true
	}
	if len(s.told) > 0 && len(told) == 0 {
		logger.Info("All manifests are good again", "dir", s.Dir)
	}
	s.told = told
}

// logIgnored logs each kind that is ignored, once.
func (s *Source) logIgnored(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(s.directory.files)) {
		for _, gk := range s.directory.files[name].ignored {
			if !s.ignored[gk] {
				s.ignored[gk] = true
				klog.FromContext(ctx).Info("Ignoring objects of a kind that a Service proxy does not need", "apiVersion", gk.apiVersion, "kind", gk.kind, "file", name)
			}
		}
	}
}
