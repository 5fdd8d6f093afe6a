// Command release puts what `make image` and `make build` made into a directory, as a release publishes it: an archive
// of the programs for each architecture and of kubectl's plugin for each platform, the images of the proxy and of
// proxytest, the bills of materials of all these, the chart, a krew manifest, the section of the changelog, and the
// checksums of all. The same input gives the same bytes: no file has an owner, and all have the time that -created names.
//
//	release -version v0.1.0 -created 1766000000 -binaries bin/linux -plugins bin/_plugin -image bin/image.tar \
//	  -name ghcr.io/nftproxy/nftproxy/kube-proxy -proxytest bin/_proxytest -proxytest-image bin/proxytest.tar \
//	  -root . -o bin/release/v0.1.0
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/tools/archive"
)

var architectures = []string{"amd64", "arm64"}

// platforms are those of kubectl's plugin, as OS/ARCH.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"}

// release is a release in the making.
type release struct {
	version, root, binaries, plugins, out string
	// image is the file of the image, and name its name in a registry, without a tag.
	image, name string
	// proxytest is a directory like binaries, and proxytestImage the file of that image.
	proxytest, proxytestImage string
	created                   time.Time
	// sums has a line of checksums.txt for each file that was written, in that order.
	sums strings.Builder
}

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "`version` of the release, such as v0.1.0")
	created := flag.Int64("created", 0, "time of all files, in `seconds` since 1970")
	flag.StringVar(&r.binaries, "binaries", "", "`directory` with the programs and sbom.cdx.json of each architecture, in amd64/ and arm64/")
	flag.StringVar(&r.plugins, "plugins", "", "`directory` with kubectl-nftproxy and sbom.cdx.json of each platform, in linux/amd64/ and so on")
	flag.StringVar(&r.image, "image", "", "`file` of the image, an OCI archive")
	flag.StringVar(&r.name, "name", "", "`name` of the image in its registry, which the chart installs")
	flag.StringVar(&r.proxytest, "proxytest", "", "`directory` with the sbom.cdx.json of proxytest for each architecture, in amd64/ and arm64/")
	flag.StringVar(&r.proxytestImage, "proxytest-image", "", "`file` of proxytest's image, an OCI archive")
	flag.StringVar(&r.root, "root", ".", "`directory` of the repository")
	flag.StringVar(&r.out, "o", "", "new `directory` to write to")
	flag.Parse()
	r.created = time.Unix(*created, 0).UTC()
	if err := r.make(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	fmt.Println(r.out)
}

var versionPattern = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

func (r *release) make() error {
	if !versionPattern.MatchString(r.version) {
		return fmt.Errorf("-version %q is not a version such as v0.1.0", r.version)
	}
	if slices.Contains([]string{r.out, r.binaries, r.plugins, r.image, r.name, r.proxytest, r.proxytestImage}, "") {
		return errors.New("-binaries, -plugins, -image, -name, -proxytest, -proxytest-image and -o are required")
	}
	if err := os.MkdirAll(filepath.Dir(r.out), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(r.out, 0o755); err != nil {
		return fmt.Errorf("%w: each release goes to a new directory", err)
	}
	for _, step := range []func() error{r.programs, r.images, r.chart, r.krew, r.notes} {
		if err := step(); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(r.out, "checksums.txt"), []byte(r.sums.String()), 0o644)
}

// write writes a file of the release, and returns its checksum.
func (r *release) write(name string, data []byte) (string, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	fmt.Fprintf(&r.sums, "%s  %s\n", sum, name)
	return sum, os.WriteFile(filepath.Join(r.out, name), data, 0o644)
}

// programs writes the archive and the bill of materials of each architecture.
func (r *release) programs() error {
	for _, arch := range architectures {
		dir := filepath.Join(r.binaries, arch)
		files := []archive.File{
			{Name: "kube-proxy", Path: filepath.Join(dir, "kube-proxy"), Program: true},
			{Name: "ruledump", Path: filepath.Join(dir, "ruledump"), Program: true},
			{Name: "LICENSE", Path: filepath.Join(r.root, "LICENSE")},
			{Name: "README.md", Path: filepath.Join(r.root, "README.md")},
		}
		name := fmt.Sprintf("nftproxy-%s-linux-%s.tar.gz", r.version, arch)
		if _, err := r.publish(dir, name, "sbom-linux-"+arch, files); err != nil {
			return err
		}
	}
	return nil
}

// publish writes an archive of files, and the bill of materials in dir. It returns the archive's checksum.
func (r *release) publish(dir, name, bill string, files []archive.File) (sum string, err error) {
	data, err := r.compressed(files)
	if err != nil {
		return "", err
	}
	if sum, err = r.write(name, data); err != nil {
		return "", err
	}
	return sum, r.copy(bill+".cdx.json", filepath.Join(dir, "sbom.cdx.json"))
}

// images writes both images, and what is linked into proxytest. The bills of the proxy's programs are with their archives.
func (r *release) images() error {
	err := errors.Join(r.copy("image.tar", r.image), r.copy("proxytest.tar", r.proxytestImage))
	for _, arch := range architectures {
		err = errors.Join(err, r.copy("sbom-proxytest-linux-"+arch+".cdx.json", filepath.Join(r.proxytest, arch, "sbom.cdx.json")))
	}
	return err
}

// copy writes a copy of path as a file of the release.
func (r *release) copy(name, path string) error {
	data, err := os.ReadFile(path)
	if err == nil {
		_, err = r.write(name, data)
	}
	return err
}

// chart writes the chart's package, as `helm push` takes it, with the release's version and image.
func (r *release) chart() error {
	files, err := archive.Below(filepath.Join(r.root, "deploy", "chart"), "nftproxy")
	if err != nil {
		return err
	}
	number := strings.TrimPrefix(r.version, "v")
	lines := map[string]map[string]string{
		"nftproxy/Chart.yaml":  {`(?m)^version:.*$`: "version: " + number, `(?m)^appVersion:.*$`: "appVersion: " + r.version},
		"nftproxy/values.yaml": {`(?m)^  # No registry carries .*\n  repository:.*$`: "  repository: " + r.name},
	}
	for i, f := range files {
		if lines[f.Name] == nil {
			continue
		}
		data, err := os.ReadFile(f.Path)
		if err != nil {
			return err
		}
		for pattern, line := range lines[f.Name] {
			if re := regexp.MustCompile(pattern); re.Match(data) {
				data = re.ReplaceAll(data, []byte(line))
			} else {
				return fmt.Errorf("%s has no line %q", f.Path, pattern)
			}
		}
		files[i] = archive.File{Name: f.Name, Data: data}
	}
	data, err := r.compressed(files)
	if err != nil {
		return err
	}
	_, err = r.write("nftproxy-"+number+".tgz", data)
	return err
}

// krew writes the archives of kubectl's plugin, and its manifest.
func (r *release) krew() error {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: nftproxy
spec:
  version: %s
  homepage: https://github.com/nftproxy/nftproxy
  shortDescription: Shows and explains a node's Service rules
  description: |
    Runs ruledump in nftproxy's pod on a node: it shows the Services of the node as the kernel's rules
    have them, says where the packets of a pod go and why, follows real packets and connections, and
    writes a report for a bug. It needs the permission to exec into the proxy's pods.
  platforms:
`, r.version)
	for _, platform := range platforms {
		system, arch, _ := strings.Cut(platform, "/")
		program := "kubectl-nftproxy"
		if system == "windows" {
			program += ".exe"
		}
		dir := filepath.Join(r.plugins, system, arch)
		name := fmt.Sprintf("kubectl-nftproxy-%s-%s-%s.tar.gz", r.version, system, arch)
		sum, err := r.publish(dir, name, fmt.Sprintf("sbom-kubectl-nftproxy-%s-%s", system, arch), []archive.File{
			{Name: program, Path: filepath.Join(dir, program), Program: true},
			{Name: "LICENSE", Path: filepath.Join(r.root, "LICENSE")},
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, `  - selector:
      matchLabels:
        os: %s
        arch: %s
    uri: https://github.com/nftproxy/nftproxy/releases/download/%s/%s
    sha256: %s
    bin: %s
`, system, arch, r.version, name, sum, program)
	}
	_, err := r.write("nftproxy.yaml", []byte(b.String()))
	return err
}

// relativeLink is a link to a file of the repository, which leads nowhere from the page of a release.
var relativeLink = regexp.MustCompile(`\]\(([A-Za-z0-9_./-]+(?:#[^)]*)?)\)`)

// notes writes the changelog's section of the version; before the section has its version, that of what is unreleased.
func (r *release) notes() error {
	data, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	for _, heading := range []string{strings.TrimPrefix(r.version, "v"), "Unreleased"} {
		_, section, found := strings.Cut(string(data), "\n## ["+heading+"]")
		if !found {
			continue
		}
		_, section, _ = strings.Cut(section, "\n") // the rest of the heading: a date
		section, _, _ = strings.Cut(section, "\n## [")
		section, _, _ = strings.Cut(section, "\n["+heading+"]:") // the links at the end
		section = relativeLink.ReplaceAllString(section, "](https://github.com/nftproxy/nftproxy/blob/"+r.version+"/$1)")
		_, err = r.write("NOTES.md", []byte(strings.TrimSpace(section)+"\n"))
		return err
	}
	return fmt.Errorf("CHANGELOG.md has neither a section [%s] nor [Unreleased]", r.version)
}

// compressed returns a compressed tar archive of the files.
func (r *release) compressed(files []archive.File) ([]byte, error) {
	var buffer bytes.Buffer
	w, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	err = errors.Join(archive.Write(w, r.created, files), w.Close())
	return buffer.Bytes(), err
}
