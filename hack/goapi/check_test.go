// Package goapi checks that releases of this module do not break programs that use its Go API.
package goapi

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// release makes a repository of a module with a tagged version, and returns its directory.
func release(t *testing.T, source string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, dir, "go.mod", "module example.org/library\n\ngo 1.26.0\n")
	write(t, dir, "library.go", source)
	write(t, dir, "breaking.txt", "# nothing yet\n")
	for _, args := range [][]string{
		{"init", "--quiet"}, {"add", "."}, {"commit", "--quiet", "-m", "a release"}, {"tag", "v0.1.0"},
	} {
		git(t, dir, args...)
	}
	return dir
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	identity := []string{"-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false", "-C", dir}
	if out, err := exec.Command("git", append(identity, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// check runs the script in a directory.
func check(t *testing.T, dir string) (output string, err error) {
	t.Helper()
	script, err := filepath.Abs("check.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script, "breaking.txt")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

const released = "package library\n\n// Answer answers.\nfunc Answer() int { return 42 }\n\n// Ask asks.\nfunc Ask(what string) {}\n"

func TestCheck(t *testing.T) {
	const removed = "- Answer: removed"
	for _, tc := range []struct {
		name, source, breaking string
		says                   string
		fails                  bool
	}{
		{"the same passes", released, "", "no change since v0.1.0", false},
		{"a new function passes", released + "\nfunc New() {}\n", "", "no change since v0.1.0", false},
		{"a removed function fails", strings.Replace(released, "func Answer()", "func answer()", 1), "", removed, true},
		{"a removed function that is listed passes", strings.Replace(released, "func Answer()", "func answer()", 1), removed + "\n", "but for 1 listed", false},
		{"another parameter fails", strings.Replace(released, "what string", "what, whom string", 1), "", "- Ask: changed from", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := release(t, released)
			write(t, dir, "library.go", tc.source)
			write(t, dir, "breaking.txt", "# a comment\n"+tc.breaking)
			out, err := check(t, dir)
			if (err != nil) != tc.fails || !strings.Contains(out, tc.says) {
				t.Errorf("%v\n%s\nwant failure %v and %q", err, out, tc.fails, tc.says)
			}
		})
	}
	t.Run("without a tag there is nothing to compare with", func(t *testing.T) {
		dir := release(t, released)
		git(t, dir, "tag", "-d", "v0.1.0")
		if out, err := check(t, dir); err != nil || !strings.Contains(out, "no version tag yet") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
