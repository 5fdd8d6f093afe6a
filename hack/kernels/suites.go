package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A suite is some tests of one package: a row of the report.
type suite struct {
	name string
	pkg  string   // directory below the module's root
	run  string   // the tests' names, as go test -run takes them
	args []string // further arguments of the tests
	// parameters are added to the kernel's command line.
	parameters string
}

// suites are the tests that depend on the kernel.
var suites = []suite{
	{name: "nft", pkg: "nft", run: "."},
	{name: "conntrack", pkg: "conntrack", run: "."},
	{name: "golden flows", pkg: "integration", run: "^TestGoldenFlows$"},
	{name: "evaluator", pkg: "integration", run: "^TestEvaluator$", args: []string{"-short-patience=900ms"}},
	{name: "affinity", pkg: "integration", run: "(?i)affinity"},
	{name: "proxy", pkg: "proxy", run: "."},
	{name: "repair", pkg: "integration", run: "^Test(Repair|UntranslatedConnection)$"},
	{
		name: "atomicity", pkg: "integration/stress", run: "^Test(Changes|Generations|UDPFlows|AffinityFlood)$",
		args: []string{"-changes=100", "-forged-clients=20000", "-packets=20000", "-datagram-every=50ms"}, // an emulated machine is slow
	},
	{name: "without IPv6", pkg: "integration", run: "^Test(KernelWithoutIPv6|GoldenFlows)$", parameters: "ipv6.disable=1"},
	{name: "takeover", pkg: "integration/takeover", run: "^TestTakeover$"},
	{name: "from ipvs", pkg: "integration/takeover", run: "^TestTakeoverFromModeIPVS$", args: []string{"-takeovers=3"}},
	{name: "direct return over WireGuard", pkg: "integration/directreturn", run: "^TestWireGuard$"},
	{name: "leftovers of ipvs", pkg: "integration/takeover", run: "^TestLeftoversOfModeIPVS$"},
}

// selectSuites returns the suites of these names, separated by commas; all for "".
func selectSuites(only string) ([]suite, error) {
	if only == "" {
		return suites, nil
	}
	var out []suite
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no suite %q", name)
		}
		out = append(out, suites[i])
	}
	return out, nil
}

func (s suite) job() job {
	return job{
		Dir:  path.Join(sourceDir, s.pkg),
		Path: path.Join(binariesDir, s.testBinary()),
		Args: append([]string{"-test.v", "-test.run=" + s.run, "-test.timeout=30m"}, s.args...),
		Env:  []string{"NFTPROXY_BINARIES=" + binariesDir}, // lab.Binary builds nothing then,
	}
}

func (s suite) testBinary() string { return strings.ReplaceAll(s.pkg, "/", "-") + ".test" }

// binaries has the files that were built for the machine, by their paths there.
type binaries map[string]string

// neededBy returns what one suite needs: the commands, and its own tests.
func (b binaries) neededBy(s suite) binaries {
	out := binaries{}
	for target, file := range b {
		if name := path.Base(target); !strings.HasSuffix(name, ".test") || name == s.testBinary() {
			out[target] = file
		}
	}
	return out
}

// initCommand is this program, the machine's first process.
const initCommand = "kernels"

// commands are programs of this module that tests start, and the machine's first process.
var commands = []string{"cmd/kube-proxy", "cmd/ruledump", "hack/" + initCommand}

func buildSuites(ctx context.Context, root, dir string, suites []suite) (binaries, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	built := binaries{}
	goBuild := func(name string, args ...string) error {
		file := filepath.Join(dir, name)
		built[path.Join(binariesDir, name)] = file
		cmd := exec.CommandContext(ctx, "go", append(args[:len(args)-1:len(args)-1], "-ldflags=-s -w", "-o", file, args[len(args)-1])...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		return cmd.Run()
	}
	for _, c := range commands {
		if err := goBuild(path.Base(c), "build", "./"+c); err != nil {
			return nil, err
		}
	}
	for _, s := range suites {
		if _, done := built[path.Join(binariesDir, s.testBinary())]; done {
			continue
		}
		if err := goBuild(s.testBinary(), "test", "-c", "./"+s.pkg); err != nil {
			return nil, err
		}
	}
	return built, nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := output(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}"))
	return strings.TrimSpace(string(out)), err
}
