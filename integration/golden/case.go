// Package golden gives tests the cases of testdata.
package golden

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/offline"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/source/manifests"
	"github.com/nftproxy/nftproxy/tracker"
)

// Case is a golden case, as node-1 of the lab sees it.
type Case struct {
	// Name is the name of the case, and dir its directory.
	Name, dir string
}

// Cases returns all golden cases.
func Cases(t testing.TB) []Case {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(corpus(t), "*", "manifests.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 80 {
		t.Fatalf("the corpus has %d cases, want at least 80", len(paths))
	}
	var out []Case
	for _, p := range paths {
		out = append(out, Case{filepath.Base(filepath.Dir(p)), filepath.Dir(p)})
	}
	return out
}

// Find returns the case of that name.
func Find(t testing.TB, name string) Case {
	t.Helper()
	c := Case{name, filepath.Join(corpus(t), name)}
	if _, err := os.Stat(c.Path("manifests.yaml")); err != nil {
		t.Fatal(err)
	}
	return c
}

// corpus returns the folder testdata beside the nearest go.mod above the test's package. The path of this file does not
// say it in binaries built with -trimpath.
func corpus(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "testdata")
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the working directory: run the test from its package's directory")
		}
		dir = filepath.Dir(dir)
	}
}

// Path returns the path of a file of the case.
func (c Case) Path(file string) string { return filepath.Join(c.dir, file) }

// HasConfig reports whether the case has a configuration of its own.
func (c Case) HasConfig(t testing.TB) bool {
	t.Helper()
	_, err := os.Stat(c.Path("config.yaml"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// ConfigFile returns the path of the case's configuration: its own, or the one of all cases that have none.
func (c Case) ConfigFile(t testing.TB) string {
	t.Helper()
	if c.HasConfig(t) {
		return c.Path("config.yaml")
	}
	return filepath.Join(filepath.Dir(c.dir), "config.yaml")
}

// Baseline returns the path of the ruleset of a cluster without Services, under the configuration of all cases that have
// none of their own. The ruleset.nft of a case is loadable on top of it.
func Baseline(t testing.TB) string {
	t.Helper()
	return filepath.Join(corpus(t), "baseline.nft")
}

// CompileBaseline compiles the ruleset of Baseline in memory.
func CompileBaseline(t testing.TB) []*nft.Table {
	t.Helper()
	baseline := Case{"baseline", filepath.Join(corpus(t), "baseline")}
	objects, err := manifests.Load(nodes(t))
	if err != nil {
		t.Fatal(err)
	}
	return baseline.compile(t, &objects)
}

// nodes returns the path of the Nodes of all cases.
func nodes(t testing.TB) string {
	t.Helper()
	return filepath.Join(corpus(t), "nodes.yaml")
}

// configuration reads ConfigFile.
func (c Case) configuration(t testing.TB) *v1alpha2.KubeProxyConfiguration {
	t.Helper()
	file, err := config.Load(c.ConfigFile(t))
	if err != nil {
		t.Fatal(err)
	}
	return file.Config
}

// Config returns the compiler's configuration, for the IP families that this machine has.
func (c Case) Config(t testing.TB) compiler.Config {
	t.Helper()
	out, err := config.Compiler(c.configuration(t))
	if err != nil {
		t.Fatalf("%s: %v", c.ConfigFile(t), err)
	}
	out.IPv4Only = !lab.HasIPv6
	return out
}

// TrackerOptions returns the options of a tracker for node-1.
func (c Case) TrackerOptions(t testing.TB) tracker.Options {
	t.Helper()
	options := config.Tracker(c.configuration(t))
	options.NodeName = lab.NodeName
	return options
}

// Objects reads the manifests.
func (c Case) Objects(t testing.TB) *manifests.Objects {
	t.Helper()
	objects, err := manifests.Load(c.ManifestsDir(t))
	if err != nil {
		t.Fatal(err)
	}
	return &objects
}

// Compile compiles the case in memory.
func (c Case) Compile(t testing.TB) []*nft.Table {
	t.Helper()
	return c.compile(t, c.Objects(t))
}

func (c Case) compile(t testing.TB, objects *manifests.Objects) []*nft.Table {
	t.Helper()
	tables, _, err := offline.Compile(objects, c.TrackerOptions(t), c.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// Bridge returns the name of the bridge that the case's pods are connected to, empty for none.
func (c Case) Bridge(t testing.TB) string {
	t.Helper()
	if name := c.Config(t).DetectLocal.Interface; !strings.HasSuffix(name, "*") {
		return name
	}
	return ""
}

// ManifestsDir copies the manifests of the case and its Nodes to a directory of their own, since flows.yaml and
// config.yaml are not Kubernetes objects.
func (c Case) ManifestsDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range []string{nodes(t), c.Path("manifests.yaml")} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
