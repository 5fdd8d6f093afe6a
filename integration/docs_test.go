package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestDocs reads all pages for people: the ones at the root of the repository and the ones in docs/.
func TestDocs(t *testing.T) {
	pages := pages(t)
	t.Run("every link leads somewhere", func(t *testing.T) { testLinks(t, pages) })
	t.Run("every test that a page names exists", func(t *testing.T) { testTestNames(t, pages) })
	t.Run("every page of docs is two links from the README at most", func(t *testing.T) { testReachable(t, pages) })
	t.Run("prose is wrapped at 100 columns", func(t *testing.T) { testWidth(t, pages) })
	t.Run("doc.go lists every public package", testOverview)
	t.Run("the README's figures are of the newest run", func(t *testing.T) { testNewestRun(t, pages) })
}

// pages returns the text of each page by its path from the root of the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../deploy/chart/*.md", "../nft/*.md", "../.github/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out[strings.TrimPrefix(filepath.ToSlash(path), "../")] = string(text)
		}
	}
	if len(out) < 15 {
		t.Fatalf("found %d pages; this test looks in the wrong place", len(out))
	}
	return out
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInID  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	testName = regexp.MustCompile("`(Test[A-Z]\\w*)(?:/([^`/\\s]+))?")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
)

func testLinks(t *testing.T, pages map[string]string) {
	for page, text := range pages {
		for _, match := range link.FindAllStringSubmatch(withoutCode(text), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path := page
			if target != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(page), target))
			}
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s links to %s: %v", page, match[1], err)
			} else if to, isPage := pages[path]; anchor != "" && isPage && !slices.Contains(anchors(to), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", page, match[1], path)
			}
		}
	}
}

func testReachable(t *testing.T, pages map[string]string) {
	reached := map[string]bool{"README.md": true}
	for _, page := range append(linkedPages(pages, "README.md"), "README.md") {
		for _, next := range linkedPages(pages, page) {
			reached[next] = true
		}
	}
	for page := range pages {
		if strings.HasPrefix(page, "docs/") && !reached[page] {
			t.Errorf("neither the README nor a page that it links to links to %s", page)
		}
	}
}

// linkedPages returns the pages that a page links to.
func linkedPages(pages map[string]string, from string) (out []string) {
	for _, match := range link.FindAllStringSubmatch(withoutCode(pages[from]), -1) {
		target, _, _ := strings.Cut(match[1], "#")
		path := filepath.ToSlash(filepath.Join(filepath.Dir(from), target))
		if _, isPage := pages[path]; isPage {
			out = append(out, path)
		}
	}
	return out
}

// newestRun is the first run on the page with the comparisons.
var newestRun = regexp.MustCompile(`(?s)\n### \w+ run[^\n]*\n(.*?)\n### `)

func testNewestRun(t *testing.T, pages map[string]string) {
	run := newestRun.FindStringSubmatch(pages["docs/measurements-kube-proxy.md"])
	_, table, _ := strings.Cut(pages["README.md"], "\n## How fast\n")
	table, _, _ = strings.Cut(table, "\n## ")
	if run == nil {
		t.Fatal("docs/measurements-kube-proxy.md has no run")
	}
	seen := 0
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, "|")
		if len(cells) != 6 || !strings.ContainsAny(cells[3], "0123456789") {
			continue
		}
		seen++
		for _, cell := range cells[2:5] {
			if cell = strings.TrimSpace(cell); !strings.Contains(run[1], "| "+cell) {
				t.Errorf("the newest run has no figure %s, which the README has: %s", cell, row)
			}
		}
	}
	if seen < 5 {
		t.Errorf("saw %d rows with figures in the README", seen)
	}
}

const maxWidth = 100

// testWidth leaves out what cannot be wrapped: tables, code, marks for tests, and a link in a line of its own.
func testWidth(t *testing.T, pages map[string]string) {
	for page, text := range pages {
		number := 0
		for line, code := range lines(text) {
			number++
			line = strings.TrimRight(line, "\n")
			table := strings.HasPrefix(strings.TrimSpace(line), "|")
			mark := strings.HasPrefix(line, "<!-- ")
			ownLink := strings.Contains(line, "](") && len(strings.Fields(line)) <= 2
			if width := utf8.RuneCountInString(line); width > maxWidth && !code && !table && !mark && !ownLink {
				t.Errorf("%s:%d has %d columns, more than %d", page, number, width, maxWidth)
			}
		}
	}
}

// anchors returns the fragments that GitHub gives the headings of a page.
func anchors(text string) (out []string) {
	for _, match := range heading.FindAllStringSubmatch(withoutCode(text), -1) {
		id := notInID.ReplaceAllString(strings.ToLower(match[1]), "")
		out = append(out, strings.ReplaceAll(id, " ", "-"))
	}
	return out
}

// withoutCode returns a page without its blocks of code.
func withoutCode(text string) string {
	var out strings.Builder
	for line, code := range lines(text) {
		if !code {
			out.WriteString(line)
		}
	}
	return out.String()
}

// lines yields each line with its newline, and whether it belongs to a block of code.
func lines(text string) func(yield func(string, bool) bool) {
	return func(yield func(string, bool) bool) {
		fenced := false
		for line := range strings.Lines(text) {
			fence := strings.HasPrefix(strings.TrimSpace(line), "```")
			if fence {
				fenced = !fenced
			}
			if !yield(line, fence || fenced || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t")) {
				return
			}
		}
	}
}

func testTestNames(t *testing.T, pages map[string]string) {
	there, sources := testsOfTheModules(t)
	for page, text := range pages {
		for _, match := range testName.FindAllStringSubmatch(text, -1) {
			test, sentence := match[1], strings.ReplaceAll(match[2], "_", " ")
			if !there[test] || !strings.Contains(sources, sentence) {
				t.Errorf("%s names %s, which is no test", page, match[0])
			}
		}
	}
}

// testsOfTheModules returns the names of the top-level tests, and the sources of all tests, in which the names of
// subtests stand.
func testsOfTheModules(t *testing.T) (there map[string]bool, sources string) {
	t.Helper()
	there = map[string]bool{}
	var all strings.Builder
	err := filepath.WalkDir("..", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range testFunc.FindAllSubmatch(text, -1) {
			there[string(match[1])] = true
		}
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return there, all.String()
}

// testOverview compares the overview of the module with the table of public packages, which TestImports compares
// with the code.
func testOverview(t *testing.T) {
	overview, err := os.ReadFile("../doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range importRows(t) {
		if row.public && !strings.Contains(string(overview), "//   - "+row.pattern+": ") {
			t.Errorf("doc.go does not list package %s", row.pattern)
		}
	}
}
