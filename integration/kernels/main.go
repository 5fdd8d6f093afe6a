// Command kernels runs the tests that need a kernel on other kernels than this machine's: Debian's packaged
// ones, booted in qemu without KVM.
//
//	go run ./integration/kernels                    # Linux 6.1 and 6.12
//	go run ./integration/kernels -kernels 6.1 -only 'golden flows'
//	go run ./integration/kernels -report docs/kernels.md
//
// For each kernel it downloads the package, picks the modules, builds the tests as static binaries, packs both
// into an initramfs, and boots that. The program in the directory init is the machine's first process: it loads the modules, runs the
// tests one after the other and turns the machine off. It needs qemu-system-x86, dpkg, apt, xz and the nft program.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.Func("kernels", "versions of Linux, separated by commas; the newest package of each is taken (default 6.1,6.12)", func(s string) error {
		o.kernels = strings.Split(s, ",")
		return nil
	})
	flag.StringVar(&o.only, "only", "", "run only the suites whose name contains this")
	flag.StringVar(&o.cache, "cache", filepath.Join(os.TempDir(), "nftproxy-kernels"), "directory for packages and images, kept between runs")
	flag.StringVar(&o.report, "report", "", "write the table of results into this page, between its markers")
	flag.DurationVar(&o.timeout, "timeout", 40*time.Minute, "for one kernel, from boot to the end")
	flag.BoolVar(&o.verbose, "v", false, "show the machine's console")
	flag.Parse()
	if o.kernels == nil {
		o.kernels = []string{"6.1", "6.12"}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

type options struct {
	kernels []string
	only    string
	cache   string
	report  string
	timeout time.Duration
	verbose bool
}

func run(ctx context.Context, o options) error {
	suites, err := selectSuites(o.only)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.cache, 0o755); err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	fmt.Println("building the tests")
	built, err := buildSuites(ctx, root, filepath.Join(o.cache, "binaries"), suites)
	if err != nil {
		return err
	}
	var results []result
	for _, version := range o.kernels {
		r, err := runOn(ctx, o, root, version, built, suites)
		if err != nil {
			return fmt.Errorf("on Linux %s: %w", version, err)
		}
		results = append(results, r)
	}
	if o.report != "" {
		if err := writeReport(o.report, results); err != nil {
			return err
		}
	}
	return verdict(results)
}

// runOn boots one kernel and returns what its tests said.
func runOn(ctx context.Context, o options, root, version string, built binaries, suites []suite) (result, error) {
	fmt.Printf("Linux %s: fetching the package\n", version)
	pkg, err := fetchKernel(ctx, version, o.cache)
	if err != nil {
		return result{}, err
	}
	modules, err := pkg.modules(ctx, neededModules)
	if err != nil {
		return result{}, err
	}
	image := filepath.Join(o.cache, version+".cpio")
	if err := writeImage(ctx, image, root, modules, built, suites); err != nil {
		return result{}, fmt.Errorf("initramfs: %w", err)
	}
	fmt.Printf("Linux %s: booting %s\n", version, pkg.release)
	vm := machine{kernel: pkg.kernel, initramfs: image, log: filepath.Join(o.cache, version+".log"), verbose: o.verbose}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	r, err := vm.run(ctx)
	r.version = version
	r.release = pkg.release
	return r, err
}
