package integration

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// TestDocs reads all pages for people: the ones at the root of the repository and the ones in docs/.
func TestDocs(t *testing.T) {
	t.Parallel()
	pages := pages(t)
	t.Run("every link leads somewhere", func(t *testing.T) { testLinks(t, pages) })
	t.Run("every test that a page names exists", func(t *testing.T) { testTestNames(t, pages) })
	t.Run("every page of docs is two links from the README at most", func(t *testing.T) { testReachable(t, pages) })
	t.Run("the README's figures are those of the newest run", func(t *testing.T) { testFigures(t, pages) })
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
	named    = regexp.MustCompile(`<a id="([^"]*)"></a>`)
	notInID  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	testName = regexp.MustCompile("`(Test[A-Z]\\w*)(?:/([^`/\\s]+))?")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	figure   = regexp.MustCompile(`[0-9.,]+ (?:s|ms|µs|MB)\b`)
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

// testFigures looks for the figures of the README's comparison in the newest run of the page of measurements.
func testFigures(t *testing.T, pages map[string]string) {
	_, run, found := strings.Cut(pages["docs/measurements-kube-proxy.md"], "\n### Latest run\n")
	run, _, closed := strings.Cut(run, "\n### ")
	if !found || !closed {
		t.Fatal("docs/measurements-kube-proxy.md has no section \"Latest run\" with another one after it")
	}
	rows := 0
	for line, code := range lines(pages["README.md"]) {
		if code || !strings.HasPrefix(line, "| ") {
			continue
		}
		rows++
		for _, figure := range figure.FindAllString(line, -1) {
			if !regexp.MustCompile(` ` + regexp.QuoteMeta(figure) + `\b`).MatchString(run) {
				t.Errorf("the latest run has no figure %q, of the README's row %q", figure, strings.TrimSpace(line))
			}
		}
	}
	if rows < 7 {
		t.Fatalf("the README's comparison has %d rows", rows)
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

// anchors returns the fragments that GitHub gives the headings of a page.
func anchors(text string) (out []string) {
	for _, match := range heading.FindAllStringSubmatch(withoutCode(text), -1) {
		id := notInID.ReplaceAllString(strings.ToLower(match[1]), "")
		out = append(out, strings.ReplaceAll(id, " ", "-"))
	}
	for _, match := range named.FindAllStringSubmatch(text, -1) {
		out = append(out, match[1])
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

var kubeProxy = flag.String("kube-proxy", "", "Kubernetes' kube-proxy, to compare its endpoints with docs/migration.md")

// migrationRows returns what a pattern finds in docs/migration.md.
func migrationRows(t *testing.T, pattern string, atLeast int) [][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(string(text), -1)
	if len(rows) < atLeast {
		t.Fatalf("docs/migration.md has %d rows that match %s, want at least %d", len(rows), pattern, atLeast)
	}
	return rows
}

func TestMigrationPage(t *testing.T) {
	t.Parallel()
	t.Run("HTTP endpoints are as documented", testEndpointsAreAsDocumented)
	t.Run("metrics of libraries are as documented", testMetricsOfLibrariesAreAsDocumented)
}

func testEndpointsAreAsDocumented(t *testing.T) {
	rows := migrationRows(t, "^\\| (\\d+) \\| `(GET|PUT) (/\\S*)` \\| (\\d+) \\| (\\d+) \\| (.*) \\|$", 20)
	programs := map[string]string{"this": lab.Binary(t, "kube-proxy")}
	if *kubeProxy != "" {
		programs["Kubernetes'"] = *kubeProxy
	}
	for name, program := range programs {
		for column, profiling := range map[int]string{4: "--profiling=false", 5: "--profiling"} {
			t.Run(name+" "+profiling, func(t *testing.T) {
				f := newWithServer(t)
				args := append(append(f.args(), leaveConntrack...), "--proxy-mode=nftables", "--kubeconfig="+f.kubeconfig, profiling)
				p := lab.StartCommand(t, f.lab.Node, exec.Command(program, args...))
				f.serves(t)
				for _, row := range rows {
					port, method, path, want := row[1], row[2], row[3], row[column]
					if got := f.status(t, method, "http://127.0.0.1:"+port+path); got != want && (name == "this" || strings.HasPrefix(row[6], "same")) {
						t.Errorf("%s %s at port %s: status %s, want %s", method, path, port, got, want)
					}
				}
				if err := p.Stop(t); err != nil && name == "this" {
					t.Errorf("the proxy ended with %v", err)
				}
			})
		}
	}
}

// serves waits until both servers of the proxy answer, and the health server well.
func (f *withServer) serves(t *testing.T) {
	t.Helper()
	for _, server := range servers {
		await.Until(t, "there is a "+server.name, func() error {
			_, err := getFrom(f.lab.Node, strings.Replace("http://"+server.address+server.path, "0.0.0.0", "127.0.0.1", 1))
			return err
		})
	}
	await.Until(t, "the proxy is healthy", func() error {
		if got := f.status(t, http.MethodGet, "http://127.0.0.1:10256/healthz"); got != "200" {
			return fmt.Errorf("status %s", got)
		}
		return nil
	})
}

// status asks a server of the node.
func (f *troubled) status(t *testing.T, method, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := clientOf(f.lab.Node).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return fmt.Sprint(response.StatusCode)
}

func testMetricsOfLibrariesAreAsDocumented(t *testing.T) {
	f := newWithServer(t)
	f.start(t, "--kubeconfig="+f.kubeconfig)
	f.applied(t)
	page, err := getFrom(f.lab.Node, "http://127.0.0.1:10249/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range migrationRows(t, "^\\| `([a-z_]+[*]?)` \\| (same|different: .*|not applicable: .*) \\|$", 25) {
		name, there := row[1], !strings.HasPrefix(row[2], "not applicable")
		if there && strings.HasPrefix(name, "kubeproxy_") {
			continue // metrics with labels show when there is something to show; their own package tests them
		}
		pattern := `(?m)^# TYPE ` + strings.Replace(name, "*", `\w+`, 1) + ` `
		if regexp.MustCompile(pattern).MatchString(page) != there {
			t.Errorf("docs/migration.md says %s: %s", name, row[2])
		}
	}
}
