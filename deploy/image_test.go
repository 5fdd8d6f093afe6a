package deploy

import (
	"archive/tar"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// testVersion is the version that the image is built as.
const testVersion = "v9.8.7-test"

// testRevision is the commit that the image states: somebody may commit while the tests run.
const testRevision = "0123456789abcdef0123456789abcdef01234567"

// testTime is the creation time that the image states.
var testTime = time.Date(2026, 7, 1, 3, 0, 0, 0, time.UTC)

// imageDir is the directory in which the image is built. TestMain makes and removes it.
var imageDir string

// images are those that `make image` makes, by their entry points.
var images = map[string]struct {
	archive, title string
	programs       []string
}{
	"kube-proxy": {"image.tar", "nftproxy", []string{"kube-proxy", "ruledump"}},
	"proxytest":  {"proxytest.tar", "proxytest", []string{"proxytest"}},
}

// buildImages runs `make image`, once for all tests.
var buildImages = sync.OnceValue(func() error {
	build := exec.Command("make", "-C", "..", "image", "BIN="+imageDir, "VERSION="+testVersion, "REVISION="+testRevision)
	build.Env = append(os.Environ(), "MAKEFLAGS=", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", testTime.Unix()))
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("make image: %w\n%s", err, output)
	}
	return nil
})

// builtImage is the image with an entry point, of an architecture.
func builtImage(t *testing.T, program, arch string) v1.Image {
	t.Helper()
	if err := buildImages(); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("localhost/nftproxy/" + program + ":" + testVersion + "-" + arch)
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(filepath.Join(imageDir, images[program].archive), &tag)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// unpacked writes the files of an image to an empty directory, as a runtime does for a
// container's root, and returns that.
func unpacked(t *testing.T, program, arch string) string {
	t.Helper()
	root := t.TempDir()
	layers := mutate.Extract(builtImage(t, program, arch))
	defer layers.Close()
	files := tar.NewReader(layers)
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return root
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := unpack(filepath.Join(root, header.Name), header, files); err != nil {
			t.Fatal(err)
		}
	}
}

func unpack(path string, header *tar.Header, content io.Reader) error {
	if header.Typeflag == tar.TypeDir {
		return os.Mkdir(path, header.FileInfo().Mode())
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, header.FileInfo().Mode())
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := io.Copy(file, content); err != nil {
		return err
	}
	return file.Close()
}

func TestImage(t *testing.T) {
	t.Run("lists what is linked into its programs", testImageListsWhatIsLinked)
	t.Run("its programs need no libraries", testProgramsInTheImageNeedNoLibraries)
	t.Run("says when it was made", testImageCreated)
	t.Run("names its commit and its program", testImageNamesItsCommit)
	t.Run("alone prints its version", testImageAlonePrintsItsVersion)
}

// eachImage runs a subtest for each image and architecture.
func eachImage(t *testing.T, test func(t *testing.T, program, arch string)) {
	for program := range images {
		for _, arch := range []string{"amd64", "arm64"} {
			t.Run(program+" for "+arch, func(t *testing.T) { test(t, program, arch) })
		}
	}
}

func testProgramsInTheImageNeedNoLibraries(t *testing.T) {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	eachImage(t, func(t *testing.T, image, arch string) {
		root := unpacked(t, image, arch)
		for _, program := range images[image].programs {
			file, err := elf.Open(filepath.Join(root, "usr/local/bin", program))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if file.Machine != machines[arch] {
				t.Errorf("%s is for %s", program, file.Machine)
			}
			for _, p := range file.Progs {
				if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
					t.Errorf("%s is linked dynamically: it has %s", program, p.Type)
				}
			}
		}
	})
}

// testImageListsWhatIsLinked compares the bill of materials with what the go command reads out of the programs.
func testImageListsWhatIsLinked(t *testing.T) {
	eachImage(t, func(t *testing.T, image, arch string) {
		root := unpacked(t, image, arch)
		file, err := os.Open(filepath.Join(root, "usr/share/sbom/nftproxy.cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		var bom cyclonedx.BOM
		if err := cyclonedx.NewBOMDecoder(file, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		if c := bom.Metadata.Component; c.Version != testVersion || bom.Metadata.Timestamp != testTime.Format(time.RFC3339) {
			t.Errorf("version %s of %s", c.Version, bom.Metadata.Timestamp)
		}
		of, err := builtImage(t, image, arch).ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		title := of.Config.Labels["org.opencontainers.image.title"]
		if want := images[image].title; title != want || bom.Metadata.Component.Name != want {
			t.Errorf("the image is %q and its bill of materials that of %q, want %q", title, bom.Metadata.Component.Name, want)
		}
		listed := map[string]string{}
		for _, c := range *bom.Components {
			listed[c.BOMRef] = c.Name + " " + c.Version
		}
		var programs []string
		for _, d := range *bom.Dependencies {
			programs = append(programs, d.Ref)
			var got []string
			for _, ref := range *d.Dependencies {
				got = append(got, listed[ref])
			}
			slices.Sort(got)
			if diff := cmp.Diff(linkedModules(t, filepath.Join(root, "usr/local/bin", d.Ref)), got); diff != "" {
				t.Errorf("%s (-go version -m +bill of materials):\n%s", d.Ref, diff)
			}
		}
		if diff := cmp.Diff(images[image].programs, programs); diff != "" {
			t.Errorf("programs (-want +got):\n%s", diff)
		}
	})
}

// linkedModules returns the modules of a program, as go version -m lists them: name and version of each, in order.
func linkedModules(t *testing.T, program string) (modules []string) {
	t.Helper()
	output, err := exec.Command("go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		switch {
		case fields[0] == "dep":
			modules = append(modules, fields[1]+" "+fields[2])
		case fields[0] == "=>":
			modules[len(modules)-1] = fields[1] + " " + fields[2]
		case fields[0] == program+":":
			modules = append(modules, "std "+strings.TrimPrefix(fields[1], "go"))
		}
	}
	if len(modules) < 20 {
		t.Fatalf("%s has only %q", program, modules)
	}
	slices.Sort(modules)
	return modules
}

func testImageNamesItsCommit(t *testing.T) {
	eachImage(t, func(t *testing.T, program, arch string) {
		file, err := builtImage(t, program, arch).ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := file.Config.Labels["org.opencontainers.image.revision"]; got != testRevision {
			t.Errorf("revision %q, want %q", got, testRevision)
		}
		if diff := cmp.Diff([]string{"/usr/local/bin/" + program}, file.Config.Entrypoint); diff != "" || file.Architecture != arch {
			t.Errorf("it is for %s, and its entry point is (-want +got):\n%s", file.Architecture, diff)
		}
	})
	t.Run("which is git's unless told otherwise", func(t *testing.T) {
		commit, err := exec.Command("git", "rev-parse", "HEAD").Output()
		if err != nil {
			commit = []byte("unknown") // not a repository
		}
		if want, commands := "-revision "+strings.TrimSpace(string(commit))+" ", dryRun(t, "REVISION"); !strings.Contains(commands, want) {
			t.Errorf("no %q in\n%s", want, commands)
		}
	})
}

// dryRun returns what `make image` would run without a variable of the environment.
func dryRun(t *testing.T, variable string) string {
	t.Helper()
	dryRun := exec.Command("make", "-C", "..", "--dry-run", "image")
	dryRun.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, variable+"=") }), "MAKEFLAGS=")
	commands, err := dryRun.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(commands)
}

func testImageCreated(t *testing.T) {
	t.Run("is what SOURCE_DATE_EPOCH says", func(t *testing.T) {
		eachImage(t, func(t *testing.T, program, arch string) {
			file, err := builtImage(t, program, arch).ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if !file.Created.Equal(testTime) {
				t.Errorf("%v, want %v", file.Created, testTime)
			}
		})
	})
	t.Run("is the time of the commit otherwise", func(t *testing.T) {
		commit, err := exec.Command("git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			commit = []byte("0") // not a repository
		}
		commands := dryRun(t, "SOURCE_DATE_EPOCH")
		if want := "-created " + strings.TrimSpace(string(commit)) + " "; !strings.Contains(commands, want) {
			t.Errorf("no %q in\n%s", want, commands)
		}
	})
}

func testImageAlonePrintsItsVersion(t *testing.T) {
	config, err := builtImage(t, "kube-proxy", runtime.GOARCH).ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := container{Root: newRoot(t), Command: append(config.Config.Entrypoint, "--version"), Env: config.Config.Env, ReadOnlyRootFilesystem: true}
	output, err := c.command(t).CombinedOutput()
	if err != nil || !strings.Contains(string(output), testVersion) {
		t.Errorf("error %v, output %q; want %s", err, output, testVersion)
	}
}

// newRoot is the root directory of a container with the image's files and what a runtime adds.
func newRoot(t *testing.T) string {
	t.Helper()
	root := unpacked(t, "kube-proxy", runtime.GOARCH)
	if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}
