package server

import (
	"context"
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
// which is made if it is missing. The listener locks the file PATH.lock until it is closed. A socket whose lock another server holds,
// or on which one answers, is an error that wraps ErrInUse; one that a server left when it was killed is replaced.
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
