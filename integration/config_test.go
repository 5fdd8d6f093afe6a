package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	configs "github.com/nftproxy/nftproxy/internal/testkit/corpus"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
)

// kubeadmConfig returns a copy of the configuration that kubeadm generates.
func kubeadmConfig(t *testing.T) (path string) {
	t.Helper()
	c := configs.Get(t, "kubeadm-v1.37-as-generated")
	path = filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(path, []byte(c.File(configs.Input)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// compileFor compiles the case as a proxy does with a configuration file.
func compileFor(t *testing.T, g flows.Case, path string) []*nft.Table {
	t.Helper()
	file, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	compilerConfig, err := config.Compiler(file.Config)
	if err != nil {
		t.Fatal(err)
	}
	objects := g.Objects(t)
	tables, err := flows.Compile(objects, tracker.Options{NodeName: lab.NodeName}, compilerConfig)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// With kubeadm's file as it is (and manifests in place of its API server) the rules get into
// the kernel. When the file changes, the process ends.
func testKubeProxyRunsWithKubeadmsConfigurationUntilItChanges(t *testing.T) {
	g := flows.FindCase(t, "cluster-ip-spreads-over-all-endpoints")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	path := kubeadmConfig(t)
	p := lab.Start(t, l.Node, "kube-proxy", "--config="+path, "--hostname-override="+lab.NodeName, "--manifests", g.ManifestsDir(t), "--masquerade-all")
	want := compileFor(t, g, path)
	await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, want) })

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(data, "# changed\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil || p.Cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("after the change: %v, want exit code 1", err)
	}
	for _, want := range []string{"configuration " + path + " has changed", "--masquerade-all: ignored, because --config is given", "mode: running as nftables"} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	if err := lab.TableError(c, want); err != nil {
		t.Errorf("the rules did not stay: %v", err)
	}
}

func testKubeProxyConvertsConfigurations(t *testing.T) {
	l := lab.ForTest(t)
	dir, nothingSet := t.TempDir(), configs.Get(t, "nothing-set")
	for _, name := range []string{"kubeadm-v1.37-as-generated", "mode-ipvs-keeps-its-settings", "v1alpha2-every-field-set"} {
		c := configs.Get(t, name)
		to := filepath.Join(dir, name)
		if err := lab.Start(t, l.Node, "kube-proxy", "--config", c.WriteInput(t), "--write-config-to", to).Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		if c.Shown(t, nothingSet.File("v1alpha2.yaml"), string(got)) != c.File("v1alpha2.yaml") {
			t.Errorf("%s was converted to:\n%s", name, got)
		}
	}
}
