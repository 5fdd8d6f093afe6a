package wholefile_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/internal/wholefile"
)

func TestWrite(t *testing.T) {
	t.Run("replaces a file, whatever its mode", testWriteReplacesAFile)
	t.Run("follows no link", testWriteFollowsNoLink)
	t.Run("feeds no named pipe", testWriteFeedsNoNamedPipe)
	t.Run("a full disk leaves the file that is there", testWriteToAFullDisk)
	t.Run("a device gets the data", testWriteToADevice)
	t.Run("standard output gets the data", testWriteToStandardOutput)
}

func testWriteReplacesAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	before := unix.Umask(0o027)
	defer unix.Umask(before)
	for _, tt := range []struct{ mode, want fs.FileMode }{{0o600, 0o600}, {0o644, 0o640}} {
		// Somebody who waits for the file has made one that all can read, and keeps it open.
		if err := errors.Join(os.WriteFile(path, []byte("before"), 0o600), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
		waiting, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer waiting.Close()
		if err := wholefile.Write(path, []byte("after"), tt.mode); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil || string(content) != "after" {
			t.Errorf("the file is %q, %v", content, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != tt.want {
			t.Errorf("the mode is %v, %v; want %v", info.Mode(), err, tt.want)
		}
		if seen, err := io.ReadAll(waiting); err != nil || string(seen) != "before" {
			t.Errorf("who has the old file open reads %q, %v", seen, err)
		}
	}
}

func testWriteFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, []byte("before"), 0o600), os.Symlink("target", link)); err != nil {
		t.Fatal(err)
	}
	if err := wholefile.Write(link, []byte("after"), 0o600); err == nil || !strings.Contains(err.Error(), link) {
		t.Errorf("Write = %v, want an error that names the link", err)
	}
	if content, err := os.ReadFile(target); err != nil || string(content) != "before" {
		t.Errorf("the link's target is %q, %v", content, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v now", info, err)
	}
}

func testWriteFeedsNoNamedPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := wholefile.Write(path, []byte("after"), 0o600); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Write = %v, want an error that names the pipe", err)
	}
	if content, err := io.ReadAll(reader); err != nil || len(content) > 0 {
		t.Errorf("who reads the pipe gets %q, %v", content, err)
	}
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
	path := filepath.Join(dir, "file")
	onTinyDisk(t, dir, func() error {
		if err := errors.Join(os.WriteFile(path, []byte("before"), 0o600), os.WriteFile(filepath.Join(dir, "other"), []byte("a page"), 0o600)); err != nil {
			return err
		}
		if err := wholefile.Write(path, make([]byte, 6000), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("Write = %v, want that the disk is full", err)
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

func testWriteToADevice(t *testing.T) {
	if err := wholefile.Write("/dev/full", []byte("data"), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Write = %v, want that /dev/full is full", err)
	}
	if info, err := os.Stat("/dev/full"); err != nil || info.Mode().IsRegular() {
		t.Errorf("/dev/full is %v, %v now", info.Mode(), err)
	}
}

func testWriteToStandardOutput(t *testing.T) {
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	stdout := os.Stdout
	os.Stdout = to
	err = wholefile.Write("/dev/stdout", []byte("data"), 0o600)
	os.Stdout = stdout
	if err := errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
	if content, err := io.ReadAll(from); err != nil || string(content) != "data" {
		t.Errorf("standard output got %q, %v", content, err)
	}
}
