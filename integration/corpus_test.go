// Package integration tests the whole path on real kernels, with real packets.
package integration

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/offline"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/source/manifests"
	"github.com/nftproxy/nftproxy/tracker"
)

var update = flag.Bool("update", false, "rewrite ruleset.nft of every golden case")

const corpus = "../testdata"

// defaultConfig is what a case without config.yaml is compiled with.
const defaultConfig = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
`

// goldenCase is a directory of the corpus.
type goldenCase struct {
	name, dir string
}

func cases(t testing.TB) []goldenCase {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(corpus, "*", "manifests.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 80 {
		t.Fatalf("the corpus has %d cases, want at least 80", len(paths))
	}
	var out []goldenCase
	for _, p := range paths {
		dir := filepath.Dir(p)
		out = append(out, goldenCase{filepath.Base(dir), dir})
	}
	return out
}

func (g goldenCase) path(file string) string { return filepath.Join(g.dir, file) }

// configuration is the case's config.yaml, or the default one.
func (g goldenCase) configuration(t testing.TB) *v1alpha2.KubeProxyConfiguration {
	t.Helper()
	data, err := os.ReadFile(g.path("config.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte(defaultConfig), nil
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(data)
	if err != nil {
		t.Fatalf("%s: %v", g.path("config.yaml"), err)
	}
	return c.Config
}

func (g goldenCase) config(t testing.TB) compiler.Config {
	t.Helper()
	out, err := config.Compiler(g.configuration(t))
	if err != nil {
		t.Fatalf("%s: %v", g.path("config.yaml"), err)
	}
	out.IPv4Only = !lab.HasIPv6
	return out
}

func (g goldenCase) trackerOptions(t testing.TB) tracker.Options {
	t.Helper()
	options := config.Tracker(g.configuration(t))
	options.NodeName = lab.NodeName
	return options
}

// bridge is the name of the bridge that the case's pods are connected to, empty for none.
func (g goldenCase) bridge(t testing.TB) string {
	t.Helper()
	if name := g.config(t).DetectLocal.Interface; !strings.HasSuffix(name, "*") {
		return name
	}
	return ""
}

// podLink is the name of an interface that packets of node-1's pods come in by.
func (g goldenCase) podLink(t testing.TB) string {
	t.Helper()
	if bridge := g.bridge(t); bridge != "" {
		return bridge
	}
	return "veth-1"
}

// compile compiles the case in memory.
func (g goldenCase) compile(t testing.TB) []*nft.Table {
	t.Helper()
	objects, err := manifests.Load(g.path("manifests.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tables, _, err := offline.Compile(&objects, g.trackerOptions(t), g.config(t))
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// manifestsDir copies the manifests alone to a directory of their own, since flows.yaml and
// config.yaml are not Kubernetes objects.
func (g goldenCase) manifestsDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(g.path("manifests.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "manifests.yaml"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func printTables(tables []*nft.Table) string {
	var b strings.Builder
	for _, t := range tables {
		b.WriteString(t.String())
	}
	return b.String()
}

func TestGoldenRulesets(t *testing.T) {
	for _, g := range cases(t) {
		t.Run(g.name, func(t *testing.T) {
			got := printTables(g.compile(t))
			if *update {
				if err := os.WriteFile(g.path("ruleset.nft"), []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(g.path("ruleset.nft"))
			if err != nil {
				t.Fatalf("%v; `make golden` writes it", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("ruleset (-golden +compiled); `make golden` accepts the change:\n%s", diff)
			}
		})
	}
}
