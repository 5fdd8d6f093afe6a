package config

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/internal/config/conversion"
)

var update = flag.Bool("update", false, "write v1alpha2.yaml, v1alpha1.yaml and messages.txt of every case")

// corpusCase is a directory with input.yaml and what must come of it: v1alpha2.yaml (what
// --write-config-to writes), v1alpha1.yaml (that, converted back) and messages.txt. Of an
// invalid document there is only messages.txt, with the error.
type corpusCase struct{ name, dir string }

func corpus(t testing.TB) (out []corpusCase) {
	t.Helper()
	paths, err := filepath.Glob("testdata/corpus/*/input.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 40 {
		t.Fatalf("the corpus has %d cases, want at least 40", len(paths))
	}
	for _, path := range paths {
		dir := filepath.Dir(path)
		out = append(out, corpusCase{filepath.Base(dir), dir})
	}
	return out
}

func (c corpusCase) input() string { return filepath.Join(c.dir, "input.yaml") }

// golden compares what there is with a file; nothing is no file.
func (c corpusCase) golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join(c.dir, name)
	if *update {
		_ = os.Remove(path)
		if got != "" {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	want, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func document(t testing.TB, c any) string {
	t.Helper()
	data, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTheCorpusConvertsAndValidates(t *testing.T) {
	for _, c := range corpus(t) {
		t.Run(c.name, func(t *testing.T) {
			f, err := Load(c.input())
			if err != nil {
				c.golden(t, "messages.txt", "error: "+err.Error()+"\n")
				c.golden(t, "v1alpha2.yaml", "")
				c.golden(t, "v1alpha1.yaml", "")
				return
			}
			var messages strings.Builder
			for _, warning := range f.Warnings {
				messages.WriteString("warning: " + warning + "\n")
			}
			back, losses := conversion.ToV1alpha1(f.Config)
			for _, loss := range losses {
				messages.WriteString("lost in v1alpha1: " + loss.String() + "\n")
			}
			if _, err := Compiler(f.Config); err != nil {
				messages.WriteString("error when run: " + err.Error() + "\n")
			}
			c.golden(t, "messages.txt", messages.String())
			c.golden(t, "v1alpha2.yaml", document(t, f.Config))
			c.golden(t, "v1alpha1.yaml", document(t, back))
		})
	}
}

// An error is one line that names the file and then, for each thing that is wrong, the field and
// what would be right.
func TestErrorsNameFileFieldAndRemedy(t *testing.T) {
	withoutField := map[string]bool{"bad-not-yaml": true}
	named := regexp.MustCompile(`^(line [0-9]+: key "[a-zA-Z]+"|apiVersion ".*", kind ".*": |[a-zA-Z0-9.]+(\[[0-9]+\])?: )`)
	remedy := regexp.MustCompile("must |supported values: |remove |this version calls it ")
	for _, c := range corpus(t) {
		_, err := Load(c.input())
		if invalid := strings.HasPrefix(c.name, "bad-"); invalid != (err != nil) {
			t.Errorf("%s: error %v, want one: %v", c.name, err, invalid)
		}
		if err == nil {
			continue
		}
		text, ok := strings.CutPrefix(err.Error(), "configuration "+c.input()+": ")
		if !ok || strings.Contains(text, "\n") {
			t.Errorf("%s: %q is not one line that starts with the file", c.name, err)
		}
		if !withoutField[c.name] && !named.MatchString(text) {
			t.Errorf("%s: %q names no field", c.name, text)
		}
		if !remedy.MatchString(text) {
			t.Errorf("%s: %q does not say what to do", c.name, text)
		}
	}
}

// What --write-config-to writes is read as what was written.
func TestWhatIsWrittenIsReadBack(t *testing.T) {
	for _, c := range corpus(t) {
		f, err := Load(c.input())
		if err != nil {
			continue
		}
		path := filepath.Join(t.TempDir(), "written.yaml")
		if _, err := Write(f.Config, V1alpha2, path); err != nil {
			t.Fatal(err)
		}
		again, err := Load(path)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(document(t, f.Config), document(t, again.Config)); diff != "" {
			t.Errorf("%s (-written +read):\n%s", c.name, diff)
		}
		c.isWrittenAsV1alpha1(t, f)
	}
}

// isWrittenAsV1alpha1 checks that a proxy which reads what was written as v1alpha1 has the same configuration, apart from what
// is said to be lost.
func (c corpusCase) isWrittenAsV1alpha1(t *testing.T, f *File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "v1alpha1.yaml")
	lost, err := Write(f.Config, V1alpha1, path)
	if err != nil {
		t.Fatal(err)
	}
	want, losses := conversion.ToV1alpha1(f.Config)
	if diff := cmp.Diff(losses, lost); diff != "" {
		t.Errorf("%s: losses (-conversion +said):\n%s", c.name, diff)
	}
	again, err := Load(path)
	if err != nil {
		t.Errorf("%s: %v", c.name, err)
		return
	}
	got, _ := conversion.ToV1alpha1(again.Config)
	if diff := cmp.Diff(document(t, want), document(t, got)); diff != "" {
		t.Errorf("%s (-written as v1alpha1 +read):\n%s", c.name, diff)
	}
}

// The first lines of each case say what kube-proxy's own binary made of it.
func TestNothingIsRefusedThatKubeProxyAccepts(t *testing.T) {
	except := map[string]string{
		"bad-interface-name-too-long": "kube-proxy accepts it, and then fails to write rules with it",
	}
	accepted := 0
	for _, c := range corpus(t) {
		input, err := os.ReadFile(c.input())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(input), "\n# kube-proxy v1.37.1 accepts it.\n") {
			continue
		}
		accepted++
		if _, err := Load(c.input()); err != nil && except[c.name] == "" {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if accepted < 20 {
		t.Errorf("kube-proxy accepts %d cases, want at least 20", accepted)
	}
}

// kube-proxy writes only the selected mode's syncPeriod and minSyncPeriod, and v1alpha2 has one for
// all modes.
func TestDefaultsAreThoseOfKubeProxy(t *testing.T) {
	differs := map[string]string{
		"nftables.minSyncPeriod": "no delay by default",
		"bindAddress":            "nothing means the same",
		"iptables.syncPeriod":    "another mode",
		"ipvs.syncPeriod":        "another mode",
	}
	want := readTree(t, filepath.Join("testdata", "kube-proxy-defaults.yaml"))
	got := readTree(t, filepath.Join("testdata", "corpus", "nothing-set", "v1alpha1.yaml"))
	compareTrees(t, "", want, got, differs)
	for path := range differs {
		t.Errorf("%s is as kube-proxy has it", path)
	}
}

func readTree(t *testing.T, path string) (tree any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

// compareTrees removes from differs what differs.
func compareTrees(t *testing.T, path string, want, got any, differs map[string]string) {
	t.Helper()
	wantObject, ok := want.(map[string]any)
	gotObject, _ := got.(map[string]any)
	switch {
	case ok:
		for name := range wantObject {
			compareTrees(t, strings.TrimPrefix(path+"."+name, "."), wantObject[name], gotObject[name], differs)
		}
		for name := range gotObject {
			if _, ok := wantObject[name]; !ok {
				t.Errorf("%s.%s is not in kube-proxy's", path, name)
			}
		}
	case cmp.Equal(want, got):
	case differs[path] != "":
		delete(differs, path)
	default:
		t.Errorf("%s is %v, kube-proxy has %v", path, got, want)
	}
}
