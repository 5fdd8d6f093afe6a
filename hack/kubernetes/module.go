package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const kubernetesModule = "k8s.io/kubernetes"

// setVersion writes the go.mod of a version, and has go write its checksums.
func (b builder) setVersion(ctx context.Context, version string) error {
	if !strings.HasPrefix(version, "v1.") {
		return fmt.Errorf("version %q is none of Kubernetes, such as v1.38.0", version)
	}
	out, err := b.output(ctx, "mod", "download", "-json", kubernetesModule+"@"+version)
	if err != nil {
		return err
	}
	var module struct{ GoMod string }
	if err := json.Unmarshal([]byte(out), &module); err != nil {
		return err
	}
	own, err := os.ReadFile(module.GoMod)
	if err != nil {
		return err
	}
	text, err := goMod(string(own), version)
	if err != nil {
		return fmt.Errorf("%s: %w", module.GoMod, err)
	}
	if err := os.WriteFile(filepath.Join(b.module, "go.mod"), []byte(text), 0o644); err != nil {
		return err
	}
	_, err = b.output(ctx, "mod", "tidy")
	return err
}

var (
	goLine  = regexp.MustCompile(`(?m)^go \S+$`)
	staging = regexp.MustCompile(`(?m)^\t(k8s\.io/\S+) => \./staging/`)
)

// goMod returns the go.mod with which Kubernetes' programs build, from Kubernetes' own. That one replaces each
// k8s.io/X by a directory that is not in the module. The same code is the module k8s.io/X, whose v0.37.2 belongs to
// Kubernetes v1.37.2.
func goMod(kubernetes, version string) (string, error) {
	language, libraries := goLine.FindString(kubernetes), staging.FindAllStringSubmatch(kubernetes, -1)
	if language == "" || len(libraries) == 0 {
		return "", errors.New("it has no line `go`, or replaces no k8s.io/X by ./staging")
	}
	var text strings.Builder
	fmt.Fprintf(&text, "module github.com/nftproxy/nftproxy/kubernetes\n\n%s\n\ntool (\n", language)
	for _, p := range programs {
		fmt.Fprintf(&text, "\t%s\n", p.pkg)
	}
	fmt.Fprintf(&text, ")\n\nrequire %s %s\n\nreplace (\n", kubernetesModule, version)
	for _, library := range libraries {
		fmt.Fprintf(&text, "\t%s => %[1]s %s\n", library[1], "v0."+strings.TrimPrefix(version, "v1."))
	}
	text.WriteString(")\n")
	return text.String(), nil
}
