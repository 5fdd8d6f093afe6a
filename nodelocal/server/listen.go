package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// socketMode lets nobody but the owner connect.
	socketMode = 0o600
	// directoryMode is that of a directory that Listen makes.
	directoryMode = 0o700
	// maxSocketPath is how long the path of a socket may be, in bytes (sockaddr_un, with room for a suffix).
	maxSocketPath = 100
)

// Listen listens on unix:///PATH, or on tcp://HOST:PORT, for which secure says that Options.TLS is set. Errors name the address.
//
// A socket is private: its mode is 0600, and nobody but root and this process's user may be able to write to its directory,
// which is made if it is missing. A socket that is there already is replaced in one step, so that a new version can start before
// the old one ends.
func Listen(ctx context.Context, address string, secure bool) (net.Listener, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	switch {
	case scheme == "unix" && filepath.IsAbs(rest):
		return listenUnix(ctx, filepath.Clean(rest))
	case scheme == "tcp" && rest != "":
		if !secure {
			return nil, fmt.Errorf("listen on %s: TLS with client certificates is needed: everybody on the network could read which Services there are", address)
		}
		return (&net.ListenConfig{}).Listen(ctx, "tcp", rest)
	}
	return nil, fmt.Errorf("listen on %q: it is neither unix:///PATH nor tcp://HOST:PORT", address)
}

func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("listen on unix://%s: the path has %d bytes, at most %d are possible", path, len(path), maxSocketPath)
	}
	if err := checkDirectory(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen on unix://%s: %w", path, err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("listen on unix://%s: there is something that is not a socket (%s)", path, info.Mode().Type())
	}
	// Nobody can connect to a socket by its final name before it is private.
	first := fmt.Sprintf("%s.%d", path, os.Getpid()%100_000)
	_ = os.Remove(first)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", first)
	if err != nil {
		return nil, fmt.Errorf("listen on unix://%s: %w", path, err)
	}
	unix := listener.(*net.UnixListener)
	unix.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(first, socketMode), os.Rename(first, path)); err != nil {
		unix.Close()
		os.Remove(first)
		return nil, fmt.Errorf("listen on unix://%s: %w", path, err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		unix.Close()
		return nil, fmt.Errorf("listen on unix://%s: %w", path, err)
	}
	return &socket{UnixListener: unix, path: path, info: info}, nil
}

// checkDirectory makes the directory if it is missing, and refuses one in which others could put a socket of theirs.
func checkDirectory(dir string) error {
	if err := os.MkdirAll(dir, directoryMode); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("directory %s belongs to user %d, who could replace the socket", dir, stat.Uid)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("directory %s is writable for others (%s), who could replace the socket", dir, info.Mode().Perm())
	}
	return nil
}

// socket is a listener that removes its file, unless another process has replaced it.
type socket struct {
	*net.UnixListener
	path string
	info fs.FileInfo
}

// Close implements net.Listener.
func (s *socket) Close() error {
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.info) {
		_ = os.Remove(s.path)
	}
	return s.UnixListener.Close()
}
