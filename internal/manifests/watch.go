package manifests

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// patience is how many quiet periods a directory that never is quiet is waited for.
const patience = 20

// watch tells when a directory should be read again. It watches the directory and its
// parent: the path may be a link that is swapped for another, or a directory that is
// renamed away, and a watch on the directory alone would stay with the old one.
type watch struct {
	dir    string
	quiet  time.Duration
	rescan time.Duration
	logger klog.Logger

	// notify is nil on a system without inotify instances left; then only rescan counts.
	notify *fsnotify.Watcher
	// watched is the directory that the watch is on, nil if there is none.
	watched os.FileInfo
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
		// Nothing is left to be done about a failure.
		_ = w.notify.Close()
	}
}

// follow puts the watch on what the path now leads to.
func (w *watch) follow() {
	if w.notify == nil {
		return
	}
	info, err := os.Stat(w.dir)
	if err != nil {
		w.watched = nil
		return
	}
	if w.watched != nil && os.SameFile(info, w.watched) {
		return
	}
	// An old watch on the same path may be gone already.
	_ = w.notify.Remove(w.dir)
	if err := w.notify.Add(w.dir); err != nil {
		w.logger.Error(err, "Cannot watch the manifest directory, reading it now and then", "dir", w.dir, "every", w.rescan)
		w.watched = nil
		return
	}
	w.watched = info
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

// wait returns true when the directory should be read, and false when ctx has ended.
func (w *watch) wait(ctx context.Context) bool {
	rescan := time.NewTimer(w.rescan)
	defer rescan.Stop()
	var quiet, enough <-chan time.Time
	events, errs := w.channels()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-rescan.C:
			w.follow()
			return true
		case <-quiet:
			w.follow()
			return true
		case <-enough:
			w.follow()
			return true
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

func (w *watch) channels() (<-chan fsnotify.Event, <-chan error) {
	if w.notify == nil {
		return nil, nil
	}
	return w.notify.Events, w.notify.Errors
}

// matters reports whether an event can mean other manifests. Hidden names do: the link
// "..data" is all that changes in a volume that Kubernetes makes of a ConfigMap.
func (w *watch) matters(event fsnotify.Event) bool {
	if event.Op == fsnotify.Chmod {
		return false
	}
	return event.Name == w.dir || filepath.Dir(event.Name) == w.dir
}
