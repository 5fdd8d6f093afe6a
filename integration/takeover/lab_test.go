package takeover

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/internal/offline"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/source/manifests"
	"github.com/nftproxy/nftproxy/tracker"
)

const (
	manifestsFile = "testdata/manifests.yaml"
	clusterCIDR   = "10.244.0.0/16,fd00:10:244::/48"
)

func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	l, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func connTo(t *testing.T, h *lab.Host) *nft.Conn {
	t.Helper()
	c, err := nft.Dial(nft.Config{NetNS: int(h.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// runNft runs the nft program in the host, as Kubernetes' kube-proxy does.
func runNft(t *testing.T, h *lab.Host, script string, args ...string) string {
	t.Helper()
	var out strings.Builder
	err := h.Do(func() error {
		cmd := exec.Command("nft", args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(script), &out, &out
		return cmd.Run()
	})
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: still not after a minute: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// buildOnce builds this module's kube-proxy.
var buildOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nftproxy-bin")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kube-proxy")
	build := exec.Command("go", "build", "-o", path, "../../cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := buildOnce(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// process is a program that runs in a host until the test ends.
type process struct {
	cmd    *exec.Cmd
	output *strings.Builder
}

func start(t *testing.T, h *lab.Host, path string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(path, args...), output: &strings.Builder{}}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output // one writer: the output is whole once Wait returned
	p.cmd.Env = append(os.Environ(), env...)
	if err := h.Do(p.cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("output of %s:\n%s", path, p.output)
		}
	})
	return p
}

// stop ends the process as a node's service manager does.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // kube-proxy does not catch the signal
}

// startOurs starts this module's kube-proxy with the manifests.
func startOurs(t *testing.T, h *lab.Host) *process {
	t.Helper()
	path, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(manifestsFile)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "manifests.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, h, path, nil, append(flags, "--manifests", dir, "-v=2")...)
}

// flags are those that this module's kube-proxy and Kubernetes' get alike.
var flags = []string{
	"--proxy-mode=nftables", "--hostname-override=" + lab.NodeName, "--cluster-cidr=" + clusterCIDR,
	// The sysctls of connection tracking are in part those of the whole machine.
	"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
}

// wanted returns the tables that this module makes of the manifests.
func wanted(t *testing.T) []*nft.Table {
	t.Helper()
	objects, err := manifests.Load(manifestsFile)
	if err != nil {
		t.Fatal(err)
	}
	config := compiler.Default()
	for _, cidr := range strings.Split(clusterCIDR, ",") {
		config.DetectLocal.CIDRs = append(config.DetectLocal.CIDRs, netip.MustParsePrefix(cidr))
	}
	tables, _, err := offline.Compile(&objects, tracker.Options{NodeName: lab.NodeName}, config)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// awaitOurs waits until the kernel's tables are the ones that this module makes, and hold nothing else.
func awaitOurs(t *testing.T, c *nft.Conn) {
	t.Helper()
	want := wanted(t)
	eventually(t, "the tables are this proxy's", func() error {
		for _, w := range want {
			got, err := c.ReadTable(w.Family, w.Name)
			if err != nil {
				return err
			}
			if tx := nft.Diff(got, w); !tx.Empty() {
				return fmt.Errorf("table %s has something else; to change: %.2000s", w.Family, tx)
			}
		}
		return nil
	})
}
