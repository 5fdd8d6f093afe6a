// Command kernels runs the tests that need a kernel on other kernels than this machine's: Debian's packaged
// ones, booted in qemu without KVM.
//
//	go run ./hack/kernels                    # Linux 6.1 and 6.12
//	go run ./hack/kernels -kernels 6.1 -only 'golden flows'
//	go run ./hack/kernels -report docs/kernels.md
//
// For each kernel it downloads the package, picks the modules, and builds the tests as static binaries. For each suite
// of tests it packs both into an initramfs, and boots that. As the machine's first process, this program loads the
// modules, runs the tests and turns the machine off. It needs qemu-system-x86, dpkg, apt, xz and the nft program.
//
// The results are kept in the cache beside the packages, and a report is made of the last result of each suite. So one
// suite can be run again alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// kernels are the versions of Linux that are run and reported unless others are named.
var kernels = []string{"6.1", "6.12"}

func main() {
	if os.Args[0] == "/init" {
		firstProcess()
		return
	}
	o := options{kernels: kernels}
	flag.Func("kernels", "versions of Linux, separated by commas; the newest package of each is taken (default 6.1,6.12)", func(s string) error {
		o.kernels = strings.Split(s, ",")
		return nil
	})
	flag.Func("exec", "the program, with its arguments, that is to start qemu, such as nice", func(s string) error {
		o.prefix = strings.Fields(s)
		return nil
	})
	flag.StringVar(&o.only, "only", "", "run only the suites of these names, separated by commas")
	flag.StringVar(&o.cache, "cache", filepath.Join(os.TempDir(), "nftproxy-kernels"), "directory for packages, images and results, kept between runs")
	flag.StringVar(&o.report, "report", "", "write the table of results into this page, between its markers")
	flag.DurationVar(&o.timeout, "timeout", 20*time.Minute, "for one suite, from boot to the end")
	flag.BoolVar(&o.verbose, "v", false, "show the machine's console")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

type options struct {
	kernels []string
	prefix  []string
	only    string
	cache   string
	report  string
	timeout time.Duration
	verbose bool
}

// reported returns the versions that have a column: those of every report, and others that are run now.
func (o options) reported() []string {
	versions := slices.Clone(kernels)
	for _, version := range o.kernels {
		if !slices.Contains(versions, version) {
			versions = append(versions, version)
		}
	}
	return versions
}

// source is the source code under test.
type source struct {
	root   string // directory of the module
	commit string // as git describe says
}

func run(ctx context.Context, o options) error {
	selected, err := selectSuites(o.only)
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
	commit, err := output(exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--exclude=*", "--dirty"))
	if err != nil {
		return err
	}
	fmt.Println("building the tests")
	built, err := buildSuites(ctx, root, filepath.Join(o.cache, "binaries"), selected)
	if err != nil {
		return err
	}
	var failures []error
	for _, version := range o.kernels {
		err := runOn(ctx, o, source{root, strings.TrimSpace(string(commit))}, version, built, selected)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failures = append(failures, err)
	}
	if o.report != "" {
		reported := o.reported()
		all, err := keptResults(o.cache, reported)
		if err != nil {
			return err
		}
		if err := writeReport(o.report, reported, all); err != nil {
			return err
		}
	}
	return errors.Join(failures...)
}

// runOn runs suites on one kernel, each in a machine of its own: what one breaks, the others do not meet.
func runOn(ctx context.Context, o options, from source, version string, built binaries, selected []suite) error {
	pkg, err := fetchKernel(ctx, version, o.cache)
	if err != nil {
		return err
	}
	fmt.Printf("Linux %s\n", pkg.release)
	modules, err := pkg.modules(ctx, slices.Concat(proxyModules, testModules))
	if err != nil {
		return err
	}
	var failures []error
	for _, s := range selected {
		image := filepath.Join(o.cache, version+".cpio")
		if err := writeImage(ctx, image, from.root, modules, built.neededBy(s), s.job()); err != nil {
			return fmt.Errorf("initramfs: %w", err)
		}
		vm := machine{
			kernel: pkg.kernel, initramfs: image, parameters: s.parameters, prefix: o.prefix,
			log: filepath.Join(o.cache, version+" "+s.name+".log"), verbose: o.verbose,
		}
		r, err := runSuite(ctx, o.timeout, vm)
		r.Release, r.Commit = pkg.release, from.commit
		r.print(s)
		if err = errors.Join(err, r.keep(resultFile(o.cache, version, s))); err != nil {
			failures = append(failures, fmt.Errorf("on Linux %s: %s: %w", version, s.name, err))
		}
	}
	return errors.Join(failures...)
}

func runSuite(ctx context.Context, timeout time.Duration, vm machine) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := vm.run(ctx)
	if err != nil {
		r.Status = err.Error()
		return r, err
	}
	return r, r.err()
}
