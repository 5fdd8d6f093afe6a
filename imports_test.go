package nftproxy

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/nftproxy/nftproxy"

// architecture has a table of the packages that other programs may import, and one of the others.
const architecture = "docs/architecture.md"

// withoutKubernetes are the packages that import nothing of Kubernetes, not even its types, and why.
var withoutKubernetes = map[string]string{
	"model":             "a backend needs nothing but the model",
	"nft":               "nft can be used without Kubernetes",
	"compiler":          "the compiler takes the model, from whomever",
	"evaluator":         "the evaluator takes rulesets, from whomever",
	"conntrack":         "conntrack can be used without Kubernetes",
	"internal/nodeaddr": "a backend needs no Kubernetes library",
	"nodelocal":         "a client needs nothing of Kubernetes",
	"internal/protocol": "a client needs nothing of Kubernetes",
	"nodelocal/v1":      "a client needs nothing of Kubernetes",
}

// TestImports compares the imports of each package with its row in docs/architecture.md, so that neither can
// change without the other.
func TestImports(t *testing.T) {
	imports, rows := packageImports(t), importRows(t)
	for _, pkg := range slices.Sorted(maps.Keys(imports)) {
		t.Run(strings.TrimPrefix(pkg, "./"), func(t *testing.T) {
			if isProduct(pkg) {
				expectProduct(t, pkg, imports[pkg])
			}
			row, ok := rowOf(rows, pkg)
			if !ok {
				t.Fatalf("docs/architecture.md has no row for package %s", pkg)
			}
			if public := isPublic(pkg); public != row.public {
				t.Errorf("package %s: public is %v, and docs/architecture.md lists it where public is %v", pkg, public, row.public)
			}
			if row.anything {
				return
			}
			if diff := cmp.Diff(row.imports, ownImports(imports[pkg], row.imports)); diff != "" {
				t.Errorf("package %s imports from this module (-docs/architecture.md +code):\n%s", pkg, diff)
			}
		})
	}
	t.Run("at most twelve packages are public", func(t *testing.T) {
		if public := slices.DeleteFunc(slices.Clone(rows), func(r importRow) bool { return !r.public }); len(public) > 12 {
			t.Errorf("docs/architecture.md has %d public packages", len(public))
		}
	})
	t.Run("every row has a package", func(t *testing.T) {
		for _, row := range rows {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(imports)), row.matches) {
				t.Errorf("docs/architecture.md has a row for %s, and there is no such package", row.pattern)
			}
		}
	})
}

// isPublic reports whether other programs may import the package, and it is no test kit.
func isPublic(pkg string) bool {
	top, _, _ := strings.Cut(pkg, "/")
	return !isTestKit(pkg) && !slices.Contains([]string{"internal", "cmd", "examples", "integration", "hack"}, top)
}

// isProduct reports whether the package is neither for tests, a test as a program, nor a program for developers.
func isProduct(pkg string) bool {
	top, _, _ := strings.Cut(pkg, "/")
	return pkg != "cmd/proxytest" && top != "integration" && top != "hack" && !isTestKit(pkg)
}

func isTestKit(pkg string) bool {
	return pkg == "nft/nfttest" || strings.HasPrefix(pkg, "internal/testkit/")
}

// expectProduct checks what holds for products.
func expectProduct(t *testing.T, pkg string, imports []string) {
	t.Helper()
	for _, path := range imports {
		switch {
		case strings.HasPrefix(path, module+"/integration"), isTestKit(strings.TrimPrefix(path, module+"/")):
			t.Errorf("package %s imports %s: products do without the tests' packages", pkg, path)
		case path == "os/exec":
			t.Errorf("package %s imports os/exec: products execute no program", pkg)
		case strings.HasPrefix(path, "k8s.io/kubernetes"):
			t.Errorf("package %s imports %s: Kubernetes' libraries are enough", pkg, path)
		case strings.HasPrefix(path, "k8s.io/") && withoutKubernetes[pkg] != "":
			t.Errorf("package %s imports %s: %s", pkg, path, withoutKubernetes[pkg])
		}
	}
}

// packageImports returns what each package of the module imports, tests excepted. A package is named by its
// directory. The root has no code.
func packageImports(t *testing.T) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(path, d.Name())
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if dir == "." {
			return nil // the root has documentation only
		}
		imports[dir] = append(imports[dir], fileImports(t, path)...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return imports
}

// skipDir leaves out the directories that Go leaves out, and other modules.
func skipDir(path, name string) error {
	if path == "." {
		return nil
	}
	if name == "testdata" || name == "bin" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

func fileImports(t *testing.T, path string) (imports []string) {
	t.Helper()
	if strings.HasSuffix(path, "_test.go") {
		return nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		imports = append(imports, imported)
	}
	return imports
}

// importRow is a row of docs/architecture.md, about one package or several.
type importRow struct {
	// pattern is the package's directory. One that ends in "/*" is all packages below.
	pattern string
	// imports is sorted. anything says that they are not listed.
	imports          []string
	anything, public bool
}

func (r importRow) matches(pkg string) bool { return matches(r.pattern, pkg) }

func matches(pattern, pkg string) bool {
	prefix, all := strings.CutSuffix(pattern, "*")
	return pattern == pkg || all && strings.HasPrefix(pkg, prefix)
}

// rowOf returns the row for a package: the one that names it, else the first whose pattern matches.
func rowOf(rows []importRow, pkg string) (importRow, bool) {
	i := slices.IndexFunc(rows, func(r importRow) bool { return r.pattern == pkg })
	if i < 0 {
		i = slices.IndexFunc(rows, func(r importRow) bool { return r.matches(pkg) })
	}
	if i < 0 {
		return importRow{}, false
	}
	return rows[i], true
}

// ownImports returns the packages of this module among the imports, once each and sorted. Those that a pattern of
// the row matches stand as that pattern.
func ownImports(imports, row []string) (own []string) {
	for _, path := range imports {
		pkg, ok := strings.CutPrefix(path, module+"/")
		if !ok {
			continue
		}
		if i := slices.IndexFunc(row, func(pattern string) bool { return matches(pattern, pkg) }); i >= 0 {
			pkg = row[i]
		}
		own = append(own, pkg)
	}
	slices.Sort(own)
	return slices.Compact(own)
}

var (
	importTable = regexp.MustCompile(`(?m)^\| package \| purpose \| imports from this module \|\n\|[-|]+\|\n((?:\|.*\n)+)`)
	code        = regexp.MustCompile("`([^`]+)`")
)

// importRows reads the tables of docs/architecture.md: first the public packages, then the others.
func importRows(t *testing.T) (rows []importRow) {
	t.Helper()
	page, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	tables := importTable.FindAllStringSubmatch(string(page), -1)
	if len(tables) != 2 {
		t.Fatalf("docs/architecture.md has %d tables of packages, want one of public packages and one of the others", len(tables))
	}
	for i, table := range tables {
		for line := range strings.Lines(table[1]) {
			parsed, err := parseImportRow(line, i == 0)
			if err != nil {
				t.Fatalf("docs/architecture.md: %v", err)
			}
			rows = append(rows, parsed...)
		}
	}
	return rows
}

// parseImportRow returns a row for each package that the line's first cell names. The last cell names packages, or
// says "none" or "any of the above".
func parseImportRow(line string, public bool) (rows []importRow, err error) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	if len(cells) != 3 {
		return nil, fmt.Errorf("row %q has %d cells, want 3", line, len(cells))
	}
	imports, last := codes(cells[2]), strings.TrimSpace(cells[2])
	slices.Sort(imports)
	if len(imports) == 0 && last != "none" && last != "any of the above" {
		return nil, fmt.Errorf("row %q: the imports are neither packages nor %q nor %q", line, "none", "any of the above")
	}
	for _, pattern := range codes(cells[0]) {
		rows = append(rows, importRow{pattern: pattern, imports: imports, anything: last == "any of the above", public: public})
	}
	return rows, nil
}

// codes returns what stands between backticks.
func codes(text string) (found []string) {
	for _, m := range code.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

var (
	ringRow = regexp.MustCompile(`(?m)^\| ([1-3])\. [^|]*\| ([^|]*) \| ([0-9,]*) \|$`)
	readRow = regexp.MustCompile(`(?m)^\| [0-9] \| ([^|]*) \| [^|]* \|$`)
)

// TestRings compares the table of the three rings in docs/architecture.md, and the order in which to read the first one,
// with the code.
func TestRings(t *testing.T) {
	page, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	imports, rings := packageImports(t), map[string]string{}
	for _, row := range ringRow.FindAllStringSubmatch(string(page), -1) {
		ring, lines := row[1], 0
		for _, pkg := range codes(row[2]) {
			if rings[pkg] != "" || imports[pkg] == nil {
				t.Errorf("%s is in ring %s too, or is no package", pkg, rings[pkg])
			}
			rings[pkg] = ring
			lines += productionLines(t, pkg)
		}
		said, _ := strconv.Atoi(strings.ReplaceAll(row[3], ",", ""))
		if 5*max(said-lines, lines-said) > lines {
			t.Errorf("ring %s has %d lines, and %s says %s", ring, lines, architecture, row[3])
		}
	}
	for _, row := range readRow.FindAllStringSubmatch(string(page), -1) {
		dir := ""
		for _, name := range codes(row[1]) {
			if in, _ := filepath.Split(name); in != "" {
				dir = in
			}
			if _, err := os.Stat(dir + filepath.Base(name)); err != nil {
				t.Errorf("the order of reading: %v", err)
			}
		}
	}
	for pkg, imported := range imports {
		if top, _, _ := strings.Cut(pkg, "/"); isProduct(pkg) && top != "examples" && rings[pkg] == "" {
			t.Errorf("%s is in no ring", pkg)
		}
		if rings[pkg] != "1" || pkg == "cmd/kube-proxy" {
			continue
		}
		for _, other := range ownImports(imported, nil) {
			if rings[other] != "1" {
				t.Errorf("%s of ring 1 imports %s of ring %s", pkg, other, rings[other])
			}
		}
	}
}

// productionLines counts the lines of a package without tests and generated code.
func productionLines(t *testing.T, pkg string) (lines int) {
	t.Helper()
	paths, err := filepath.Glob(pkg + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines += strings.Count(string(text), "\n")
	}
	return lines
}
