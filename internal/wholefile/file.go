// Package wholefile writes files for administrators, into directories that others may write to, such as /tmp.
package wholefile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Write writes a file whole or not at all: it makes a new file in the directory, which then replaces the one that is
// there. Mode is that of the new file, less the umask; the mode of the file before does not count. Devices are written
// to, and so is /dev/stdout. A symbolic link, a named pipe or a directory at path is an error: another user may have
// put it there.
func Write(path string, data []byte, mode fs.FileMode) error {
	if path == "/dev/stdout" { // a link to what may be a pipe or a file
		_, err := os.Stdout.Write(data)
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular():
		return replace(path, data, mode)
	case err != nil:
		return err
	case info.Mode()&fs.ModeDevice == 0:
		return fmt.Errorf("%s is no file (%s), and is not written to", path, info.Mode().Type())
	}
	device, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	_, err = device.Write(data)
	return errors.Join(err, device.Close())
}

func replace(path string, data []byte, mode fs.FileMode) error {
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"-"+rand.Text())
	draft, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = draft.Write(data)
	if err = errors.Join(err, draft.Sync(), draft.Close()); err == nil {
		err = os.Rename(name, path)
	}
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}
