package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// logLine is a line of the log in the table of docs/operations.md. What else stands in code there, such as -v 2, begins
// otherwise.
var logLine = regexp.MustCompile("`([A-Z][^`]{3,})`")

func TestDocumentedLogLines(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n## Log lines\n")
	if !found {
		t.Fatal("docs/operations.md has no section of log lines")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	source := sourceText(t, root)
	lines := 0
	for row := range strings.Lines(table) {
		cell, isRow := strings.CutPrefix(row, "| ")
		if !isRow {
			continue
		}
		cell, _, _ = strings.Cut(cell, " | ")
		for _, match := range logLine.FindAllStringSubmatch(cell, -1) {
			lines++
			line := strings.TrimSuffix(match[1], " …")
			if !strings.Contains(source, `"`+line) {
				t.Errorf("docs/operations.md has the log line %q, which nothing writes", line)
			}
		}
	}
	if lines < 20 {
		t.Errorf("only %d log lines found in docs/operations.md", lines)
	}
}

// sourceText is the text of all Go files below a directory, without tests.
func sourceText(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
