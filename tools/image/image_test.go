package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// testTime is the creation time of the images of tests.
var testTime = time.Date(2026, 7, 1, 3, 0, 0, 0, time.UTC)

var architectures = []string{"amd64", "arm64"}

// testSpec describes an image of programs that are only their own names.
func testSpec(t *testing.T) spec {
	t.Helper()
	return specOf(t, 0o755, time.Now())
}

// specOf is testSpec with programs of a certain mode and age.
func specOf(t *testing.T, mode os.FileMode, modified time.Time) spec {
	t.Helper()
	s := spec{binaries: t.TempDir(), architectures: architectures, programs: programNames, name: "localhost/test", version: "v1.2.3", revision: "0123456789abcdef", created: testTime}
	for _, arch := range architectures {
		for _, program := range append(programNames, billName) {
			path := filepath.Join(s.binaries, arch, program)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(program+" for "+arch), mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, modified, modified); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// written is the archive of an image.
func written(t *testing.T, s spec) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArchive(t *testing.T) {
	t.Run("the same programs give the same bytes", testSameProgramsGiveTheSameBytes)
	t.Run("is a layout of an image for each architecture", testArchiveIsALayoutOfAnImageForEachArchitecture)
	t.Run("is one that docker loads", testArchiveIsOneThatDockerLoads)
	t.Run("a missing program is named", testMissingProgramIsNamed)
	t.Run("a failure leaves the older one", testFailureLeavesTheOlderArchive)
}

func testSameProgramsGiveTheSameBytes(t *testing.T) {
	one := written(t, specOf(t, 0o755, time.Unix(1, 0)))
	other := written(t, specOf(t, 0o700, time.Unix(1e9, 0)))
	if !bytes.Equal(one, other) {
		t.Error("the archives differ")
	}
}

func testArchiveIsALayoutOfAnImageForEachArchitecture(t *testing.T) {
	s := testSpec(t)
	for i, image := range layoutImages(t, written(t, s)) {
		if err := validate.Image(image); err != nil {
			t.Error(err)
		}
		checkImage(t, image, architectures[i])
	}
}

func testArchiveIsOneThatDockerLoads(t *testing.T) {
	s := testSpec(t)
	data := written(t, s)
	for _, arch := range architectures {
		tag, err := name.NewTag("localhost/test:v1.2.3-" + arch)
		if err != nil {
			t.Fatal(err)
		}
		image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, &tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(image); err != nil {
			t.Error(err)
		}
		checkImage(t, image, arch)
	}
}

func testMissingProgramIsNamed(t *testing.T) {
	s := testSpec(t)
	missing := filepath.Join(s.binaries, "arm64", "ruledump")
	if err := os.Remove(missing); err != nil {
		t.Fatal(err)
	}
	var pathError *os.PathError
	if err := write(io.Discard, s); !errors.As(err, &pathError) || pathError.Path != missing {
		t.Errorf("error %v, want one about %s", err, missing)
	}
}

func testFailureLeavesTheOlderArchive(t *testing.T) {
	dir := t.TempDir()
	output, s := filepath.Join(dir, "image.tar"), testSpec(t)
	broken := s
	broken.binaries = t.TempDir()
	// names are the files in the directory.
	names := func() (out []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			out = append(out, entry.Name())
		}
		return out
	}

	if err := run(broken, output); err == nil || len(names()) > 0 {
		t.Errorf("without programs: error %v, files %v", err, names())
	}
	if err := run(s, output); err != nil {
		t.Fatal(err)
	}
	if err := run(broken, output); err == nil {
		t.Error("without programs there is no error")
	}
	data, err := os.ReadFile(output)
	if err != nil || !bytes.Equal(data, written(t, s)) || len(names()) != 1 {
		t.Errorf("error %v, %d bytes, files %v", err, len(data), names())
	}
}

// layoutImages opens the archive as an OCI image layout.
func layoutImages(t *testing.T, archive []byte) []v1.Image {
	t.Helper()
	dir := t.TempDir()
	for file, data := range files(t, bytes.NewReader(archive)) {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	outer, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got := outer.Manifests[0].Annotations["io.containerd.image.name"]; len(outer.Manifests) != 1 || got != "localhost/test:v1.2.3" {
		t.Errorf("index.json has %d entries, the first called %q", len(outer.Manifests), got)
	}
	index, err := root.ImageIndex(outer.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var images []v1.Image
	for i, entry := range manifest.Manifests {
		if got, want := entry.Platform.String(), "linux/"+architectures[i]; got != want {
			t.Errorf("platform %s, want %s", got, want)
		}
		image, err := index.Image(entry.Digest)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, image)
	}
	if len(images) != len(architectures) {
		t.Errorf("%d images, want %d", len(images), len(architectures))
	}
	return images
}

// checkImage compares an image with what it must hold.
func checkImage(t *testing.T, image v1.Image, arch string) {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if file.OS != "linux" || file.Architecture != arch || !file.Created.Equal(testTime) {
		t.Errorf("%s: %s/%s, created %v, want %v", arch, file.OS, file.Architecture, file.Created, testTime)
	}
	want := v1.Config{
		Entrypoint: []string{"/usr/local/bin/kube-proxy"},
		Env:        []string{"PATH=/usr/local/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "nftproxy",
			"org.opencontainers.image.description": "kube-proxy, purely with nftables",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.source":      "https://github.com/nftproxy/nftproxy",
			"org.opencontainers.image.version":     "v1.2.3",
			"org.opencontainers.image.revision":    "0123456789abcdef",
		},
	}
	if diff := cmp.Diff(want, file.Config); diff != "" {
		t.Errorf("%s: (-want +got):\n%s", arch, diff)
	}
	got := map[string]string{}
	for file, data := range files(t, mutate.Extract(image)) {
		got[file] = string(data)
	}
	contents := map[string]string{
		"usr/local/bin/kube-proxy": "kube-proxy for " + arch,
		"usr/local/bin/ruledump":   "ruledump for " + arch,
		billPath:                   billName + " for " + arch,
	}
	if diff := cmp.Diff(contents, got); diff != "" {
		t.Errorf("%s: files (-want +got):\n%s", arch, diff)
	}
}

// files returns the regular files of a tar archive, and checks that every entry belongs to
// root, is readable by all, and has no time.
func files(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || header.Mode&0o444 != 0o444 || header.ModTime.Unix() != 0 {
			t.Errorf("%s belongs to %d:%d, mode %o, modified %v", header.Name, header.Uid, header.Gid, header.Mode, header.ModTime)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if out[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}
