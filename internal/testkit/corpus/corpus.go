// Package corpus holds example configurations and the result of each, for the tests of several packages.
//
// The archives testdata/*.txtar hold the cases: refused.txtar those with an error, whose names start with "bad-", and
// two others those in each version of the format. A case has these files, named CASE/FILE:
//
//	input.yaml     the configuration
//	messages.txt   warnings, losses and errors; missing when there are none
//	v1alpha2.yaml  the file that --write-config-to writes; missing when the input is invalid
//	v1alpha1.yaml  that file, converted back; missing when the input is invalid
//
// The last two are complete in the cases nothing-set, every-field-set and v1alpha2-every-field-set. In others they hold
// only what differs from the case nothing-set. go test ./internal/config -update writes the last three.
package corpus

import (
	"embed"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"
)

// Input is the file of each case that holds the configuration.
const Input = "input.yaml"

// results are the other files, in their order.
var results = []string{"messages.txt", "v1alpha2.yaml", "v1alpha1.yaml"}

//go:embed testdata/*.txtar
var archives embed.FS

// Case is one configuration with its results.
type Case struct {
	// Name says what the case shows, with dashes for spaces.
	Name string

	archive string
	files   map[string]string
}

// All returns the cases.
func All(t testing.TB) (cases []Case) {
	t.Helper()
	entries, err := archives.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := archives.ReadFile("testdata/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range txtar.Parse(data).Files {
			name, file, _ := strings.Cut(f.Name, "/")
			if file == Input {
				cases = append(cases, Case{Name: name, archive: e.Name(), files: map[string]string{}})
			}
			cases[len(cases)-1].files[file] = string(f.Data)
		}
	}
	return cases
}

// Get returns the case of that name.
func Get(t testing.TB, name string) Case {
	t.Helper()
	all := All(t)
	i := slices.IndexFunc(all, func(c Case) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("the corpus has no case %s", name)
	}
	return all[i]
}

// File returns the contents of a file, "" when the case has no such file.
func (c *Case) File(name string) string { return c.files[name] }

// WriteInput writes the configuration to a file that lasts as long as the test, and returns its path.
func (c *Case) WriteInput(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), Input)
	if err := os.WriteFile(path, []byte(c.File(Input)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Set replaces the contents of a file. Empty contents remove it.
func (c *Case) Set(name, contents string) { c.files[name] = contents }

// Save writes the archives into a folder, which is this package's testdata for the next test run to see it.
func Save(t testing.TB, folder string, cases []Case) {
	t.Helper()
	written := map[string]*txtar.Archive{}
	for _, c := range cases {
		if written[c.archive] == nil {
			written[c.archive] = new(txtar.Archive)
		}
		for _, name := range append([]string{Input}, results...) {
			if c.files[name] != "" {
				written[c.archive].Files = append(written[c.archive].Files, txtar.File{Name: c.Name + "/" + name, Data: []byte(c.files[name])})
			}
		}
	}
	for name, archive := range written {
		if err := os.WriteFile(filepath.Join(folder, name), txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Shown returns the part of a resulting document that the case holds. base is the same
// document of the case nothing-set.
func (c *Case) Shown(t testing.TB, base, document string) string {
	t.Helper()
	if strings.HasSuffix(c.Name, "nothing-set") || strings.HasSuffix(c.Name, "every-field-set") {
		return document
	}
	var before, after map[string]any
	if err := errors.Join(yaml.Unmarshal([]byte(base), &before), yaml.Unmarshal([]byte(document), &after)); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(difference(before, after))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// difference returns the fields of after that differ from before. Fields that are gone have the value "(gone)".
func difference(before, after map[string]any) map[string]any {
	out := map[string]any{}
	for name := range before {
		if _, there := after[name]; !there {
			out[name] = "(gone)"
		}
	}
	for name, value := range after {
		old, isOld := before[name].(map[string]any)
		now, isNow := value.(map[string]any)
		switch {
		case isOld && isNow:
			if changed := difference(old, now); len(changed) > 0 {
				out[name] = changed
			}
		case !reflect.DeepEqual(before[name], value):
			out[name] = value
		}
	}
	return out
}
