// Command e2e runs Kubernetes' own e2e suite over this proxy, in a cluster of three nodes on this machine.
//
//	go run ./hack/e2e run                              # a cluster, all parts of the suite, a report; then no cluster
//	go run ./hack/e2e run --parts dns,hostport         # these parts
//	go run ./hack/e2e up                               # a cluster that stays
//	go run ./hack/e2e exec kubectl get pods -A         # a program beside its control plane
//	go run ./hack/e2e exec --node node-1 nft list ruleset
//	go run ./hack/e2e suite --parts services,swap      # parts of the suite and scenarios in it
//	go run ./hack/e2e proxy --proxy kube-proxy         # another proxy on each node
//	go run ./hack/e2e mutants --page docs/e2e-mutants.md # specs over proxies whose compiler has a defect
//	go run ./hack/e2e down
//
// A machine is an init process with namespaces of its own for processes, mounts and the network. Inside are the
// control plane, and three nodes with namespaces of their own: kubelet, containerd, the proxy, pods. None has a name in
// the file system, and no link leads to this machine's own network. When the init process ends, the kernel ends and
// removes all of it, but for cgroups and the state directory, which `down` and the next `up` remove.
package main

import (
	"context"
	"errors"
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
	if run := processes[os.Args[0]]; run != nil {
		exitWith(run(os.Args[1:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	exitWith(command(ctx, os.Args[1:]))
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// processes are what this program does inside the machine, by the name under which it is started.
var processes = map[string]func(args []string) error{
	machineInit:     runMachineInit,
	nodeStart:       runNodeStart,
	nodeInit:        runNodeInit,
	balancerProcess: runBalancer,
}

// stateDir has the state and the logs of the cluster. A machine has one cluster, since the cgroups have one name.
const stateDir = "/var/tmp/nftproxy-e2e"

// options are those of all commands.
type options struct {
	state     string
	programs  string
	binaries  string
	images    string
	proxy     string
	goCommand string
	parts     string
	focus     string
	from      string
	page      string
	known     string
	node      string
	procs     int
	keep      bool
}

// contenders are the values of --proxy.
var contenders = []string{"nftproxy", "kube-proxy", "kube-proxy-iptables", "none"}

func parse(args []string) (options, []string, error) {
	o := options{state: stateDir}
	flags := flag.NewFlagSet("e2e", flag.ContinueOnError)
	flags.StringVar(&o.programs, "kubernetes", "", "the `directory` with Kubernetes' own programs (default: that of make kubernetes)")
	flags.StringVar(&o.binaries, "bin", "bin", "the `directory` with this module's kube-proxy")
	flags.StringVar(&o.images, "images", "bin/e2e", "the `directory` in which images are kept")
	flags.StringVar(&o.proxy, "proxy", "nftproxy", "the proxy on each node: "+strings.Join(contenders, ", "))
	flags.StringVar(&o.goCommand, "go", "go", "the `command` go")
	flags.StringVar(&o.parts, "parts", "", "the parts of the suite and scenarios, separated by commas (default: all): "+strings.Join(partNames(), ", "))
	flags.StringVar(&o.focus, "focus", "", "of the parts, run only specs whose names match this `expression`")
	flags.StringVar(&o.from, "from", "", "the `commit` that scenario upgrade starts from (default: the last tag, or "+firstCommit+" without tags)")
	flags.StringVar(&o.page, "page", "", "write the report to this `file`")
	flags.StringVar(&o.known, "known", "hack/e2e/known.txt", "the `file` that names known failures")
	flags.StringVar(&o.node, "node", "", "exec: run the program in this `node`'s namespaces")
	flags.IntVar(&o.procs, "procs", 4, "how many specs run at once")
	flags.BoolVar(&o.keep, "keep", false, "run: keep the cluster if a spec fails")
	if err := flags.Parse(args); err != nil {
		return o, nil, err
	}
	for _, path := range []*string{&o.programs, &o.binaries, &o.images} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return o, nil, err
		}
		*path = absolute
	}
	return o, flags.Args(), nil
}

const usage = "usage: e2e run|up|suite|mutants|proxy|exec|down [flags]"

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	o, rest, err := parse(args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(rest) > 0 && args[0] != "exec" {
		return fmt.Errorf("%s takes no argument %q", args[0], rest[0])
	}
	switch args[0] {
	case "run":
		return o.run(ctx)
	case "up":
		return o.up(ctx)
	case "suite":
		return o.suite(ctx)
	case "mutants":
		return o.mutants(ctx)
	case "proxy":
		return o.changeProxy(ctx)
	case "exec":
		return o.exec(ctx, rest)
	case "down":
		return o.down()
	}
	return errors.New(usage)
}

// progress prints what happens, with the seconds since the program's start.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%5.0fs %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
}

var began = time.Now()
