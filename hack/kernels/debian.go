package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A kernelPackage is an unpacked Debian package of a kernel.
type kernelPackage struct {
	release string // as uname -r says, such as 6.1.0-56-cloud-amd64
	kernel  string // path of the bzImage
	tree    string // path of lib/modules/RELEASE
}

// fetchKernel downloads and unpacks the newest package of a version, such as 6.12. The cloud flavour has all
// that is needed and a third of the modules. What is in the cache already is taken from there.
func fetchKernel(ctx context.Context, version, cache string) (kernelPackage, error) {
	name, err := newestPackage(ctx, version)
	if err != nil {
		return kernelPackage{}, err
	}
	dir := filepath.Join(cache, name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := download(ctx, name, cache, dir); err != nil {
			return kernelPackage{}, err
		}
	}
	release := strings.TrimPrefix(name, "linux-image-")
	return kernelPackage{
		release: release,
		kernel:  filepath.Join(dir, "boot", "vmlinuz-"+release),
		tree:    filepath.Join(dir, "lib", "modules", release),
	}, nil
}

func newestPackage(ctx context.Context, version string) (string, error) {
	out, err := output(exec.CommandContext(ctx, "apt-cache", "pkgnames", "linux-image-"+version+"."))
	if err != nil {
		return "", err
	}
	signed := regexp.MustCompile(`^linux-image-` + regexp.QuoteMeta(version) + `\.[0-9]+(-[0-9]+|\+deb[0-9]+)-cloud-amd64$`)
	var names []string
	for line := range bytes.Lines(out) {
		if name := string(bytes.TrimSpace(line)); signed.MatchString(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "", fmt.Errorf("no package linux-image-%s.*-cloud-amd64; run apt-get update, or look which versions this release of Debian has", version)
	}
	return slices.MaxFunc(names, func(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }), nil
}

// numbers are the numbers in a name, for comparing versions.
func numbers(name string) []int {
	var out []int
	for _, digits := range regexp.MustCompile(`[0-9]+`).FindAllString(name, -1) {
		n, _ := strconv.Atoi(digits)
		out = append(out, n)
	}
	return out
}

func download(ctx context.Context, name, cache, dir string) error {
	get := exec.CommandContext(ctx, "apt-get", "download", name)
	get.Dir = cache
	if _, err := output(get); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(cache, name+"_*.deb"))
	if err != nil || len(debs) == 0 {
		return fmt.Errorf("apt-get download %s left no package in %s (%w)", name, cache, err)
	}
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "-x", debs[len(debs)-1], partial)); err != nil {
		return err
	}
	return os.Rename(partial, dir)
}

// output runs a program and returns what it prints; what it complains of is in the error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		last := ""
		for s := bufio.NewScanner(&stderr); s.Scan(); {
			last = s.Text()
		}
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, last)
	}
	return out, nil
}
