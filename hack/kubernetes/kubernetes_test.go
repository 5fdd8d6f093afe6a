package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeGo stands in for the go command. It has two packages to compile, and logs what it is called for. It fails when
// it links, if there is a file "broken" beside it.
const fakeGo = `#!/bin/sh
dir=$(dirname "$0")
for last; do :; done
case "$1 $2" in
"list -m") echo v1.2.3;;
"list -deps") echo example.org/a; echo example.org/b;;
"build -v") echo compile >>"$dir/log"; printf 'example.org/a\nexample.org/b\n' >&2;;
*)
	echo "$1 $last" >>"$dir/log"
	while [ "$1" != -o ]; do shift; done
	echo part >"$2"
	[ ! -e "$dir/broken" ] || { echo "the linker fails" >&2; exit 1; };;
esac
`

type fixture struct {
	dir, folder string
	report      bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{dir: t.TempDir(), folder: t.TempDir()}
	// A process that starts meanwhile would have the file open for writing, and then nobody could execute it.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(f.dir, "go"), []byte(fakeGo), 0o755); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) run(wanted ...string) error {
	f.report.Reset()
	return run(context.Background(), builder{goCommand: filepath.Join(f.dir, "go"), module: f.dir, report: &f.report}, f.folder, wanted)
}

// calls returns what go was called for since the last call.
func (f *fixture) calls(t *testing.T) string {
	t.Helper()
	path := filepath.Join(f.dir, "log")
	log, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	os.Remove(path)
	return string(log)
}

func (f *fixture) programs(t *testing.T) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(f.folder, "v1.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

func TestRun(t *testing.T) {
	t.Run("builds what is missing", func(t *testing.T) {
		f := newFixture(t)
		if err := f.run("kubectl", "e2e.test"); err != nil {
			t.Fatal(err)
		}
		want := "compile\nbuild k8s.io/kubernetes/cmd/kubectl\ncompile\ntest k8s.io/kubernetes/test/e2e\n"
		if diff := cmp.Diff(want, f.calls(t)); diff != "" {
			t.Errorf("calls of go (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"e2e.test", "kubectl"}, f.programs(t)); diff != "" {
			t.Errorf("programs (-want +got):\n%s", diff)
		}
		for _, said := range []string{"2 of Kubernetes' programs, v1.2.3, are missing", "kubectl: 2 of 2 packages compiled"} {
			if !strings.Contains(f.report.String(), said) {
				t.Errorf("the report lacks %q:\n%s", said, &f.report)
			}
		}
		if err := f.run("kubectl"); err != nil {
			t.Fatal(err)
		}
		if calls := f.calls(t); calls != "" || f.report.String() != "" {
			t.Errorf("a second run calls go for %q and says %q, want nothing", calls, &f.report)
		}
		if err := f.run(); err != nil {
			t.Fatal(err)
		}
		if n := len(f.programs(t)); n != len(programs) {
			t.Errorf("without names there are %d programs, want all %d", n, len(programs))
		}
	})
	t.Run("leaves nothing of a build that fails", func(t *testing.T) {
		f := newFixture(t)
		if err := os.WriteFile(filepath.Join(f.dir, "broken"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.run("kubectl"); err == nil || !strings.Contains(err.Error(), "the linker fails") {
			t.Errorf("got %v, want what go says", err)
		}
		if found := f.programs(t); len(found) > 0 {
			t.Errorf("left: %v", found)
		}
	})
	t.Run("refuses a name that is no program's", func(t *testing.T) {
		f := newFixture(t)
		if err := f.run("kube-porxy"); err == nil || !strings.Contains(err.Error(), "kube-proxy") {
			t.Errorf("got %v, want the names that there are", err)
		}
	})
}

// The module's go.mod is the one that this program writes for its version, but for what go adds.
func TestModule(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", "../../kubernetes/go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	type versioned struct{ Path, Version string }
	var module struct {
		Require, Tool []versioned
		Replace       []struct{ Old, New versioned }
	}
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(module.Require, func(r versioned) bool { return r.Path == kubernetesModule })
	if i < 0 || len(module.Replace) == 0 {
		t.Fatalf("the module requires no %s, or replaces nothing", kubernetesModule)
	}
	version := module.Require[i].Version
	for _, p := range programs {
		if !slices.Contains(module.Tool, versioned{Path: p.pkg}) {
			t.Errorf("the module has no tool %s: `go run ./hack/kubernetes -version %s` writes it anew", p.pkg, version)
		}
	}
	for _, r := range module.Replace {
		if want := (versioned{r.Old.Path, "v0." + strings.TrimPrefix(version, "v1.")}); r.New != want {
			t.Errorf("%s is replaced by %v, want %v of Kubernetes %s", r.Old.Path, r.New, want, version)
		}
	}
}

func TestGoMod(t *testing.T) {
	got, err := goMod("module k8s.io/kubernetes\n\ngo 1.27.0\n\nrequire example.org/x v1.0.0\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n", "v1.38.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\ngo 1.27.0\n", "\nrequire k8s.io/kubernetes v1.38.1\n", "\tk8s.io/api => k8s.io/api v0.38.1\n", "\tk8s.io/kubernetes/cmd/kube-proxy\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
	if _, err := goMod("module k8s.io/kubernetes\n\ngo 1.27.0\n", "v1.38.1"); err == nil {
		t.Error("a go.mod without staging is taken")
	}
}
