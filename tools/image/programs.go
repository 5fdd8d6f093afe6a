package main

import (
	"io"
	"path"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/nftproxy/nftproxy/tools/archive"
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
	var files []archive.File
	for _, parent := range []string{"usr/", "usr/local/", binDir + "/", "usr/share/", path.Dir(billPath) + "/"} {
		files = append(files, archive.File{Name: parent})
	}
	for _, name := range names {
		files = append(files, archive.File{Name: path.Join(binDir, name), Path: filepath.Join(dir, name), Program: true})
	}
	files = append(files, archive.File{Name: billPath, Path: filepath.Join(dir, billName)})
	return archive.Write(w, time.Time{}, files)
}
