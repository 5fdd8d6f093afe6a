// Command kubernetes builds Kubernetes' own programs, against which tests and measurements hold this one: kube-proxy,
// kube-apiserver, the e2e suite and others.
//
//	go run ./hack/kubernetes                         # all that are missing
//	go run ./hack/kubernetes kube-proxy kubectl      # these, if they are missing
//	go run ./hack/kubernetes -version v1.38.0        # from now on of another version
//
// The module kubernetes/ names the version. The programs are in a folder of that version, bin/kubernetes/VERSION.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	b := builder{goCommand: "go", module: "kubernetes", report: os.Stderr}
	folder := flag.String("o", "bin/kubernetes", "the `folder` with a folder for each version")
	version := flag.String("version", "", "write the go.mod of another `version` of Kubernetes, and build nothing")
	flag.StringVar(&b.goCommand, "go", b.goCommand, "the `command` go")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: kubernetes [flags] [PROGRAM...]\nPrograms: %s\n", strings.Join(names(), " "))
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := error(nil)
	if *version != "" {
		err = b.setVersion(ctx, *version)
	} else {
		err = run(ctx, b, *folder, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubernetes:", err)
		os.Exit(1)
	}
}

// run builds the named programs that are missing, or all of them if none is named.
func run(ctx context.Context, b builder, folder string, wanted []string) error {
	for _, name := range wanted {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("there is no program %q; there are %s", name, strings.Join(names(), ", "))
		}
	}
	version, err := b.version(ctx)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(filepath.Join(folder, version))
	if err != nil {
		return err
	}
	var missing []program
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(dir, p.name)); os.IsNotExist(err) && (len(wanted) == 0 || slices.Contains(wanted, p.name)) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(b.report, "%d of Kubernetes' programs, %s, are missing. With nothing in Go's cache, two quiet cores build "+
		"kube-proxy in about 4 minutes, kube-apiserver and kubectl in 3 more, and all programs in about 20.\n", len(missing), version)
	begin := time.Now()
	for _, p := range missing {
		if err := b.build(ctx, p, version, dir); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	fmt.Fprintf(b.report, "%d programs in %v: %s\n", len(missing), time.Since(begin).Round(time.Second), dir)
	return nil
}
