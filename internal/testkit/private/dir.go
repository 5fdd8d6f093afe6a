// Package private has directories in which nobody but root and the user of the test can put a socket. Those of
// testing.T.TempDir are below /tmp, where everybody can.
package private

import (
	"os"
	"testing"
)

// Dir returns a new directory, which goes when the test ends. Its path is short enough for a socket.
func Dir(t testing.TB) string {
	t.Helper()
	base := "/run"
	if os.Geteuid() != 0 {
		var err error
		if base, err = os.UserCacheDir(); err == nil {
			err = os.MkdirAll(base, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp(base, "nftproxy-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
