// Package corpus gives tests the golden cases of testdata as snapshots.
package corpus

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/internal/ruledump/snapshot"
)

// Node is the node that the cases are compiled for.
const Node = "node-1"

// defaultConfig is what a case without config.yaml is compiled with.
const defaultConfig = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
`

// Case is a golden case.
type Case struct {
	// Name is the name of the case, and Dir its directory.
	Name, Dir string
}

// Cases returns all golden cases.
func Cases(tb testing.TB) []Case {
	tb.Helper()
	paths, err := filepath.Glob(filepath.Join(module(tb), "testdata/*/manifests.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	if len(paths) < 80 {
		tb.Fatalf("the corpus has %d cases, want at least 80", len(paths))
	}
	var out []Case
	for _, p := range paths {
		out = append(out, Case{filepath.Base(filepath.Dir(p)), filepath.Dir(p)})
	}
	return out
}

// module returns the directory of go.mod: the nearest above the test's. The path of this file does not say it in
// binaries built with -trimpath.
func module(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			tb.Fatal("no go.mod above the working directory: run the test from its package's directory")
		}
		dir = filepath.Dir(dir)
	}
}

// Find returns the case of that name.
func Find(tb testing.TB, name string) Case {
	tb.Helper()
	for _, c := range Cases(tb) {
		if c.Name == name {
			return c
		}
	}
	tb.Fatalf("the corpus has no case %s", name)
	return Case{}
}

// Path returns the path of a file of the case.
func (c Case) Path(file string) string { return filepath.Join(c.Dir, file) }

// Config returns the path of the case's configuration.
func (c Case) Config(tb testing.TB) string {
	tb.Helper()
	path := c.Path("config.yaml")
	if _, err := os.Stat(path); err == nil {
		return path
	} else if !errors.Is(err, fs.ErrNotExist) {
		tb.Fatal(err)
	}
	path = filepath.Join(tb.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(defaultConfig), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Snapshot compiles the case.
func (c Case) Snapshot(tb testing.TB) *snapshot.Snapshot {
	tb.Helper()
	s, err := snapshot.FromManifests(c.Path("manifests.yaml"), snapshot.Compilation{Node: Node, Config: c.Config(tb)})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Redumped writes a snapshot as a dump and reads that.
func Redumped(tb testing.TB, s *snapshot.Snapshot) *snapshot.Snapshot {
	tb.Helper()
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		tb.Fatal(err)
	}
	out, err := snapshot.FromDump(&b)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}
