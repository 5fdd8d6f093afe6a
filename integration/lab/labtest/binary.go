package labtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Binary returns the path of a command of this module: "kube-proxy" or "ruledump". The first call builds
// both, so a package that calls it has a TestMain that calls Main.
func Binary(t testing.TB, name string) string {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// Main runs the tests of a package, removes the commands that Binary built, and ends the process.
func Main(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// built is the directory with the commands, empty until a test needs one.
var built string

var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nftproxy-bin")
	if err != nil {
		return "", err
	}
	built = dir
	build := exec.Command("go", "build", "-o", dir,
		"github.com/nftproxy/nftproxy/cmd/kube-proxy", "github.com/nftproxy/nftproxy/cmd/ruledump")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, nil
})
