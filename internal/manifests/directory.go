package manifests

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// errBlank is the error of a file without text, such as a file between truncation and writing.
var errBlank = errors.New("the file is empty; write its objects or delete it (until then the last ones stay)")

// directory holds the last good manifests of a directory.
type directory struct {
	// files is nil until the directory was read.
	files map[string]*file
	// missing says what was never read: the directory, or a file.
	missing []error
	// unreadable is the error of the last reading of the directory itself; nil for none.
	unreadable error
}

// file is one manifest file.
type file struct {
	// decoded is the last good content. good says that there is one.
	decoded
	good bool
	// sum and errs are the checksum and the errors of the present text, which is not decoded again.
	sum  [sha256.Size]byte
	errs []error
}

// refresh reads dir and returns its errors. A bad file keeps its last good objects; if dir itself cannot be read, all
// objects stay.
func (d *directory) refresh(dir string) (errs []error) {
	all, err := readDir(dir)
	if d.unreadable = err; err != nil {
		if d.files == nil {
			d.missing = []error{err}
		}
		return []error{err}
	}
	old := d.files
	d.files, d.missing = make(map[string]*file, len(all)), nil
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := refreshFile(name, all[name], old[name])
		d.files[name] = f
		errs = append(errs, f.errs...)
		if !f.good {
			d.missing = append(d.missing, f.errs...)
		}
	}
	return errs
}

// refreshFile returns the file's present state. old is the state before, or nil.
func refreshFile(name string, now content, old *file) *file {
	f := &file{}
	if old != nil {
		*f = *old
	}
	if now.err != nil {
		f.sum, f.errs = [sha256.Size]byte{}, []error{now.err}
		return f
	}
	sum := sha256.Sum256(now.text)
	if old != nil && old.sum == sum {
		return old
	}
	f.sum, f.errs = sum, nil
	if len(bytes.TrimSpace(now.text)) == 0 {
		f.errs = []error{fmt.Errorf("%s: %w", name, errBlank)}
		return f
	}
	// Any error makes the whole file bad: half of it may be worse than the last good content.
	found, errs := decodeFile(name, now.text)
	if f.errs = errs; len(errs) == 0 {
		f.decoded, f.good = found, true
	}
	return f
}

// objects returns all objects of the directory. For an object in several files the first in file name order counts, and
// the others are errors.
func (d *directory) objects() (map[id]metav1.Object, []error) {
	all := map[id]metav1.Object{}
	origin := map[id]string{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		for _, o := range d.files[name].objects {
			if first, taken := origin[o.id]; taken {
				errs = append(errs, fmt.Errorf("%s: %s is already in %s, which counts", name, o.id, first))
				continue
			}
			all[o.id] = o.Object
			origin[o.id] = name
		}
	}
	return all, errs
}

// isManifest reports whether the name is a manifest's. Hidden files are none: editors and Kubernetes' volumes keep
// unfinished files under hidden names.
func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// content is the text of a file, or the error of reading it.
type content struct {
	text []byte
	err  error
}

// readDir reads each manifest in dir. A listed file that has vanished may have a new name, so readDir then lists dir
// again, a few times at most.
func readDir(dir string) (map[string]content, error) {
	for range 5 {
		all, err := readListed(dir)
		if !errors.Is(err, errVanished) {
			return all, err
		}
	}
	return nil, fmt.Errorf("%s: %w", dir, errVanished)
}

// errVanished is the error of a directory whose files are renamed or deleted while it is read.
var errVanished = errors.New("files vanish while the directory is read")

// readListed lists dir and reads each manifest in it, also behind links. It returns errVanished if a file has vanished.
// A broken link is no vanished file: its target may be on a volume that is not mounted yet.
func readListed(dir string) (map[string]content, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[string]content{}
	for _, entry := range entries {
		if !isManifest(entry.Name()) {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			continue // a directory or device with the name of a manifest
		}
		var text []byte
		if err == nil {
			text, err = os.ReadFile(path)
		}
		if errors.Is(err, os.ErrNotExist) {
			if link, err := os.Lstat(path); err != nil || link.Mode()&os.ModeSymlink == 0 {
				return nil, errVanished
			}
		}
		all[entry.Name()] = content{text, err}
	}
	return all, nil
}

// changedWithin reports whether dir or a manifest in it has changed in the last age. Times further in the future come
// from a wrong clock and do not count.
func changedWithin(dir string, age time.Duration) bool {
	paths := []string{dir}
	entries, _ := os.ReadDir(dir) // reading the files reports the error
	for _, entry := range entries {
		if isManifest(entry.Name()) {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return slices.ContainsFunc(paths, func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && time.Since(info.ModTime()).Abs() < age
	})
}
