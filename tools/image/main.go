// Command image packs the program into a container image, without a container daemon. It
// writes one archive that holds an image for each platform.
//
// The archive is an OCI image layout, which containerd, Podman and current Docker import,
// and at the same time what `docker save` writes, for Docker's older image store. The same
// binaries, version and time always give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/tools/archive"
)

func main() {
	var s spec
	flag.StringVar(&s.binaries, "binaries", "", "the directory with the programs, in a directory for each architecture: DIR/amd64/kube-proxy")
	flag.StringVar(&s.name, "name", "", "the name of the image without a tag")
	flag.StringVar(&s.version, "version", "", "the version: the image's tag and label")
	flag.StringVar(&s.revision, "revision", "", "the commit: a label of the image")
	names := flag.String("programs", strings.Join(programNames, ","), "the programs in the image; the first one is its entry point")
	architectures := flag.String("architectures", "amd64 arm64", "the architectures that the image is made for")
	created := flag.Int64("created", 0, "when the image was made, in seconds since 1970; 0 leaves that out")
	output := flag.String("o", "", "the archive to write")
	flag.Parse()
	s.programs, s.architectures = strings.Split(*names, ","), strings.Fields(*architectures)
	if *created != 0 {
		s.created = time.Unix(*created, 0).UTC()
	}
	if err := run(s, *output); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run writes the archive under another name first, so that a failure leaves no half one, and an older one as it was.
func run(s spec, output string) error {
	file, err := os.CreateTemp(filepath.Dir(output), filepath.Base(output)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // there is none any more after a success
	err = write(file, s)
	if err = errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return fmt.Errorf("%s: %w", output, err)
	}
	return os.Rename(file.Name(), output)
}

// write writes the archive of the image that s describes.
func write(w io.Writer, s spec) error {
	images, err := s.images()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := writeLayout(dir, s, images); err != nil {
		return err
	}
	files, err := archive.Below(dir, "")
	if err != nil {
		return err
	}
	return archive.Write(w, time.Time{}, files)
}
