package main

import (
	"archive/tar"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// programNames are the programs in the image of the proxy.
var programNames = []string{"kube-proxy", "ruledump"}

// billName is the file beside the programs that lists what is linked into them (command sbom), and billPath its place
// in the image.
const (
	billName = "sbom.cdx.json"
	billPath = "usr/share/sbom/nftproxy.cdx.json"
)

// programs returns an opener of the layer with the programs of one architecture, and the bill of materials. Its files
// belong to root and are as old as the epoch, whatever the originals are.
func programs(binaries, arch string, names []string) tarball.Opener {
	return func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writePrograms(w, filepath.Join(binaries, arch), names)) }()
		return r, nil
	}
}

func writePrograms(w io.Writer, dir string, names []string) error {
	out := tar.NewWriter(w)
	for _, parent := range []string{"usr/", "usr/local/", binDir + "/", "usr/share/", path.Dir(billPath) + "/"} {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: parent, Mode: 0o755}); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := writeFile(out, filepath.Join(dir, name), path.Join(binDir, name), 0o755); err != nil {
			return err
		}
	}
	if err := writeFile(out, filepath.Join(dir, billName), billPath, 0o644); err != nil {
		return err
	}
	return out.Close()
}

// writeFile adds a file under another name, without its owner and times.
func writeFile(out *tar.Writer, from, name string, mode int64) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(out, file)
	return err
}
