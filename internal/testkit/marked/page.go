// Package marked reads and replaces the parts of a page that a program writes: those between two lines.
package marked

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Cut returns the text of a page between two lines, and what is before and after it, with these lines. An error names the
// page and the lines that it lacks.
func Cut(page, begin, end string) (before, text, after string, err error) {
	content, err := os.ReadFile(page)
	if err != nil {
		return "", "", "", err
	}
	before, rest, found := strings.Cut(string(content), begin)
	text, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", "", "", fmt.Errorf("%s lacks the line %q or %q after it", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin, text, end + after, nil
}

// Check compares the text between "<!-- MARK -->" and "<!-- end of MARK -->" with what a test wants, or writes it.
func Check(t *testing.T, page, mark, want string, update bool) {
	t.Helper()
	before, text, after, err := Cut(page, "<!-- "+mark+" -->\n", "<!-- end of "+mark+" -->\n")
	switch {
	case err != nil:
		t.Fatal(err)
	case update:
		if err := os.WriteFile(page, []byte(before+want+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case text != want:
		t.Errorf("%s is not up to date; `make golden` accepts the change (-want +page):\n%s", page, cmp.Diff(want, text))
	}
}
