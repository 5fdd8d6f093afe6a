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
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
)

// The table for people names what there is, and all of it.
func TestConformanceTable(t *testing.T) {
	text, err := os.ReadFile("../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, match := range regexp.MustCompile("`(Test[A-Z]\\w*(?:/[^`]+)?)`").FindAllStringSubmatch(string(text), -1) {
		named = append(named, match[1])
	}
	for _, line := range regexp.MustCompile("golden cases? [^|\n]*").FindAllString(string(text), -1) {
		for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line, -1) {
			flows.FindCase(t, match[1])
		}
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
				names = append(names, subtests(t, f)...)
			}
		}
	}
	slices.Sort(names)
	return names
}

// subtests returns the names of those that a test runs as functions of their own, or its own name if there are none.
func subtests(t *testing.T, test *ast.FuncDecl) (names []string) {
	t.Helper()
	for _, statement := range test.Body.List {
		expression, _ := statement.(*ast.ExprStmt)
		if expression == nil {
			continue
		}
		call, _ := expression.X.(*ast.CallExpr)
		if call == nil || len(call.Args) != 2 {
			continue
		}
		sentence, _ := call.Args[0].(*ast.BasicLit)
		if _, function := call.Args[1].(*ast.Ident); !function || sentence == nil {
			continue
		}
		text, err := strconv.Unquote(sentence.Value)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, test.Name.Name+"/"+strings.ReplaceAll(text, " ", "_"))
	}
	if names == nil {
		return []string{test.Name.Name}
	}
	return names
}
