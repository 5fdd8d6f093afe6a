package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each error names the flag, before anything runs.
func TestFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pair := []string{"--proxy", "a", "--random", "1", "--against", "b"}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "--proxy: the command is missing"},
		{[]string{"--proxy", "a 'b"}, "--proxy: command \"a 'b\": no closing '"},
		{[]string{"--proxy", "a", "--family", "5"}, `--family: family "5" is not 4, 6 or dual`},
		{[]string{"--proxy", "a", "-o", "xml"}, `--output: "xml" is none of`},
		{[]string{"--proxy", "a", "--case", "("}, "--case: error parsing regexp"},
		{[]string{"--proxy", "a", "--case", "none"}, `no case has a name like "none"`},
		{[]string{"--proxy", "a", "--expect", "none"}, "--expect: neither a name in the corpus nor a file"},
		{[]string{"--proxy", "a", "--random", "1"}, "[random against]"},
		{[]string{"--proxy", "a", "--against", "b"}, "[random against]"},
		{[]string{"--proxy", "a", "--seed", "1"}, "--seed goes with --random only"},
		{[]string{"--proxy", "a", "--found", "x"}, "--found goes with --random only"},
		{[]string{"--proxy", "a", "--kubernetes", "x"}, "--kubernetes goes with --random only"},
		{[]string{"--proxy", "a", "--random", "0", "--against", "b"}, "--random: 0 random clusters, want 1 at least"},
		{[]string{"--proxy", "a", "--random", "x", "--against", "b"}, `invalid argument "x" for "--random"`},
		{[]string{"--proxy", "a", "--random", "1", "--against", ""}, "--against: the command is missing"},
		{[]string{"--random", "1", "--against", "b"}, "--proxy: the command is missing"},
		{append(pair, "--seed", "-1"), `invalid argument "-1" for "--seed"`},
		{append(pair, "--case", "x"), "[random case]"},
		{append(pair, "--expect", "none"), "--expect: neither a name in the corpus nor a file"},
		{append(pair, "--fresh"), "[random fresh]"},
		{append(pair, "--found", file), "--found: " + file + " is no directory"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			var code int
			c := newCommand(&code)
			c.SetArgs(tt.args)
			c.SetOut(io.Discard)
			c.SetErr(io.Discard)
			if err := c.Execute(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
