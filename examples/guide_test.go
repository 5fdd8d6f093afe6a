// Package examples tests docs/writing-a-proxy.md: its code is the code of this repository, and its table of dependencies is true.
package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/tracker"
)

var update = flag.Bool("update", false, "rewrite the code and the table in docs/writing-a-proxy.md")

const (
	guide  = "../docs/writing-a-proxy.md"
	module = "github.com/nftproxy/nftproxy"
)

// block is code in the guide that is copied from a file: all of it, or the declarations that are named.
//
//	<!-- code: examples/printer/main.go printer Sync -->
//	```go
var block = regexp.MustCompile("(?ms)^<!-- code: (\\S+)((?: \\S+)*) -->\n```(\\w+)\n(.*?)^```$")

// dependencies is the table that is made from the imports.
var dependencies = regexp.MustCompile(`(?ms)^<!-- dependencies: ([^>]*) -->\n(.*?)^<!-- end -->$`)

func TestGuide(t *testing.T) {
	page, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	blocks, tables := 0, 0
	want := block.ReplaceAllFunc(page, func(found []byte) []byte {
		blocks++
		parts := block.FindSubmatch(found)
		code := codeOf(t, filepath.Join("..", string(parts[1])), strings.Fields(string(parts[2])))
		return fmt.Appendf(nil, "<!-- code: %s%s -->\n```%s\n%s```", parts[1], parts[2], parts[3], code)
	})
	want = dependencies.ReplaceAllFunc(want, func(found []byte) []byte {
		tables++
		parts := dependencies.FindSubmatch(found)
		return fmt.Appendf(nil, "<!-- dependencies: %s -->\n%s<!-- end -->", parts[1], dependencyTable(t, strings.Fields(string(parts[1]))))
	})
	if blocks < 4 || tables != 1 {
		t.Errorf("the guide has %d blocks of code and %d tables", blocks, tables)
	}
	if *update {
		if err := os.WriteFile(guide, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(page), string(want)); diff != "" {
		t.Errorf("docs/writing-a-proxy.md (-page +code); `make golden` mends it:\n%s", diff)
	}
	// Code that comes from nowhere is not compiled by anybody.
	for _, fence := range regexp.MustCompile("(?m)^(.*)\n```go$").FindAllSubmatch(page, -1) {
		if !bytes.HasPrefix(fence[1], []byte("<!-- code: ")) {
			t.Errorf("Go code after %q is not copied from a file", fence[1])
		}
	}
}

// codeOf returns a file, without the comment above its package clause, or the declarations that are named, comments included.
// The manifests that the guide runs are good examples: nothing in them is left out.
func TestExampleManifests(t *testing.T) {
	tr := tracker.New(tracker.Options{NodeName: "node-1", OnSkip: func(kind, reason string) { t.Errorf("a part of a %s is left out: %s", kind, reason) }})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manifests.New("../docs/example/manifests").Run(ctx, tr) }()
	select {
	case <-tr.Ready():
	case err := <-ended:
		t.Fatalf("%v before the manifests were read", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := len(tr.Changes().Ports); n != 3 {
		t.Errorf("%d Service ports, want those of api, empty and web", n)
	}
}

func codeOf(t *testing.T, path string, names []string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(path, ".go") {
		return text
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	offset := func(pos token.Pos) int { return files.Position(pos).Offset }
	if len(names) == 0 {
		return text[offset(file.Package):]
	}
	var code [][]byte
	for _, name := range names {
		from, to := declaration(file, name)
		if from == token.NoPos {
			t.Fatalf("%s has no %s", path, name)
		}
		code = append(code, append(bytes.Clone(text[offset(from):offset(to)]), '\n'))
	}
	return bytes.Join(code, []byte("\n"))
}

// declaration returns where a function, method, type, constant or variable begins and ends.
func declaration(file *ast.File, name string) (from, to token.Pos) {
	for _, d := range file.Decls {
		var doc *ast.CommentGroup
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.Name != name {
				continue
			}
			doc = d.Doc
		case *ast.GenDecl:
			if !slices.ContainsFunc(d.Specs, func(s ast.Spec) bool { return declares(s, name) }) {
				continue
			}
			doc = d.Doc
		}
		if doc != nil {
			return doc.Pos(), d.End()
		}
		return d.Pos(), d.End()
	}
	return token.NoPos, token.NoPos
}

func declares(s ast.Spec, name string) bool {
	switch s := s.(type) {
	case *ast.TypeSpec:
		return s.Name.Name == name
	case *ast.ValueSpec:
		return slices.ContainsFunc(s.Names, func(n *ast.Ident) bool { return n.Name == name })
	}
	return false
}

// withoutKubernetes are the packages that a client of the node-local API needs.
var withoutKubernetes = []string{"model", "nodelocal", "nft", "conntrack"}

// dependencyTable has a row for each package: how many packages it pulls in from outside of this module and the
// standard library, of how many modules, and what of Kubernetes is among them.
func dependencyTable(t *testing.T, packages []string) []byte {
	t.Helper()
	out := []byte("| package | packages from other modules | other modules | of Kubernetes |\n|---|---|---|---|\n")
	for _, pkg := range packages {
		deps, modules := dependenciesOf(t, "./"+pkg)
		var kubernetes []string
		for _, m := range modules {
			if strings.HasPrefix(m, "k8s.io/") || strings.HasPrefix(m, "sigs.k8s.io/") {
				kubernetes = append(kubernetes, "`"+m+"`")
			}
		}
		if slices.Contains(withoutKubernetes, pkg) && len(kubernetes) > 0 {
			t.Errorf("package %s pulls in %v: a backend does without Kubernetes", pkg, kubernetes)
		}
		if len(kubernetes) == 0 {
			kubernetes = []string{"nothing"}
		}
		out = fmt.Appendf(out, "| `%s` | %d | %d | %s |\n", pkg, deps, len(modules), strings.Join(kubernetes, ", "))
	}
	return out
}

func dependenciesOf(t *testing.T, pkg string) (packages int, modules []string) {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Module", pkg)
	list.Dir = ".."
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Standard   bool
			Module     *struct{ Path string }
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Standard || p.Module == nil || p.Module.Path == module {
			continue
		}
		packages++
		if !slices.Contains(modules, p.Module.Path) {
			modules = append(modules, p.Module.Path)
		}
	}
	slices.Sort(modules)
	return packages, modules
}
