package manifests

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// file is one manifest file as it was last good.
type file struct {
	// sum is of the text.
	sum     [sha256.Size]byte
	objects []object
	ignored []groupKind
	// byText finds a document that did not change, so that it need not be decoded again.
	byText map[[sha256.Size]byte]decoded
}

// parseFile decodes all documents of a file, on all processors since decoding is the
// whole cost of a large directory. Documents that are in old are taken from there.
// Any error makes the whole file bad: half of it may be worse than what was there before.
func parseFile(name string, text []byte, old *file) (*file, error) {
	docs := slices.Collect(documents(text))
	results := make([]decoded, len(docs))
	errs := make([]error, len(docs))
	f := &file{byText: make(map[[sha256.Size]byte]decoded, len(docs))}

	var todo []int
	sums := make([][sha256.Size]byte, len(docs))
	for i, doc := range docs {
		sums[i] = sha256.Sum256(doc.text)
		if old != nil {
			if known, ok := old.byText[sums[i]]; ok {
				results[i] = known
				continue
			}
		}
		todo = append(todo, i)
	}
	inParallel(todo, func(i int) {
		results[i], errs[i] = decode(docs[i])
		errs[i] = located(errs[i], name, docs[i])
	})
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for i, result := range results {
		f.objects = append(f.objects, result.objects...)
		f.ignored = append(f.ignored, result.ignored...)
		f.byText[sums[i]] = result
	}
	return f, nil
}

// inParallel calls work for each item, on all processors if there is much to do.
func inParallel(items []int, work func(int)) {
	const share = 64 // too few documents to be worth a goroutine
	var wg sync.WaitGroup
	size := max(share, (len(items)+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	for chunk := range slices.Chunk(items, size) {
		wg.Go(func() {
			for _, i := range chunk {
				work(i)
			}
		})
	}
	wg.Wait()
}

// located fills in where the DecodeErrors in err come from.
func located(err error, name string, doc document) error {
	for _, e := range flatten(err) {
		if d, ok := e.(*DecodeError); ok {
			d.File, d.Document, d.Line = name, doc.number, doc.line
		}
	}
	return err
}

// flatten returns the errors that were joined into err.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}

// isManifest reports whether a file of that name is read. Hidden files are not: editors
// and Kubernetes' own volumes keep what is not finished under such names.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// content is the text of a file, or why it cannot be read.
type content struct {
	text []byte
	err  error
}

// readDir reads each manifest in dir. A listed file that has vanished may have another name now, so readDir then lists
// dir again, and gives up after a few times.
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

// readListed lists dir and reads each manifest in it. It returns errVanished if one has vanished. A link that leads
// nowhere has not: its target may be a volume that is not mounted yet.
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
		text, err := readFile(path)
		switch {
		case errors.Is(err, errNoFile):
			continue
		case errors.Is(err, os.ErrNotExist) && !isLink(path):
			return nil, errVanished
		}
		all[entry.Name()] = content{text, err}
	}
	return all, nil
}

// isLink reports whether there is a symbolic link at path.
func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&os.ModeSymlink != 0
}

// changedWithin reports whether dir or a manifest in it has changed in the last age. Times further in the future than
// that come from a wrong clock and do not count.
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

// errNoFile is a directory or device with the name of a manifest.
var errNoFile = errors.New("not a regular file")

// readFile reads a regular file or what a link to one points at.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNoFile
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return text, nil
}

func isBlank(text []byte) bool { return len(bytes.TrimSpace(text)) == 0 }
