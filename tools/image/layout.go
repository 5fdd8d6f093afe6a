package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeLayout writes the images to an empty directory: as an OCI image layout, and beside it
// the manifest.json of Docker's format, whose entries point into the same blobs.
func writeLayout(dir string, s spec, images []v1.Image) error {
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	err = path.AppendIndex(platformIndex(s, images), layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          s.reference(), // containerd's name of it
		"org.opencontainers.image.ref.name": s.version,
	}))
	if err != nil {
		return err
	}
	return writeDockerManifest(filepath.Join(dir, "manifest.json"), s, images)
}

// platformIndex is the image of all architectures, from which a node takes its own.
func platformIndex(s spec, images []v1.Image) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, image := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: s.architectures[i]}},
		})
	}
	return index
}

// dockerImage is an entry of manifest.json.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// writeDockerManifest names each image after its architecture, since Docker's older image
// store has no image of several.
func writeDockerManifest(file string, s spec, images []v1.Image) error {
	var entries []dockerImage
	for i, image := range images {
		manifest, err := image.Manifest()
		if err != nil {
			return err
		}
		entry := dockerImage{Config: blob(manifest.Config), RepoTags: []string{s.reference() + "-" + s.architectures[i]}}
		for _, l := range manifest.Layers {
			entry.Layers = append(entry.Layers, blob(l))
		}
		entries = append(entries, entry)
	}
	data, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

func blob(d v1.Descriptor) string { return "blobs/" + d.Digest.Algorithm + "/" + d.Digest.Hex }
