package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRelease(t *testing.T) {
	binaries, plugins, proxytest, images := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	write := func(dir, platform string, names ...string) {
		for _, name := range names {
			file := filepath.Join(dir, platform, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(name+" for "+platform), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, arch := range architectures {
		write(binaries, arch, "kube-proxy", "ruledump", "sbom.cdx.json")
		write(proxytest, arch, "proxytest", "sbom.cdx.json")
	}
	for _, platform := range platforms {
		program := "kubectl-nftproxy"
		if platform == "windows/amd64" {
			program += ".exe"
		}
		write(plugins, platform, program, "sbom.cdx.json")
	}
	write(images, ".", "image.tar", "proxytest.tar")
	run := func(version string) (string, error) {
		r := release{
			version: version, root: "../..", binaries: binaries, plugins: plugins,
			image: filepath.Join(images, "image.tar"), name: "registry.example/kube-proxy",
			proxytest: proxytest, proxytestImage: filepath.Join(images, "proxytest.tar"),
			out: filepath.Join(t.TempDir(), "new", version), created: time.Unix(1766000000, 0),
		}
		return r.out, r.make()
	}
	first, err := run("v1.2.3")
	if err != nil {
		t.Fatal(err)
	}

	t.Run("has the same bytes again", func(t *testing.T) {
		second, err := run("v1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(first)
		if err != nil || len(files) != 22 {
			t.Fatalf("%d files, want 22 (%v)", len(files), err)
		}
		for _, f := range files {
			if !bytes.Equal(read(t, filepath.Join(first, f.Name())), read(t, filepath.Join(second, f.Name()))) {
				t.Errorf("%s differs", f.Name())
			}
		}
	})

	t.Run("lists the checksum of every other file", func(t *testing.T) {
		sums := string(read(t, filepath.Join(first, "checksums.txt")))
		files, err := os.ReadDir(first)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			line := fmt.Sprintf("%x  %s\n", sha256.Sum256(read(t, filepath.Join(first, f.Name()))), f.Name())
			if f.Name() != "checksums.txt" && !strings.Contains(sums, line) {
				t.Errorf("no line %q in\n%s", line, sums)
			}
		}
	})

	t.Run("has the image of proxytest, and what is linked into it", func(t *testing.T) {
		for name, content := range map[string]string{
			"image.tar": "image.tar for .", "proxytest.tar": "proxytest.tar for .",
			"sbom-proxytest-linux-amd64.cdx.json": "sbom.cdx.json for amd64",
			"sbom-proxytest-linux-arm64.cdx.json": "sbom.cdx.json for arm64",
		} {
			if got := string(read(t, filepath.Join(first, name))); got != content {
				t.Errorf("%s has %q, want %q", name, got, content)
			}
		}
	})

	t.Run("gives the chart its version and its image", func(t *testing.T) {
		chart := unpack(t, filepath.Join(first, "nftproxy-1.2.3.tgz"))
		if text := chart["nftproxy/Chart.yaml"]; !strings.Contains(text, "\nversion: 1.2.3\nappVersion: v1.2.3\n") {
			t.Errorf("Chart.yaml:\n%s", text)
		}
		if text := chart["nftproxy/values.yaml"]; !strings.Contains(text, "\nimage:\n  repository: registry.example/kube-proxy\n") || strings.Contains(text, "localhost/") {
			t.Errorf("values.yaml:\n%s", text)
		}
	})

	t.Run("names the plugin's archives in the krew manifest", func(t *testing.T) {
		manifest := string(read(t, filepath.Join(first, "nftproxy.yaml")))
		for line := range strings.Lines(string(read(t, filepath.Join(first, "checksums.txt")))) {
			sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
			if strings.HasPrefix(name, "kubectl-nftproxy-") && (!strings.Contains(manifest, sum) || !strings.Contains(manifest, "/v1.2.3/"+name)) {
				t.Errorf("%s is not in\n%s", line, manifest)
			}
		}
		if n := strings.Count(manifest, "\n    sha256: "); n != len(platforms) {
			t.Errorf("%d platforms, want %d:\n%s", n, len(platforms), manifest)
		}
		archive := unpack(t, filepath.Join(first, "kubectl-nftproxy-v1.2.3-windows-amd64.tar.gz"))
		if archive["kubectl-nftproxy.exe"] != "kubectl-nftproxy.exe for windows/amd64" || !strings.Contains(manifest, "bin: kubectl-nftproxy.exe\n") {
			t.Errorf("the archive for Windows has %v", archive)
		}
	})

	t.Run("has the changelog's section", func(t *testing.T) {
		notes := string(read(t, filepath.Join(first, "NOTES.md")))
		if !strings.Contains(notes, "### Added") || strings.Contains(notes, "[Unreleased]") {
			t.Errorf("notes:\n%s", notes)
		}
		if !strings.Contains(notes, "](https://github.com/nftproxy/nftproxy/blob/v1.2.3/docs/") || strings.Contains(notes, "](docs/") {
			t.Errorf("links of the notes lead nowhere from the page of a release:\n%s", notes)
		}
	})

	t.Run("names a file that was not made", func(t *testing.T) {
		bill := filepath.Join(proxytest, "arm64", "sbom.cdx.json")
		if err := os.Remove(bill); err != nil {
			t.Fatal(err)
		}
		defer write(proxytest, "arm64", "sbom.cdx.json")
		if _, err := run("v1.2.3"); err == nil || !strings.Contains(err.Error(), bill) {
			t.Errorf("got %v", err)
		}
	})

	t.Run("refuses what is no version", func(t *testing.T) {
		if _, err := run("1.2"); err == nil || !strings.Contains(err.Error(), `"1.2" is not a version`) {
			t.Errorf("got %v", err)
		}
	})
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// unpack returns the files of an archive.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	uncompressed, err := gzip.NewReader(bytes.NewReader(read(t, file)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(uncompressed); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(data)
	}
}
