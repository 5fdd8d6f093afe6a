package manifests

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// errBlank is the error of a file without text. Every file is blank between truncating and
// writing it, and nobody means to take all Services away by that.
var errBlank = errors.New("the file is empty; write its objects or delete it (until then the last ones stay)")

// directory is the manifests of a directory as they were last good.
type directory struct {
	files map[string]*file
	// bad is what is wrong with a file now, so that it is not decoded again unchanged.
	bad map[string]badFile
	// missing says what of the directory was never read: it itself, or a file.
	missing []error
	// unreadable says why the directory itself could not be read the last time; nil if it was.
	unreadable error
}

type badFile struct {
	sum [sha256.Size]byte
	err error
}

// refresh reads dir and returns what is wrong with it now. Of a file that cannot be used
// the last good objects stay; if dir itself cannot be read, everything stays.
func (d *directory) refresh(dir string) []error {
	all, err := readDir(dir)
	d.unreadable = err
	if err != nil {
		if d.files == nil {
			d.missing = []error{err}
		}
		return []error{err}
	}
	files := make(map[string]*file, len(all))
	bad := map[string]badFile{}
	var errs []error
	d.missing = nil
	for _, name := range slices.Sorted(maps.Keys(all)) {
		sum := sha256.Sum256(all[name].text)
		f, err := d.refreshFile(name, all[name], sum)
		if f != nil {
			files[name] = f
		}
		if err == nil {
			continue
		}
		if all[name].err == nil {
			bad[name] = badFile{sum, err}
		}
		errs = append(errs, flatten(err)...)
		if f == nil {
			d.missing = append(d.missing, flatten(err)...)
		}
	}
	d.files, d.bad = files, bad
	return errs
}

// refreshFile returns what the file now stands for.
func (d *directory) refreshFile(name string, now content, sum [sha256.Size]byte) (*file, error) {
	old, text := d.files[name], now.text
	switch {
	case now.err != nil:
		return old, now.err
	case old != nil && old.sum == sum:
		return old, nil
	case isBlank(text):
		return old, fmt.Errorf("%s: %w", name, errBlank)
	}
	if bad, ok := d.bad[name]; ok && bad.sum == sum {
		return old, bad.err
	}
	f, err := parseFile(name, text, old)
	if err != nil {
		return old, err
	}
	f.sum = sum
	return f, nil
}

// objects returns all objects of the directory. Of an object in two places the first in
// file name order counts, and the others are errors.
func (d *directory) objects() (map[id]object, []error) {
	all := map[id]object{}
	origin := map[id]string{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		for _, o := range d.files[name].objects {
			if first, taken := origin[o.id]; taken {
				errs = append(errs, &DuplicateError{Object: o.id.String(), File: name, First: first})
				continue
			}
			all[o.id] = o
			origin[o.id] = name
		}
	}
	return all, errs
}

// DuplicateError is an object that two files hold, or one file holds twice.
type DuplicateError struct {
	// Object is the object's kind and name.
	Object string
	// File holds the object that does not count; First holds the one that does.
	File, First string
}

// Error names the object and both files.
func (e *DuplicateError) Error() string {
	return fmt.Sprintf("%s: %s is already in %s, which counts", e.File, e.Object, e.First)
}
