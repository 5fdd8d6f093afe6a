// Package conformance repeats the network tests of Kubernetes' e2e suite, as far as they concern
// the proxy of a node. docs/conformance.md has the table of both.
package conformance

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The table for people names what there is, and all of it.
func TestConformanceTable(t *testing.T) {
	text, err := os.ReadFile("../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, match := range regexp.MustCompile("`(Test[A-Z]\\w*)`").FindAllStringSubmatch(string(text), -1) {
		named = append(named, match[1])
	}
	slices.Sort(named)
	if diff := cmp.Diff(slices.Compact(named), testsOfThisPackage(t)); diff != "" {
		t.Errorf("docs/conformance.md names (-) and there are (+):\n%s", diff)
	}
}

func testsOfThisPackage(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				names = append(names, f.Name.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}
