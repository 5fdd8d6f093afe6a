package ruledump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"time"
)

// RulesFile is the name of the dump in a report.
const RulesFile = "rules.json"

// File is a file of a report.
type File struct {
	// Name is its name, without a directory.
	Name string
	// Data is its content.
	Data []byte
}

// WriteReport writes a report: a compressed tar archive of the files, in a directory, with a time.
func WriteReport(w io.Writer, directory string, taken time.Time, files []File) error {
	compressed := gzip.NewWriter(w)
	archive := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{Name: path.Join(directory, f.Name), Mode: 0o644, Size: int64(len(f.Data)), ModTime: taken}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.Data); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

// isReport reports whether what begins so is compressed, as only a report is.
func isReport(beginning []byte) bool { return bytes.HasPrefix(beginning, []byte{0x1f, 0x8b}) }

// fromReport reads the dump of a report, and keeps the other files. Directories do not count.
func fromReport(r io.Reader) (*Snapshot, error) {
	compressed, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("the report is damaged: %w", err)
	}
	limited := &io.LimitedReader{R: compressed, N: maxSize + 1}
	var rules []byte
	files := map[string][]byte{}
	archive := tar.NewReader(limited)
	// A sparse file is larger than the part of the archive that it takes.
	for total := int64(0); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var data []byte
		if err == nil {
			if total += header.Size; total <= maxSize {
				data, err = io.ReadAll(archive)
			}
		}
		switch {
		case limited.N <= 0, total > maxSize:
			return nil, fmt.Errorf("the report has more than %d bytes", maxSize)
		case err != nil:
			return nil, fmt.Errorf("the report is damaged: %w", err)
		}
		if name := path.Base(header.Name); name == RulesFile {
			rules = data
		} else {
			files[name] = data
		}
	}
	if rules == nil {
		return nil, fmt.Errorf("this is no report of ruledump's: it has no file %s", RulesFile)
	}
	s, err := fromDocument(bytes.NewReader(rules))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", RulesFile, err)
	}
	s.Files = files
	return s, nil
}
