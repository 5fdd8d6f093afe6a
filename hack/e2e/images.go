package main

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

const pauseImage = "localhost/e2e/pause:1"

// image is a container image in a file, as `docker save` writes it.
type image struct {
	file string
	// names are what pods call it.
	names []string
}

// packages are Debian's packages in the image of the suite: what its pods run.
var packages = []string{"curl", "bind9-dnsutils", "netcat-openbsd", "iproute2", "socat", "iperf", "iptables", "nftables", "conntrack", "procps", "wget", "nginx-light"}

// suiteImages are the images that the suite names, by what their containers run unless the suite says otherwise.
var suiteImages = []struct {
	name       string
	entrypoint []string
	command    []string
}{
	{"agnhost", []string{"/agnhost"}, []string{"pause"}},
	{"busybox", nil, []string{"/bin/sh"}},
	{"nginx", nil, []string{"nginx", "-g", "daemon off;"}},
	{"glibc-dns-testing", nil, []string{"/bin/sh"}},
	{"distroless-iptables", nil, []string{"/bin/sh"}},
	{"regression-issue-74839", []string{"/regression-issue-74839"}, nil},
}

// makeImages makes the images that are missing.
func (o options) makeImages(ctx context.Context) ([]image, error) {
	if err := os.MkdirAll(o.images, 0o755); err != nil {
		return nil, err
	}
	root, coredns, pause := filepath.Join(o.images, "debian.tar"), filepath.Join(o.images, "coredns"), filepath.Join(o.images, "pause")
	for _, step := range []struct {
		file string
		make func() error
	}{
		{root, func() error { return debianRoot(ctx, root) }},
		{coredns, func() error { return o.build(ctx, "hack/e2e/coredns", coredns, ".") }},
		{pause, func() error { return o.build(ctx, "hack/e2e/pause", pause, ".") }},
	} {
		if _, err := os.Stat(step.file); err == nil {
			continue
		}
		begin := time.Now()
		progress("making %s", filepath.Base(step.file))
		if err := step.make(); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(step.file), err)
		}
		progress("%s: %v", filepath.Base(step.file), time.Since(begin).Round(time.Second))
	}
	return o.assemble(ctx, root, coredns, pause)
}

// debianRoot writes a Debian root file system.
func debianRoot(ctx context.Context, file string) error {
	suite, err := debianSuite()
	if err != nil {
		return err
	}
	part := strings.TrimSuffix(file, ".tar") + ".part.tar"
	defer os.Remove(part)
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--variant=minbase", "--include="+strings.Join(packages, ","),
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*", suite, part)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap: %w\n%s", err, out)
	}
	return os.Rename(part, file)
}

// debianSuite is this machine's Debian, or a stable one where it is another system.
func debianSuite() (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	if !regexp.MustCompile(`(?m)^ID=debian$`).Match(release) {
		return "bookworm", nil
	}
	m := regexp.MustCompile(`(?m)^VERSION_CODENAME=(\S+)$`).FindSubmatch(release)
	if m == nil {
		return "", errors.New("/etc/os-release names no VERSION_CODENAME")
	}
	return string(m[1]), nil
}

// build builds the program of a package in a directory.
func (o options) build(ctx context.Context, dir, file, pkg string) error {
	cmd := exec.CommandContext(ctx, o.goCommand, "build", "-tags=grpcnotrace", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file, pkg)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// assemble writes the images' files. They share the layers.
func (o options) assemble(ctx context.Context, root, coredns, pause string) ([]image, error) {
	names, err := o.suiteImageNames(ctx)
	if err != nil {
		return nil, err
	}
	agnhost, err := o.agnhostSource(ctx)
	if err != nil {
		return nil, err
	}
	programs, alone := filepath.Join(o.images, "programs.tar"), filepath.Join(o.images, "pause.tar")
	if err := writeLayer(programs, []entry{
		{from: filepath.Join(o.programs, "agnhost"), to: "agnhost"}, {from: coredns, to: "coredns"},
		{from: filepath.Join(o.programs, "regression-issue-74839"), to: "regression-issue-74839"},
		{from: filepath.Join(agnhost, "porter/localhost.crt"), to: "localhost.crt"}, {from: filepath.Join(agnhost, "porter/localhost.key"), to: "localhost.key"},
		{link: "agnhost", to: "agnhost-2"}, {dir: true, to: "uploads"},
	}); err != nil {
		return nil, err
	}
	if err := writeLayer(alone, []entry{{from: pause, to: "pause"}}); err != nil {
		return nil, err
	}
	images := []image{{file: filepath.Join(o.images, "image-pause.tar"), names: append([]string{pauseImage}, names["pause"]...)}}
	if err := images[0].write([]string{alone}, []string{"/pause"}, nil); err != nil {
		return nil, err
	}
	for _, i := range suiteImages {
		if len(names[i.name]) == 0 {
			return nil, fmt.Errorf("the suite names no image %s", i.name)
		}
		made := image{file: filepath.Join(o.images, "image-"+i.name+".tar"), names: append([]string{"localhost/e2e/" + i.name + ":1"}, names[i.name]...)}
		if err := made.write([]string{root, programs}, i.entrypoint, i.command); err != nil {
			return nil, err
		}
		images = append(images, made)
	}
	return images, nil
}

// agnhostSource is the directory of agnhost in Kubernetes' module.
func (o options) agnhostSource(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, o.goCommand, "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir, cmd.Env = "kubernetes", append(os.Environ(), "GOWORK=off")
	dir, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("the source of agnhost: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(dir)), "test/images/agnhost"), nil
}

// suiteImageNames asks the suite what it calls its images: all names, by the last word of the path.
func (o options) suiteImageNames(ctx context.Context) (map[string][]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(o.programs, "e2e.test"), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("e2e.test --list-images: %w", err)
	}
	return parseImageNames(string(out)), nil
}

func parseImageNames(list string) map[string][]string {
	names := map[string][]string{}
	for _, name := range strings.Fields(list) {
		last := name[strings.LastIndexByte(name, '/')+1:]
		if repository, _, found := strings.Cut(last, ":"); found {
			names[repository] = append(names[repository], name)
		}
	}
	return names
}

// entry is a file of a layer.
type entry struct {
	from, to, link string
	dir            bool
}

func writeLayer(file string, entries []entry) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	archive := tar.NewWriter(out)
	for _, e := range entries {
		if err := e.write(archive); err != nil {
			return fmt.Errorf("%s: %w", e.to, err)
		}
	}
	return errors.Join(archive.Close(), out.Close())
}

func (e entry) write(archive *tar.Writer) error {
	switch {
	case e.dir:
		return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: e.to + "/", Mode: 0o777})
	case e.link != "":
		return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: e.to, Linkname: e.link, Mode: 0o777})
	}
	return writeFile(archive, e.from, e.to, 0o755)
}

func writeFile(archive *tar.Writer, from, to string, mode int64) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: to, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}

// write writes the image's file, of layers from the lowest on.
func (i image) write(layers, entrypoint, command []string) error {
	type rootfs struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
	config := map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": "1970-01-01T00:00:00Z",
		"config": map[string]any{"Entrypoint": entrypoint, "Cmd": command, "Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
	}
	fs, inside := rootfs{Type: "layers"}, []string{}
	for _, layer := range layers {
		sum, err := digest(layer)
		if err != nil {
			return err
		}
		fs.DiffIDs, inside = append(fs.DiffIDs, "sha256:"+sum), append(inside, sum+".tar")
	}
	config["rootfs"] = fs
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": i.names[:1], "Layers": inside}})
	if err != nil {
		return err
	}
	out, err := os.Create(i.file)
	if err != nil {
		return err
	}
	defer out.Close()
	archive := tar.NewWriter(out)
	for n, layer := range layers {
		if err := writeFile(archive, layer, inside[n], 0o644); err != nil {
			return err
		}
	}
	return errors.Join(writeText(archive, "config.json", text), writeText(archive, "manifest.json", manifest), archive.Close(), out.Close())
}

func writeText(archive *tar.Writer, name string, text []byte) error {
	err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
	_, writing := archive.Write(text)
	return cmp.Or(err, writing)
}

func digest(file string) (string, error) {
	in, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, in); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
