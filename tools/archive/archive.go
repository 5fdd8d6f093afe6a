// Package archive writes tar archives for the commands image and release. Their bytes depend on the names, the modes
// and the contents of the files alone, and on a time that the caller gives.
package archive

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// File is a file of an archive.
type File struct {
	// Name is that in the archive. A directory's ends with a slash; it needs no more.
	Name string
	// Path is the path of the file to read; empty if Data has its content.
	Path string
	Data []byte
	// Program says that all may execute the file.
	Program bool
}

// Below returns the files below a directory in the order of their names, as those below another one.
func Below(dir, as string) (files []File, err error) {
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, file)
		files = append(files, File{Name: path.Join(as, filepath.ToSlash(name)), Path: file})
		return err
	})
	return files, err
}

// Write writes the files in their order. They belong to root.
func Write(w io.Writer, modified time.Time, files []File) error {
	out := tar.NewWriter(w)
	for _, f := range files {
		if err := f.write(out, modified); err != nil {
			return err
		}
	}
	return out.Close()
}

func (f *File) write(out *tar.Writer, modified time.Time) (err error) {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: 0o644, ModTime: modified}
	data := f.Data
	switch {
	case strings.HasSuffix(f.Name, "/"):
		header.Typeflag, header.Mode = tar.TypeDir, 0o755
	case f.Program:
		header.Mode = 0o755
	}
	if f.Path != "" {
		if data, err = os.ReadFile(f.Path); err != nil {
			return err
		}
	}
	header.Size = int64(len(data))
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}
