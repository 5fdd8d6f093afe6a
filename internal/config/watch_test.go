package config

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/testkit/process"
)

// patience bounds the time until a change is noticed.
const patience = 30 * time.Second

// watching loads a file and watches it. What Watch returns comes on the channel.
func watching(t *testing.T, path string) (stop context.CancelFunc, result <-chan error) {
	t.Helper()
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Watch(ctx) }()
	return stop, done
}

func wantChange(t *testing.T, path string, result <-chan error) {
	t.Helper()
	select {
	case err := <-result:
		if err == nil || !strings.Contains(err.Error(), path+" has changed") {
			t.Errorf("Watch returned %v, want that %s has changed", err, path)
		}
	case <-time.After(patience):
		t.Error("the change was not noticed")
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWatch(t *testing.T) {
	t.Run("notices a changed file", testChangedFileIsNoticed)
	t.Run("notices a swapped ConfigMap", testSwappedConfigMapIsNoticed)
	t.Run("watches a file behind a link where it is", testFileBehindALinkIsWatchedWhereItIs)
	t.Run("does not notice unchanged files", testUnchangedFilesAreNotNoticed)
	t.Run("reads the file now and then if the kernel refuses", testUnwatchedFileIsReadNowAndThen)
}

func testUnwatchedFileIsReadNowAndThen(t *testing.T) {
	for name, refused := range map[string]struct {
		call  uint32
		errno unix.Errno
	}{
		"an inotify instance": {unix.SYS_INOTIFY_INIT1, unix.EMFILE},
		"an inotify watch":    {unix.SYS_INOTIFY_ADD_WATCH, unix.ENOSPC},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			write(t, path, header1)
			f, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			f.rescan = 10 * time.Millisecond
			result := make(chan error, 1)
			watch := func() {
				result <- process.Behind(process.Calls(process.Refused(refused.errno), refused.call), func(*process.Call) process.Verdict { return process.Pass },
					func() { result <- f.Watch(t.Context()) })
			}
			go watch()
			select {
			case err := <-result:
				t.Fatalf("Watch returned %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			write(t, path, header1+"mode: nftables\n")
			wantChange(t, path, result)
		})
	}
}

func testChangedFileIsNoticed(t *testing.T) {
	changed := header1 + "mode: nftables\n"
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, path string)
	}{
		{"written in place", func(t *testing.T, path string) { write(t, path, changed) }},
		{"replaced by another file", func(t *testing.T, path string) {
			write(t, path+".new", changed)
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}},
		{"removed, and made again", func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, changed)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			write(t, path, header1)
			_, result := watching(t, path)
			tt.change(t, path)
			wantChange(t, path, result)
		})
	}
}

// The kubelet writes a ConfigMap into a new directory, and swaps a link to it.
func testSwappedConfigMapIsNoticed(t *testing.T) {
	volume := t.TempDir()
	publish := func(version, content string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(volume, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(volume, version, "config.conf"), content)
		next := filepath.Join(volume, "..data_tmp")
		if err := os.Symlink(version, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(volume, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	publish("..1", header1)
	path := filepath.Join(volume, "config.conf")
	if err := os.Symlink(filepath.Join("..data", "config.conf"), path); err != nil {
		t.Fatal(err)
	}
	_, result := watching(t, path)
	publish("..2", header1+"mode: nftables\n")
	if err := os.RemoveAll(filepath.Join(volume, "..1")); err != nil {
		t.Fatal(err)
	}
	wantChange(t, path, result)
}

func testFileBehindALinkIsWatchedWhereItIs(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "real.yaml")
	write(t, elsewhere, header1)
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.Symlink(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	_, result := watching(t, path)
	write(t, elsewhere, header1+"mode: nftables\n")
	wantChange(t, path, result)
}

// The same content again, other files beside it and a file that is gone for a while are no reason
// to exit.
func testUnchangedFilesAreNotNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, header1)
	stop, result := watching(t, path)
	write(t, path+".swp", "something")
	write(t, path, header1)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".swp", path+".old"); err != nil {
		t.Fatal(err)
	}
	write(t, path+".new", header1)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	stop()
	select {
	case err := <-result:
		if err != nil {
			t.Errorf("Watch returned %v, want nil when the context ends", err)
		}
	case <-time.After(patience):
		t.Error("Watch goes on after its context has ended")
	}
}
