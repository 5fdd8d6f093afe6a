// Command compare measures this module's kube-proxy against Kubernetes' own in nftables mode, or against other
// builds of itself. They run one after the other in the same network namespace, fed by the same API server
// over HTTP. It needs root and the nft program:
//
//	go run ./hack/compare --kube-proxy /path/to/kube-proxy
//	go run ./hack/compare --other v0.1.0=/path/to/older/kube-proxy
//
// Without another proxy it measures this one alone. It prints a Markdown table. Numbers of one run can be compared with
// each other, not with those of another. With --page the tables become part of a page, with --figures hack/performance can
// draw them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	kubeProxy, ours string
	// kubeProxyFlags are flags that only Kubernetes' kube-proxy gets.
	kubeProxyFlags []string
	// others are other proxies that take kube-proxy's flags, such as older builds of this one.
	others   []contender
	sizes    []size
	changes  int
	patience time.Duration
	// limit bounds the time in which a proxy programs everything.
	limit time.Duration
	// brief leaves out restarts and repairs.
	brief   bool
	verbose bool
	// page and figures are files to write, empty for none.
	page, figures string
}

// size is the size of a cluster: the number of Services, and of endpoints of each.
type size struct{ services, endpoints int }

func (s size) String() string { return fmt.Sprintf("%d×%d", s.services, s.endpoints) }

func main() {
	o, err := parse()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func parse() (options, error) {
	var o options
	flag.StringVar(&o.kubeProxy, "kube-proxy", "", "the kube-proxy of Kubernetes; none is measured without")
	flag.Func("other", "NAME=PATH of another proxy that takes kube-proxy's flags, such as an older build of this one; may be repeated", func(text string) error {
		name, path, ok := strings.Cut(text, "=")
		if !ok || name == "" || path == "" {
			return fmt.Errorf("%q is not NAME=PATH", text)
		}
		o.others = append(o.others, contender{name: name, path: path})
		return nil
	})
	flag.StringVar(&o.ours, "nftproxy", "bin/kube-proxy", "the kube-proxy of this module, from `make build`")
	flag.IntVar(&o.changes, "changes", 5, "how many Services are added one by one; the median counts")
	flag.DurationVar(&o.patience, "patience", 2*time.Minute, "how long to wait for Services to work again after somebody else removed the tables")
	flag.DurationVar(&o.limit, "limit", 20*time.Minute, "how long to wait for Services to work after a start or a change; a proxy that needs longer is not measured further at this size")
	flag.BoolVar(&o.brief, "brief", false, "measure the start, one more Service and memory alone")
	flag.StringVar(&o.page, "page", "", "write the tables into this `page`, between its markers, too")
	flag.StringVar(&o.figures, "figures", "", "write a `file` from which hack/performance draws")
	flag.BoolVar(&o.verbose, "v", false, "say what is being measured, and keep what the proxies log in compare-NAME.log")
	flags := flag.String("kube-proxy-flags", "", "more flags for the kube-proxy of Kubernetes, separated by blanks")
	sizes := flag.String("sizes", "10000x2,5000x50", "SERVICESxENDPOINTS, separated by commas")
	flag.Parse()
	o.kubeProxyFlags = strings.Fields(*flags)
	if o.kubeProxy == "" && len(o.kubeProxyFlags) > 0 {
		return o, errors.New("--kube-proxy-flags is for --kube-proxy, which is not set")
	}
	for _, text := range strings.Split(*sizes, ",") {
		services, endpoints, _ := strings.Cut(text, "x")
		s, err1 := strconv.Atoi(services)
		e, err2 := strconv.Atoi(endpoints)
		if err1 != nil || err2 != nil || s < 1 || e < 1 {
			return o, fmt.Errorf("--sizes: %q is not SERVICESxENDPOINTS, such as 10000x2", text)
		}
		o.sizes = append(o.sizes, size{s, e})
	}
	return o, nil
}

func run(ctx context.Context, o options) error {
	report, err := newReport(o)
	if err != nil {
		return err
	}
	for _, s := range o.sizes {
		if err := measureAll(ctx, s, o, report); err != nil {
			return err
		}
	}
	report.print(os.Stdout)
	if o.figures != "" {
		if err := report.figures().Write(o.figures); err != nil {
			return err
		}
	}
	if o.page != "" {
		return report.writeInto(o.page)
	}
	return nil
}

func measureAll(ctx context.Context, s size, o options, report *report) error {
	c, err := newCluster(s)
	if err != nil {
		return err
	}
	defer c.close()
	for _, p := range contenders(o) {
		result, err := c.measure(ctx, p, o)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", s, p.name, err)
		}
		report.add(s, result)
	}
	return nil
}
