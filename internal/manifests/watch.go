package manifests

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// patience is the number of quiet periods after which a directory is read although it changes all the time.
const patience = 20

// watch waits until a directory should be read again. It watches the directory and its parent: the path may be a link
// that is replaced, or a directory that is renamed away, and a watch on the directory alone would stay with the old
// directory.
type watch struct {
	dir    string
	quiet  time.Duration
	rescan time.Duration
	logger klog.Logger

	// notify is nil if no inotify instance is left; then only rescan triggers reads.
	notify *fsnotify.Watcher
}

func newWatch(ctx context.Context, dir string, quiet, rescan time.Duration) *watch {
	w := &watch{dir: dir, quiet: quiet, rescan: rescan, logger: klog.FromContext(ctx)}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.logger.Error(err, "Cannot watch the manifest directory, reading it now and then", "dir", dir, "every", rescan)
		return w
	}
	w.notify = notify
	if err := notify.Add(filepath.Dir(dir)); err != nil {
		w.logger.Error(err, "Cannot watch the parent of the manifest directory", "dir", dir)
	}
	w.follow()
	return w
}

func (w *watch) close() {
	if w.notify != nil {
		_ = w.notify.Close() // nothing is left to be done about a failure
	}
}

// follow watches the present target of the path. The caller reads the directory afterwards, so no change is lost. It
// returns true.
func (w *watch) follow() bool {
	if w.notify == nil {
		return true
	}
	_ = w.notify.Remove(w.dir) // the old watch may be gone with its directory
	if err := w.notify.Add(w.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		w.logger.Error(err, "Cannot watch the manifest directory, reading it now and then", "dir", w.dir, "every", w.rescan)
	}
	return true
}

// settle waits until neither the directory nor a manifest in it has changed for a quiet period, because a file may be
// half written at the start. It returns false when ctx has ended.
func (w *watch) settle(ctx context.Context) bool {
	enough := time.After(patience * w.quiet)
	for changedWithin(w.dir, w.quiet) {
		select {
		case <-ctx.Done():
			return false
		case <-enough:
			return true
		case <-time.After(w.quiet):
		}
	}
	return true
}

// wait waits until the directory should be read: after a change and a quiet period, or at the next rescan. It returns
// false when ctx has ended.
func (w *watch) wait(ctx context.Context) bool {
	rescan := time.NewTimer(w.rescan)
	defer rescan.Stop()
	var quiet, enough <-chan time.Time
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w.notify != nil {
		events, errs = w.notify.Events, w.notify.Errors
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-rescan.C:
			return w.follow()
		case <-quiet:
			return w.follow()
		case <-enough:
			return w.follow()
		case event := <-events:
			if !w.matters(event) {
				continue
			}
		case err := <-errs:
			// An overflow means that events were lost: read everything.
			w.logger.Error(err, "Watch of the manifest directory lost track, reading it again", "dir", w.dir)
		}
		quiet = time.After(w.quiet)
		if enough == nil {
			enough = time.After(patience * w.quiet)
		}
	}
}

// matters reports whether an event may change manifests. Hidden names count: in a ConfigMap's volume only the link
// "..data" changes.
func (w *watch) matters(event fsnotify.Event) bool {
	return event.Op != fsnotify.Chmod && (event.Name == w.dir || filepath.Dir(event.Name) == w.dir)
}
