package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// Prebuilt is the environment variable that names a directory with the commands, for machines without a Go toolchain.
const Prebuilt = "NFTPROXY_BINARIES"

// Binary returns the path of a command of this module: "kube-proxy" or "ruledump". The first call builds
// both, unless Prebuilt says where they are, so a package that calls it has a TestMain that calls Main.
func Binary(t testing.TB, name string) string {
	t.Helper()
	netns.Need(t)
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// atOnce is the number of parallel tests that run at once: most of a test is waiting, a second each time that TCP is
// refused.
const atOnce = "8"

// Main runs the tests of a package, removes the commands that Binary built, and ends the process.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main for a TestMain that has more to do: it returns the exit code.
func Run(m *testing.M) int {
	await.Parallel(atOnce)
	defer func() {
		if built != "" {
			os.RemoveAll(built)
		}
	}()
	return m.Run()
}

// built is the directory with the commands, empty until a test needs one.
var built string

var binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(Prebuilt); dir != "" {
		return dir, nil
	}
	dir, err := os.MkdirTemp("", "nftproxy-bin")
	if err != nil {
		return "", err
	}
	built = dir
	// The flags are those of make build, which thereby has compiled everything already.
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath", "-o", dir,
		"github.com/nftproxy/nftproxy/cmd/kube-proxy", "github.com/nftproxy/nftproxy/cmd/ruledump")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, nil
})
