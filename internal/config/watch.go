package config

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// Watch returns an error when the file has other content than was read, for the process to
// exit with and be restarted, and nil when ctx ends. It watches the directory of the
// file, and of the file that it is a link to: in a volume made of a ConfigMap, a
// link in the directory is all that changes. A file that is gone, or empty as it is for a moment
// when it is overwritten, is waited for.
func (f *File) Watch(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch configuration %s: %w", f.Path, err)
	}
	defer watcher.Close()
	logger := klog.FromContext(ctx)
	for {
		// Before each look, since the link may lead elsewhere now. Adding twice does nothing.
		if err := f.follow(watcher); err != nil {
			return fmt.Errorf("watch configuration %s: %w", f.Path, err)
		}
		if data, err := os.ReadFile(f.Path); err == nil && len(data) > 0 && !bytes.Equal(data, f.data) {
			return fmt.Errorf("configuration %s has changed: exiting, to be restarted with it", f.Path)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
		case err := <-watcher.Errors:
			logger.Error(err, "Watch of the configuration lost track, reading it again", "file", f.Path)
		}
	}
}

// follow watches the directories in which the file can change.
func (f *File) follow(watcher *fsnotify.Watcher) error {
	if target, err := filepath.EvalSymlinks(f.Path); err == nil {
		// It may be gone before it is watched; then the link has changed, which is seen.
		_ = watcher.Add(filepath.Dir(target))
	}
	return watcher.Add(filepath.Dir(f.Path))
}
