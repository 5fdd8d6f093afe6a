package flows

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
	"golang.org/x/tools/txtar"
)

// Case is a golden case, as node-1 of the lab sees it: an archive testdata/NAME.txtar of these files.
//
//	config.yaml     optional: a KubeProxyConfiguration, in place of testdata/config.yaml
//	manifests.yaml  Services, EndpointSlices, ServiceCIDRs
//	flows.yaml      packets, and the expected result of each
//	steps.yaml      optional: changes after that, and packets, for a test with a proxy that runs; with more files
//	ruleset.nft     what the case adds to testdata/baseline.nft, as a script for nft -f
type Case struct {
	// Name is the name of the case.
	Name  string
	files *txtar.Archive
	flows []Flow
	// shared holds the files of all cases.
	shared fs.FS
	// objects returns those of the manifests, none if these are wrong.
	objects func() []apiservertest.Object
}

const (
	extension     = ".txtar"
	configFile    = "config.yaml"
	manifestsFile = "manifests.yaml"
	nodesFile     = "nodes.yaml"
	rulesetFile   = "ruleset.nft"
)

// ReadCases reads all cases of a corpus: archives, beside the files that they share.
func ReadCases(corpus fs.FS) (cases []Case, err error) {
	paths, err := fs.Glob(corpus, "*"+extension)
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		c, err := readCase(corpus, strings.TrimSuffix(p, extension))
		if err != nil {
			return nil, err
		}
		cases = append(cases, c)
	}
	return cases, nil
}

func readCase(corpus fs.FS, name string) (c Case, err error) {
	data, err := fs.ReadFile(corpus, name+extension)
	if err != nil {
		return c, err
	}
	c = newCase(corpus, name, txtar.Parse(data))
	if c.flows, err = Parse(c.file("flows.yaml")); err != nil {
		return c, fmt.Errorf("%s: flows.yaml: %w", name, err)
	}
	if _, err := c.Steps(); err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

func newCase(corpus fs.FS, name string, files *txtar.Archive) Case {
	c := Case{Name: name, files: files, shared: corpus}
	c.objects = sync.OnceValue(func() []apiservertest.Object {
		objects, _ := Objects(c.Manifests())
		return objects
	})
	return c
}

// Cases returns all golden cases.
func Cases(t testing.TB) []Case {
	t.Helper()
	cases, err := ReadCases(os.DirFS(corpus(t)))
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) < 80 {
		t.Fatalf("the corpus has %d cases, want at least 80", len(cases))
	}
	return cases
}

// FindCase returns the case of that name.
func FindCase(t testing.TB, name string) Case {
	t.Helper()
	c, err := readCase(os.DirFS(corpus(t)), name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// file returns a file of the case, nil if it has none of that name.
func (c Case) file(name string) []byte {
	for _, f := range c.files.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// Manifests returns the case's Services, EndpointSlices and ServiceCIDRs as YAML.
func (c Case) Manifests() []byte { return c.file(manifestsFile) }

// Nodes returns the Nodes of all cases as YAML.
func (c Case) Nodes() ([]byte, error) { return fs.ReadFile(c.shared, nodesFile) }

// Configuration returns the KubeProxyConfiguration of the case: its own, or the one of all cases that have none.
func (c Case) Configuration() ([]byte, error) {
	if c.HasConfig() {
		return c.file(configFile), nil
	}
	return fs.ReadFile(c.shared, configFile)
}

// Flows returns the case's flows.
func (c Case) Flows() []Flow { return c.flows }

// allFlows returns the case's flows, and those of its steps.
func (c Case) allFlows() []Flow {
	all := slices.Clone(c.flows)
	steps, _ := c.Steps() // an error ends the reading of the case
	for _, s := range steps {
		all = append(all, s.Flows...)
	}
	return all
}

// Ruleset returns what the case adds to Baseline, as a script for nft -f.
func (c Case) Ruleset() string { return string(c.file(rulesetFile)) }

// SetRuleset replaces the case's ruleset, in testdata too.
func (c Case) SetRuleset(t testing.TB, script string) {
	t.Helper()
	c.files.Files = slices.DeleteFunc(c.files.Files, func(f txtar.File) bool { return f.Name == rulesetFile })
	c.files.Files = append(c.files.Files, txtar.File{Name: rulesetFile, Data: []byte(script)})
	if err := os.WriteFile(filepath.Join(corpus(t), c.Name+extension), txtar.Format(c.files), 0o644); err != nil {
		t.Fatal(err)
	}
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

// HasConfig reports whether the case has a configuration of its own.
func (c Case) HasConfig() bool { return c.file(configFile) != nil }

// ConfigFile returns the path of the case's configuration: a copy of its own, or the one of all cases that have none.
func (c Case) ConfigFile(t testing.TB) string {
	t.Helper()
	if !c.HasConfig() {
		return filepath.Join(corpus(t), configFile)
	}
	path := filepath.Join(t.TempDir(), configFile)
	if err := os.WriteFile(path, c.file(configFile), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Baseline returns the path of the ruleset of a cluster without Services, under the configuration of all cases that
// have none of their own. The ruleset of a case is loadable on top of it.
func Baseline(t testing.TB) string {
	t.Helper()
	return filepath.Join(corpus(t), "baseline.nft")
}

// CompileBaseline compiles the ruleset of Baseline in memory.
func CompileBaseline(t testing.TB) []*nft.Table {
	t.Helper()
	baseline := Case{Name: "baseline", files: &txtar.Archive{}, shared: os.DirFS(corpus(t))}
	objects, err := manifests.Load(nodes(t))
	if err != nil {
		t.Fatal(err)
	}
	return baseline.compile(t, &objects)
}

// nodes returns the path of the Nodes of all cases.
func nodes(t testing.TB) string {
	t.Helper()
	return filepath.Join(corpus(t), nodesFile)
}

// configuration reads ConfigFile.
func (c Case) configuration(t testing.TB) *v1alpha2.KubeProxyConfiguration {
	t.Helper()
	file, err := config.Load(c.ConfigFile(t))
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	return file.Config
}

// Config returns the compiler's configuration, for the IP families that this machine has.
func (c Case) Config(t testing.TB) compiler.Config {
	t.Helper()
	out, err := config.Compiler(c.configuration(t))
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
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
	tables, err := Compile(objects, c.TrackerOptions(t), c.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// Compile returns the rulesets that a proxy would program for the objects.
func Compile(objects *manifests.Objects, options tracker.Options, compilerConfig compiler.Config) ([]*nft.Table, error) {
	t := tracker.New(options)
	objects.Feed(t)
	c, err := compiler.New(compilerConfig)
	if err != nil {
		return nil, err
	}
	c.Apply(t.Changes())
	return c.Tables(), nil
}

// PrintTables prints the tables one after the other.
func PrintTables(tables []*nft.Table) string {
	var b strings.Builder
	for _, t := range tables {
		b.WriteString(t.String())
	}
	return b.String()
}

// PrintDiff prints the transaction that turns the tables have into want, as a script for nft -f.
func PrintDiff(t testing.TB, have, want []*nft.Table) string {
	t.Helper()
	if len(have) != len(want) {
		t.Fatalf("%d tables cannot become %d", len(have), len(want))
	}
	var tx nft.Transaction
	for i := range have {
		tx.Append(nft.Diff(have[i], want[i]))
	}
	return tx.String()
}

// Bridge returns the name of the bridge that the case's pods are connected to, empty for none.
func (c Case) Bridge(t testing.TB) string {
	t.Helper()
	if name := c.Config(t).DetectLocal.Interface; !strings.HasSuffix(name, "*") {
		return name
	}
	return ""
}

// ManifestsDir writes the manifests of the case and its Nodes to a directory of their own.
func (c Case) ManifestsDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(nodes(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{filepath.Base(nodes(t)): data, manifestsFile: c.Manifests()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
