package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cavaliergopher/cpio"
)

// programs of this machine that the tests call. They come along with the libraries that they load.
var programs = []string{"nft", "iptables-nft-restore", "ip6tables-nft-restore", "iptables-nft", "ip6tables-nft", "iptables-nft-save", "ip6tables-nft-save",
	"iptables-legacy-restore", "ip6tables-legacy-restore", "iptables-legacy-save", "ip6tables-legacy-save", "ipvsadm", "ipset", "wg", "sh", "true", "sleep"}

// dataFiles are read by those programs.
var dataFiles = []string{"/etc/protocols", "/etc/services"}

// An image is an initramfs that is being written.
type image struct {
	w    *cpio.Writer
	dirs map[string]bool
}

func writeImage(ctx context.Context, file, root string, modules []module, built binaries, j job) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	im := image{cpio.NewWriter(out), map[string]bool{"/": true}}
	for _, add := range []func() error{
		func() error { return im.addFirstProcess(built) },
		func() error { return im.addModules(modules) },
		func() error { return im.addPrograms(ctx) },
		func() error { return im.addSource(ctx, root) },
		func() error { return im.addJob(j) },
		im.w.Close,
		out.Close,
	} {
		if err := add(); err != nil {
			return err
		}
	}
	return nil
}

func (im *image) addFirstProcess(built binaries) error {
	for _, dir := range []string{"/proc", "/sys", "/dev", "/tmp", "/run", "/root", "/etc"} {
		if err := im.dir(dir); err != nil {
			return err
		}
	}
	for target, file := range built {
		if target == path.Join(binariesDir, initCommand) {
			target = "/init"
		}
		if err := im.copy(target, file); err != nil {
			return err
		}
	}
	return nil
}

func (im *image) addModules(modules []module) error {
	for i, m := range modules {
		if err := im.file(fmt.Sprintf("%s/%03d-%s.ko", modulesDir, i, m.name), 0o644, m.data); err != nil {
			return err
		}
	}
	return nil
}

func (im *image) addJob(j job) error {
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return im.file(jobFile, 0o644, data)
}

// library is a file in ldd's output: either after "=>", or the loader alone.
var library = regexp.MustCompile(`(?m)(/\S+) \(0x`)

func (im *image) addPrograms(ctx context.Context) error {
	files := map[string]bool{}
	for _, name := range programs {
		file, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("%w: apt-get install nftables iptables ipvsadm ipset wireguard-tools", err)
		}
		libraries, err := output(exec.CommandContext(ctx, "ldd", file))
		if err != nil {
			return err
		}
		files[path.Join("/bin", name)] = true
		if err := im.copy(path.Join("/bin", name), file); err != nil {
			return err
		}
		for _, match := range library.FindAllStringSubmatch(string(libraries), -1) {
			if files[match[1]] {
				continue
			}
			files[match[1]] = true
			if err := im.copy(match[1], match[1]); err != nil {
				return err
			}
		}
	}
	plugins, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return err
	}
	for _, file := range append(plugins, dataFiles...) {
		if err := im.copy(file, file); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// addSource adds the files that git knows, as they are now.
func (im *image) addSource(ctx context.Context, root string) error {
	list := exec.CommandContext(ctx, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	names, err := output(list)
	if err != nil {
		return err
	}
	for name := range bytes.SplitSeq(names, []byte{0}) {
		file := filepath.Join(root, string(name))
		if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if err := im.copy(path.Join(sourceDir, string(name)), file); err != nil {
			return err
		}
	}
	return nil
}

func (im *image) copy(target, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return im.file(target, 0o755, data)
}

func (im *image) file(target string, mode fs.FileMode, data []byte) error {
	if err := im.dir(path.Dir(target)); err != nil {
		return err
	}
	header := &cpio.Header{Name: strings.TrimPrefix(target, "/"), Mode: cpio.TypeReg | cpio.FileMode(mode), Size: int64(len(data)), Links: 1}
	if err := im.w.WriteHeader(header); err != nil {
		return err
	}
	_, err := im.w.Write(data)
	return err
}

func (im *image) dir(target string) error {
	if im.dirs[target] {
		return nil
	}
	im.dirs[target] = true
	if err := im.dir(path.Dir(target)); err != nil {
		return err
	}
	return im.w.WriteHeader(&cpio.Header{Name: strings.TrimPrefix(target, "/"), Mode: cpio.TypeDir | 0o755, Links: 2})
}
