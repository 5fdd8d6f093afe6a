package main

import (
	"fmt"
	"os"
	"strings"
)

// readKnown reads the file of known failures: a line with the name of a spec, and below it, indented, the reason. Lines
// that begin with # are comments.
func readKnown(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	known, err := parseKnown(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return known, nil
}

func parseKnown(text string) (map[string]string, error) {
	known, name := map[string]string{}, ""
	for line := range strings.Lines(text) {
		reason := strings.TrimSpace(line)
		switch {
		case reason == "" || line[0] == '#':
		case line[0] != ' ' && line[0] != '\t':
			name = reason
			known[name] = ""
		case name == "":
			return nil, fmt.Errorf("reason %q belongs to no spec", reason)
		default:
			known[name] = strings.TrimSpace(known[name] + " " + reason)
		}
	}
	for name, reason := range known {
		if reason == "" {
			return nil, fmt.Errorf("%q has no reason", name)
		}
	}
	return known, nil
}
