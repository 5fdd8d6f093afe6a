package main

import (
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// spec says what to pack.
type spec struct {
	// binaries is a directory with a directory of programs for each architecture.
	binaries string
	// programs are the names of those in the image. The first is its entry point.
	programs []string
	// name and version are the name and the tag of the image.
	name, version string
	// architectures are those that the image is made for, in Go's and OCI's words.
	architectures []string
	// revision is the commit of the source.
	revision string
	// created is the creation time of the image; zero leaves it out.
	created time.Time
}

// binDir is the directory in which kubeadm's DaemonSet looks for kube-proxy.
const binDir = "usr/local/bin"

// reference is the name and tag of the image of all architectures.
func (s spec) reference() string { return s.name + ":" + s.version }

// images returns the image of each architecture, in their order.
func (s spec) images() ([]v1.Image, error) {
	var out []v1.Image
	for _, arch := range s.architectures {
		image, err := s.image(arch)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", arch, err)
		}
		out = append(out, image)
	}
	return out, nil
}

// image returns the image of one architecture: a single layer with the programs and their bill of materials, and nothing
// else. It runs as root: Linux gives another user the capabilities of a
// container only through those of the file, and allowPrivilegeEscalation: false forbids that.
func (s spec) image(arch string) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(programs(s.binaries, arch, s.programs), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, v1.Time{Time: s.created}
	file.Config = v1.Config{
		Entrypoint: []string{"/" + binDir + "/" + s.programs[0]},
		Env:        []string{"PATH=/" + binDir},
		Labels:     s.labels(),
	}
	return mutate.ConfigFile(image, file)
}

// titles are the names of the images and what they are, by their entry points.
var titles = map[string]struct{ title, description string }{
	"kube-proxy": {"nftproxy", "kube-proxy, purely with nftables"},
	"proxytest":  {"proxytest", "a test of any service proxy, with real packets"},
}

// labels are annotations of the OCI image specification. None of them changes from one build
// of a version to the next.
func (s spec) labels() map[string]string {
	of := titles[s.programs[0]]
	return map[string]string{
		"org.opencontainers.image.title":       of.title,
		"org.opencontainers.image.description": of.description,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      "https://github.com/nftproxy/nftproxy",
		"org.opencontainers.image.version":     s.version,
		"org.opencontainers.image.revision":    s.revision,
	}
}
