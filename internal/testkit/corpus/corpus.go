// Package corpus holds example configurations and the result of each, for the tests of several packages.
//
// A case is an archive testdata/NAME.txtar of these files:
//
//	input.yaml     the configuration
//	messages.txt   warnings, losses and errors; missing when there are none
//	v1alpha2.yaml  the file that --write-config-to writes; missing when the input is invalid
//	v1alpha1.yaml  that file, converted back; missing when the input is invalid
//
// go test ./internal/config -update writes the last three. The name of a case with an error starts with "bad-".
package corpus

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// Input is the file of each case that holds the configuration.
const Input = "input.yaml"

//go:embed testdata/*.txtar
var archives embed.FS

// Case is one configuration with its results.
type Case struct {
	// Name says what the case shows, with dashes for spaces.
	Name string

	files txtar.Archive
}

// All returns the cases, sorted by name.
func All(t testing.TB) (cases []Case) {
	t.Helper()
	entries, err := archives.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		cases = append(cases, Get(t, strings.TrimSuffix(e.Name(), ".txtar")))
	}
	return cases
}

// Get returns the case of that name.
func Get(t testing.TB, name string) Case {
	t.Helper()
	data, err := archives.ReadFile("testdata/" + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	return Case{Name: name, files: *txtar.Parse(data)}
}

// File returns the contents of a file, "" when the case has no such file.
func (c *Case) File(name string) string {
	for _, f := range c.files.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

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
func (c *Case) Set(name, contents string) {
	c.files.Files = slices.DeleteFunc(c.files.Files, func(f txtar.File) bool { return f.Name == name })
	if contents != "" {
		c.files.Files = append(c.files.Files, txtar.File{Name: name, Data: []byte(contents)})
	}
}

// Save writes the archive into a folder, which is this package's testdata for the next test run to see it.
func (c *Case) Save(folder string) error {
	path := filepath.Join(folder, c.Name+".txtar")
	if err := os.WriteFile(path, txtar.Format(&c.files), 0o644); err != nil {
		return fmt.Errorf("save case %s: %w", c.Name, err)
	}
	return nil
}
