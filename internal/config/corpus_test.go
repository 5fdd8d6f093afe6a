package config

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/testkit/corpus"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write v1alpha2.yaml, v1alpha1.yaml and messages.txt of every case")

// corpusFolder is the directory into which -update writes the cases.
const corpusFolder = "../testkit/corpus/testdata"

func cases(t testing.TB) []corpus.Case {
	t.Helper()
	all := corpus.All(t)
	if len(all) < 40 {
		t.Fatalf("the corpus has %d cases, want at least 40", len(all))
	}
	return all
}

// results are the files of a case that follow from its input.
func results(t *testing.T, c corpus.Case) map[string]string {
	t.Helper()
	path := c.WriteInput(t)
	f, err := Load(path)
	if err != nil {
		return map[string]string{"messages.txt": "error: " + strings.ReplaceAll(err.Error(), path, corpus.Input) + "\n"}
	}
	var messages strings.Builder
	for _, warning := range f.Warnings {
		messages.WriteString("warning: " + strings.ReplaceAll(warning, path, corpus.Input) + "\n")
	}
	back, losses := v1alpha2.ToV1alpha1(f.Config)
	for _, loss := range losses {
		messages.WriteString("lost in v1alpha1: " + loss.String() + "\n")
	}
	if _, err := Compiler(f.Config); err != nil {
		messages.WriteString("error when run: " + err.Error() + "\n")
	}
	return map[string]string{"messages.txt": messages.String(), "v1alpha2.yaml": document(t, f.Config), "v1alpha1.yaml": document(t, back)}
}

func document(t testing.TB, c any) string {
	t.Helper()
	data, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCorpus(t *testing.T) {
	nothingSet := corpus.Get(t, "nothing-set")
	base, all := results(t, nothingSet), cases(t)
	for _, c := range all {
		t.Run(c.Name, func(t *testing.T) {
			results := results(t, c)
			for _, name := range []string{"messages.txt", "v1alpha2.yaml", "v1alpha1.yaml"} {
				if results[name] != "" && name != "messages.txt" {
					results[name] = c.Shown(t, base[name], results[name])
				}
				if *update {
					c.Set(name, results[name])
				}
				if diff := cmp.Diff(c.File(name), results[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
	if *update {
		corpus.Save(t, corpusFolder, all)
	}
}

// An error is one line that names the file and then, for each thing that is wrong, the field and
// what would be right.
func testErrorsNameFileFieldAndRemedy(t *testing.T) {
	withoutField := map[string]bool{"bad-not-yaml": true}
	named := regexp.MustCompile(`^(line [0-9]+: key "[a-zA-Z]+"|apiVersion ".*", kind ".*": |[a-zA-Z0-9.]+(\[[0-9]+\])?: )`)
	remedy := regexp.MustCompile("must |supported values: |remove |this version calls it ")
	for _, c := range cases(t) {
		path := c.WriteInput(t)
		_, err := Load(path)
		if invalid := strings.HasPrefix(c.Name, "bad-"); invalid != (err != nil) {
			t.Errorf("%s: error %v, want one: %v", c.Name, err, invalid)
		}
		if err == nil {
			continue
		}
		text, ok := strings.CutPrefix(err.Error(), "configuration "+path+": ")
		if !ok || strings.Contains(text, "\n") {
			t.Errorf("%s: %q is not one line that starts with the file", c.Name, err)
		}
		if !withoutField[c.Name] && !named.MatchString(text) {
			t.Errorf("%s: %q names no field", c.Name, text)
		}
		if !remedy.MatchString(text) {
			t.Errorf("%s: %q does not say what to do", c.Name, text)
		}
	}
}

func TestWrite(t *testing.T) {
	t.Run("written files are read back", testWrittenFilesAreReadBack)
}

// What --write-config-to writes is read as what was written.
func testWrittenFilesAreReadBack(t *testing.T) {
	for _, c := range cases(t) {
		f, err := Load(c.WriteInput(t))
		if err != nil {
			continue
		}
		path := filepath.Join(t.TempDir(), "written.yaml")
		if _, err := Write(f.Config, V1alpha2, path); err != nil {
			t.Fatal(err)
		}
		again, err := Load(path)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		if diff := cmp.Diff(document(t, f.Config), document(t, again.Config)); diff != "" {
			t.Errorf("%s (-written +read):\n%s", c.Name, diff)
		}
		isWrittenAsV1alpha1(t, c, f)
	}
}

// isWrittenAsV1alpha1 checks that a proxy which reads what was written as v1alpha1 has the same
// configuration, apart from what is said to be lost.
func isWrittenAsV1alpha1(t *testing.T, c corpus.Case, f *File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "v1alpha1.yaml")
	lost, err := Write(f.Config, V1alpha1, path)
	if err != nil {
		t.Fatal(err)
	}
	want, losses := v1alpha2.ToV1alpha1(f.Config)
	if diff := cmp.Diff(losses, lost); diff != "" {
		t.Errorf("%s: losses (-conversion +said):\n%s", c.Name, diff)
	}
	again, err := Load(path)
	if err != nil {
		t.Errorf("%s: %v", c.Name, err)
		return
	}
	got, _ := v1alpha2.ToV1alpha1(again.Config)
	if diff := cmp.Diff(document(t, want), document(t, got)); diff != "" {
		t.Errorf("%s (-written as v1alpha1 +read):\n%s", c.Name, diff)
	}
}

func TestLoad(t *testing.T) {
	t.Run("accepts what kube-proxy accepts", testConfigurationsThatKubeProxyAccepts)
	t.Run("defaults are those of kube-proxy", testDefaultsAreThoseOfKubeProxy)
}

// The first lines of each case say what kube-proxy's own binary made of it.
func testConfigurationsThatKubeProxyAccepts(t *testing.T) {
	except := map[string]string{
		"bad-interface-name-too-long": "kube-proxy accepts it, and then fails to write rules with it",
	}
	accepted := 0
	for _, c := range cases(t) {
		if !strings.Contains(c.File(corpus.Input), "\n# kube-proxy v1.37.1 accepts it.\n") {
			continue
		}
		accepted++
		if _, err := Load(c.WriteInput(t)); err != nil && except[c.Name] == "" {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	if accepted < 20 {
		t.Errorf("kube-proxy accepts %d cases, want at least 20", accepted)
	}
}

// kube-proxy writes only the selected mode's syncPeriod and minSyncPeriod, and v1alpha2 has one for
// all modes.
func testDefaultsAreThoseOfKubeProxy(t *testing.T) {
	differs := map[string]string{
		"nftables.minSyncPeriod": "no delay by default",
		"bindAddress":            "nothing means the same",
		"iptables.syncPeriod":    "another mode",
		"ipvs.syncPeriod":        "another mode",
	}
	defaults, err := os.ReadFile(filepath.Join("testdata", "kube-proxy-defaults.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	nothingSet := corpus.Get(t, "nothing-set")
	want, got := readTree(t, string(defaults)), readTree(t, nothingSet.File("v1alpha1.yaml"))
	compareTrees(t, "", want, got, differs)
	for path := range differs {
		t.Errorf("%s is as kube-proxy has it", path)
	}
}

func readTree(t *testing.T, document string) (tree any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(document), &tree); err != nil {
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
