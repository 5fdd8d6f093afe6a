package main

import (
	"embed"
	"os"
	"path/filepath"
	"strings"
)

//go:embed manifests/*.yaml
var embedded embed.FS

// shopFile holds the Services with endpoints, and is what changes.
const shopFile = "shop.yaml"

// writeManifests puts the embedded manifests into dir.
func writeManifests(dir string) error {
	entries, err := embedded.ReadDir("manifests")
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := embedded.ReadFile("manifests/" + e.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// stageReplacement writes manifests in which one pod takes the place of another, under a
// hidden name that nobody reads. Calling the result renames them into place.
func stageReplacement(dir string, r replacement) (func() error, error) {
	path := filepath.Join(dir, shopFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var pairs []string
	for i, addr := range r.removed.addrs {
		pairs = append(pairs, addr.String(), r.added.addrs[i].String())
	}
	staged := filepath.Join(dir, "."+shopFile)
	if err := os.WriteFile(staged, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o644); err != nil {
		return nil, err
	}
	return func() error { return os.Rename(staged, path) }, nil
}
