package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// programs are the paths of the programs that the demo shows.
type programs struct {
	kubeProxy, ruledump string
}

// findPrograms looks beside the demo itself, where `make demo` puts them.
func findPrograms() (programs, error) {
	self, err := os.Executable()
	if err != nil {
		return programs{}, err
	}
	dir := filepath.Dir(self)
	p := programs{kubeProxy: filepath.Join(dir, "kube-proxy"), ruledump: filepath.Join(dir, "ruledump")}
	for _, path := range []string{p.kubeProxy, p.ruledump} {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return p, fmt.Errorf("%s not found: run `make demo`", short(path))
		} else if err != nil {
			return p, err
		}
	}
	return p, nil
}

// short is path as seen from the working directory, if that is below it.
func short(path string) string {
	dir, err := os.Getwd()
	if err != nil {
		return path
	}
	if relative, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(relative) {
		return relative
	}
	return path
}
