package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceFile writes a file whole or not at all: with a full disk, the one that is there stays. What is no regular file,
// such as /dev/stdout, and what is in a directory that cannot be written, is written in place.
func replaceFile(path string, data []byte) error {
	mode := fs.FileMode(0o644)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return os.WriteFile(path, data, mode)
		}
		mode = info.Mode().Perm()
	}
	draft, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return os.WriteFile(path, data, mode)
	}
	_, err = draft.Write(data)
	if err = errors.Join(err, draft.Chmod(mode), draft.Sync(), draft.Close()); err == nil {
		err = os.Rename(draft.Name(), path)
	}
	if err != nil {
		_ = os.Remove(draft.Name())
	}
	return err
}
