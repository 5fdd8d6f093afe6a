package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/sys/unix"
)

func TestWriteTo(t *testing.T) {
	t.Run("a full disk leaves the file that is there", testWriteToAFullDisk)
	t.Run("a link follows it and keeps the mode", testWriteFollowsALink)
	t.Run("a device writes there", testWriteToADevice)
	t.Run("a link to a pipe writes there and leaves the link", testWriteToAPipe)
}

// onTinyDisk runs f with a disk of two pages at dir, which nobody else sees.
func onTinyDisk(t *testing.T, dir string, f func() error) {
	t.Helper()
	netns.Need(t) // root too
	if err := process.OnThread(func() error {
		return errors.Join(
			unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"),
			f(),
		)
	}); err != nil {
		t.Fatal(err)
	}
}

func testWriteToAFullDisk(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	onTinyDisk(t, dir, func() error {
		if err := errors.Join(os.WriteFile(path, []byte("before"), 0o600), os.WriteFile(filepath.Join(dir, "other"), []byte("a page"), 0o600)); err != nil {
			return err
		}
		_, err := Write(&v1alpha2.KubeProxyConfiguration{HostnameOverride: strings.Repeat("long", 1500)}, V1alpha2, path)
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), path) {
			t.Errorf("Write = %v, want one that names the file and says that the disk is full", err)
		}
		content, err := os.ReadFile(path)
		if err != nil || string(content) != "before" {
			t.Errorf("the file is %q, %v; want it as before", content, err)
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 2 {
			t.Errorf("the directory has %v, %v; want the two files of before", left, err)
		}
		return nil
	})
}

func testWriteFollowsALink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, []byte("before"), 0o600), os.Symlink("target", link)); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(&v1alpha2.KubeProxyConfiguration{}, V1alpha2, link); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(target)
	if err != nil || !strings.Contains(string(content), "v1alpha2") && !strings.Contains(string(content), "bindAddress") {
		t.Errorf("the link's target is %q, %v", content, err)
	}
	info, err := os.Lstat(target)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v, %v; want it as before", info.Mode(), err)
	}
}

func testWriteToADevice(t *testing.T) {
	if _, err := Write(&v1alpha2.KubeProxyConfiguration{}, V1alpha2, "/dev/full"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Write = %v, want that /dev/full is full", err)
	}
	if info, err := os.Stat("/dev/full"); err != nil || info.Mode().IsRegular() {
		t.Errorf("/dev/full is %v, %v now", info.Mode(), err)
	}
}

// /dev/stdout is such a link. Its target, pipe:[4026], is no path.
func testWriteToAPipe(t *testing.T) {
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	link := filepath.Join(t.TempDir(), "stdout")
	if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", to.Fd()), link); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(&v1alpha2.KubeProxyConfiguration{}, V1alpha2, link); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(from)
	if err != nil || !strings.Contains(string(content), "bindAddress") {
		t.Errorf("the pipe got %q, %v", content, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v now", info, err)
	}
}
