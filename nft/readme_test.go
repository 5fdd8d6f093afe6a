package nft

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

// The tables of the README have a row for each type of statement and of value, and no others.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for title, method := range map[string]string{"statement": "linearize", "value": "loadVia"} {
		_, table, _ := strings.Cut(string(page), "\n| "+title+" | such as |")
		table, _, _ = strings.Cut(table, "\n\n")
		var rows []string
		for _, match := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(table, -1) {
			rows = append(rows, match[1])
		}
		slices.Sort(rows)
		if diff := cmp.Diff(typesWith(t, method), rows); diff != "" {
			t.Errorf("%ss (-code +README):\n%s", title, diff)
		}
	}
}

// typesWith returns the exported types of this package that have a method.
func typesWith(t *testing.T, method string) (names []string) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv != nil && f.Name.Name == method {
				if of, is := f.Recv.List[0].Type.(*ast.Ident); is && of.IsExported() && of.Name != "Rule" { // a rule is a list of statements
					names = append(names, of.Name)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}
