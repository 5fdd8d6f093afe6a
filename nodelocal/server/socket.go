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
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

const (
	// socketMode lets only the owner connect.
	socketMode = 0o600
	// maxLinks bounds the symbolic links on the way to the directory of a socket.
	maxLinks = 40
	// maxSocketPath is the longest path of a socket, in bytes (sockaddr_un, with room for a suffix).
	maxSocketPath = 100
)

// Listen listens on unix:///PATH, or, if secure says that Options.TLS is set, on tcp://HOST:PORT. Errors name the
// address.
//
// A socket is private: its mode is 0600, and only root and this process's user may write to its directory or to a
// directory above, sticky or not. Listen makes a missing directory, and replaces the socket of a killed server. The
// listener locks the file PATH.lock until it is closed. If another server holds the lock, or answers on the socket, the
// error wraps ErrInUse.
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
	s := &socket{path: path}
	if err := s.bind(ctx); err != nil {
		s.unlock()
		return nil, fmt.Errorf("listen on unix://%s: %w", path, err)
	}
	return s, nil
}

// checkDirectory makes a missing directory, and refuses a directory in which another user could put a socket, while the
// server runs or before its start. So it checks each directory on the way, also along links, before it makes or follows
// anything in it.
func checkDirectory(dir string) error {
	path, rest := "/", dir
	for links := 0; links <= maxLinks; {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			if err = os.Mkdir(path, 0o700); err == nil || errors.Is(err, fs.ErrExist) { // another server made it
				info, err = os.Lstat(path)
			}
		}
		switch {
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			links++
			path, rest = filepath.Dir(path), target+"/"+rest
			if filepath.IsAbs(target) {
				path = "/"
			}
		default:
			if err := checkPrivate(path, info); err != nil {
				return err
			}
		}
		next, after, _ := strings.Cut(strings.TrimLeft(rest, "/"), "/")
		if next == "" {
			return nil
		}
		path, rest = filepath.Join(path, next), after // path has no link, so ".." is its parent
	}
	return &fs.PathError{Op: "open", Path: dir, Err: unix.ELOOP}
}

// checkPrivate refuses a directory in which users other than root and this process's can replace files.
func checkPrivate(path string, info fs.FileInfo) error {
	owner := info.Sys().(*syscall.Stat_t).Uid
	if owner != 0 && int(owner) != os.Geteuid() && !isUnmapped(owner) {
		return fmt.Errorf("directory %s belongs to user %d, who could replace the socket", path, owner)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("directory %s is writable for others (%s), who could replace the socket; choose a path such as /run/nftproxy/node-local.sock", path, info.Mode())
	}
	return nil
}

// isUnmapped reports whether the number stands for all users outside of this process's user namespace, such as the
// machine's root, who owns "/".
func isUnmapped(user uint32) bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		var inside, outside, count uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil || uint64(user)-inside < count {
			return false
		}
	}
	return true
}

// ErrInUse is returned, wrapped, by Listen if another server holds the lock of the socket, or answers on it.
var ErrInUse = errors.New("another server listens there; stop it, or choose another path")

// socket listens on a path. It listens again when its file is gone. Until Close it locks the file PATH.lock, so that
// only one server can replace the socket.
type socket struct {
	path string

	mu       sync.Mutex
	closed   bool
	listener *net.UnixListener
	// info describes the listener's file.
	info fs.FileInfo
	// lock is the locked file, nil without a lock.
	lock *os.File
}

// bind locks the path, makes a new file, and listens on it.
func (s *socket) bind(ctx context.Context) error {
	if len(s.path) > maxSocketPath {
		return fmt.Errorf("the path has %d bytes, at most %d are possible", len(s.path), maxSocketPath)
	}
	if err := checkDirectory(filepath.Dir(s.path)); err != nil {
		return err
	}
	if err := s.takeLock(); err != nil {
		return err
	}
	if err := checkFree(ctx, s.path); err != nil {
		return err
	}
	// The socket gets its final name when it is private.
	first := s.path + ".new"
	_ = os.Remove(first)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", first)
	if err != nil {
		return err
	}
	made := listener.(*net.UnixListener)
	made.SetUnlinkOnClose(false)
	info, err := os.Lstat(first)
	if err := errors.Join(err, os.Chmod(first, socketMode), os.Rename(first, s.path)); err != nil {
		made.Close()
		os.Remove(first)
		return err
	}
	if s.listener != nil {
		s.listener.Close()
	}
	s.listener, s.info = made, info
	return nil
}

// takeLock locks the file PATH.lock, unless s has locked it. The kernel unlocks it when the process ends. The file
// stays: after its removal two servers could each lock a file of this name.
func (s *socket) takeLock() error {
	path := s.path + ".lock"
	if own, err := s.lock.Stat(); err == nil && isAt(path, own) {
		return nil
	}
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, socketMode)
	if err != nil {
		return err
	}
	if err := setLock(lock, unix.F_WRLCK); err != nil {
		lock.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return ErrInUse
		}
		return fmt.Errorf("lock %s: %w", path, err)
	}
	s.unlock()
	s.lock = lock
	return nil
}

// setLock locks the open file description: a process could take a process lock twice.
func setLock(file *os.File, kind int16) error {
	return unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind})
}

// unlock releases the lock. Closing the file would not: a child process has the file too, until it executes its
// program.
func (s *socket) unlock() {
	if s.lock != nil {
		_ = setLock(s.lock, unix.F_UNLCK)
		s.lock.Close()
	}
}

// checkFree returns an error unless the path is free, or a socket on which no server answers.
func checkFree(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("there is something that is not a socket (%s)", info.Mode().Type())
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		conn.Close()
		return ErrInUse
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("find out whether another server answers: %w", err)
}

// keep checks once a second whether the file is gone, and then listens again, until ctx ends.
func (s *socket) keep(ctx context.Context, logger logr.Logger) {
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		again, err := s.restore(ctx)
		switch {
		case again:
			logged = ""
			logger.Info("The socket of the node-local API was gone, listening again", "path", s.path)
		case err != nil && err.Error() != logged && ctx.Err() == nil:
			logged = err.Error()
			logger.Error(err, "The socket of the node-local API is gone, trying to listen again; clients that are connected are served", "path", s.path)
		}
	}
}

// restore listens again if the file is gone.
func (s *socket) restore(ctx context.Context) (again bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || isAt(s.path, s.info) {
		return false, nil
	}
	err = s.bind(ctx)
	return err == nil, err
}

// isAt reports whether path is still the path of the file.
func isAt(path string, file fs.FileInfo) bool {
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(now, file)
}

// Accept implements net.Listener.
func (s *socket) Accept() (net.Conn, error) {
	for {
		listener := s.current()
		conn, err := listener.AcceptUnix()
		if err == nil {
			return localConn{conn, processOf(conn)}, nil
		}
		if listener == s.current() {
			return nil, err
		}
	}
}

func (s *socket) current() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener
}

// Addr implements net.Listener.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close implements net.Listener. It removes the file, unless another server has replaced it.
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if isAt(s.path, s.info) {
		_ = os.Remove(s.path)
	}
	defer s.unlock()
	return s.listener.Close()
}
