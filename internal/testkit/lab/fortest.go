package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// ForTest returns a lab that is closed when the test ends.
func ForTest(t testing.TB) *Lab {
	t.Helper()
	return ForTestWithBridge(t, "")
}

// ForTestWithBridge returns a lab whose pods are connected to a bridge of that name, as with NewWithBridge.
func ForTestWithBridge(t testing.TB, bridge string) *Lab {
	t.Helper()
	netns.Need(t)
	l, err := NewWithBridge(bridge)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// RouterForTest returns a host of no lab that forwards packets and has no links yet. It is removed when the test ends.
func RouterForTest(t testing.TB, name string) *Host {
	t.Helper()
	netns.Need(t)
	h, err := newHost(name, router)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return h
}

// Conn returns a connection to the nf_tables of the host.
func Conn(t testing.TB, h *Host) *nft.Conn {
	t.Helper()
	c, err := nft.Dial(nft.Config{NetNS: int(h.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Nft runs the nft program in the host and returns its output. The tests compare with that program;
// the proxy never needs it.
func Nft(t testing.TB, h *Host, stdin string, args ...string) string {
	t.Helper()
	var out strings.Builder
	err := h.Do(func() error {
		cmd := exec.Command("nft", args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
		return cmd.Run()
	})
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// TableError says how the kernel's tables differ from the wanted ones; nil if they do not. The elements of maps that
// packets fill do not count.
func TableError(c *nft.Conn, want []*nft.Table) error {
	for _, w := range want {
		got, err := c.ReadTable(context.Background(), w.Family, w.Name)
		if err != nil {
			return err
		}
		if tx := nft.Diff(got, w); !tx.Empty() {
			return fmt.Errorf("the kernel's table %s differs:\n%s", w.Family, tx)
		}
	}
	return nil
}

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
	unix.Umask(0o022) // tests run programs as other users
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
