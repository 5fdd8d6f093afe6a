package conformance

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/nftproxy/nftproxy/source/apiserver/apiservertest"
)

// startWithCommand builds a cluster and runs the kube-proxy command on node1.
func startWithCommand(t *testing.T, args ...string) (*cluster, *command) {
	t.Helper()
	c := build(t)
	if err := c.lab.Node.Do(func() error {
		c.server = apiservertest.Start(t, apiservertest.Options{})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.connect(c.node.dialContext)
	return c, c.runCommand(args...)
}

// command is a run of the kube-proxy command.
type command struct {
	c      *cluster
	cmd    *exec.Cmd
	output string
}

func (c *cluster) runCommand(args ...string) *command {
	c.t.Helper()
	path, err := commandPath()
	if err != nil {
		c.t.Fatal(err)
	}
	output, err := os.CreateTemp(c.t.TempDir(), "output")
	if err != nil {
		c.t.Fatal(err)
	}
	defer output.Close()
	args = append([]string{
		"--kubeconfig", c.kubeconfig, "--hostname-override", node1, "--cluster-cidr", clusterCIDR, "-v", "2",
		"--conntrack-max-per-core", "0", // That is the machine's, not the namespace's.
	}, args...)
	p := &command{c: c, cmd: exec.Command(path, args...), output: output.Name()}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	if err := c.lab.Node.Do(p.cmd.Start); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(p.end)
	return p
}

// stop ends the command as a kubelet does, and waits for it.
func (p *command) stop() {
	p.c.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.c.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.c.t.Errorf("kube-proxy after SIGTERM: %v", err)
	}
}

func (p *command) end() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
	if text, err := os.ReadFile(p.output); err == nil && p.c.t.Failed() {
		p.c.t.Logf("output of kube-proxy:\n%s", text)
	}
}

// commandPath builds the kube-proxy command once for all tests and returns its path.
var commandPath = sync.OnceValues(func() (string, error) {
	build := exec.Command("go", "build", "-o", buildDir, "../../cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return filepath.Join(buildDir, "kube-proxy"), nil
})

// buildDir is where the command is built.
var buildDir string

// atOnce is how many tests run at the same time, however few cores there are: most of a test
// is waiting, a second each time that TCP is refused.
const atOnce = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err) // There is no such flag any more.
	}
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}
