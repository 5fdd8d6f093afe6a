package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// partResult has the results of a part's specs.
type partResult struct {
	name  string
	specs []spec
	took  time.Duration
}

func (p partResult) count(outcomes ...outcome) (n int) {
	for _, s := range p.specs {
		if slices.Contains(outcomes, s.outcome) {
			n++
		}
	}
	return n
}

func (p partResult) failed() (failed []spec) {
	for _, s := range p.specs {
		if s.outcome != passed && s.outcome != skipped {
			failed = append(failed, s)
		}
	}
	return failed
}

func (p partResult) summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped themselves, %v", p.count(passed), len(p.failed()), p.count(skipped), p.took.Round(time.Second))
}

// failure is a spec that failed.
type failure struct {
	spec
	// known is the reason that the list of known failures has. kubeProxyToo says that kube-proxy failed it too.
	known        string
	kubeProxyToo bool
}

// counts says whether the failure is the proxy's until somebody shows that it is not.
func (f failure) counts() bool { return f.known == "" || !f.kubeProxyToo }

// report is a run of the suite.
type report struct {
	proxy     string
	focus     string
	versions  [][2]string
	omitted   map[string]int
	parts     []partResult
	judged    []failure
	scenarios []scenarioResult
	// ended has the nodes whose proxy ended by itself.
	ended []string
	load  string
}

func (o options) newReport(ctx context.Context, c *cluster, specs []string) (r report, err error) {
	r = report{proxy: o.proxy, focus: o.focus, omitted: map[string]int{}}
	for _, s := range specs {
		if reason := leftOut(s); reason != "" {
			r.omitted[reason]++
		}
	}
	r.versions, err = o.versions(ctx, c)
	r.load = loadAverage()
	return r, err
}

// suiteSpecs asks the suite for the names of SIG Network's specs.
func (o options) suiteSpecs(ctx context.Context) (names []string, err error) {
	out, err := exec.CommandContext(ctx, filepath.Join(o.programs, "e2e.test"), "--list-tests").Output()
	if err != nil {
		return nil, fmt.Errorf("e2e.test --list-tests: %w", err)
	}
	return parseSpecs(string(out)), nil
}

// parseSpecs reads lines like "    test/e2e/network/dns.go:50: [sig-network] DNS should …".
func parseSpecs(list string) (names []string) {
	for line := range strings.Lines(list) {
		if _, name, found := strings.Cut(line, ": [sig-network] "); found {
			names = append(names, "[sig-network] "+strings.TrimSpace(name))
		}
	}
	return names
}

// versions are those of what runs, as each says itself.
func (o options) versions(ctx context.Context, c *cluster) ([][2]string, error) {
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return nil, err
	}
	var all [][2]string
	for _, v := range []struct {
		name string
		cmd  *exec.Cmd
	}{
		{"nftproxy", program(filepath.Join(o.binaries, "kube-proxy"), "--version")},
		{"Kubernetes", c.program("kubelet", "--version")}, {"etcd", c.program("etcd", "--version")},
		{"containerd", program("containerd", "--version")}, {"runc", program("runc", "--version")},
		{"CoreDNS", program(filepath.Join(o.images, "coredns"), "--version")},
	} {
		out, err := v.cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.name, err)
		}
		first, _, _ := strings.Cut(string(out), "\n")
		all = append(all, [2]string{v.name, first})
	}
	return append(all, [2]string{"Linux", unix.ByteSliceToString(kernel.Release[:])}, [2]string{"processors", fmt.Sprint(runtime.NumCPU())}), nil
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

// failures are all specs that failed.
func (r *report) failures() (all []failure) {
	for _, p := range r.parts {
		for _, s := range p.failed() {
			all = append(all, failure{spec: s})
		}
	}
	return all
}

// judge compares what failed with what kube-proxy did, and with the list of known failures.
func (r *report) judge(kubeProxy partResult, known map[string]string) {
	r.judged = r.failures()
	for i := range r.judged {
		f := &r.judged[i]
		f.known = known[f.name]
		f.kubeProxyToo = slices.ContainsFunc(kubeProxy.failed(), func(s spec) bool { return s.name == f.name })
	}
}

// verdict is an error if a failure counts.
func (r *report) verdict() error {
	judged := r.judged
	if judged == nil {
		judged = r.failures()
	}
	var counted []error
	for _, f := range judged {
		if f.counts() {
			counted = append(counted, errors.New(f.name))
		}
	}
	for _, n := range r.ended {
		counted = append(counted, fmt.Errorf("the proxy of %s ended by itself", n))
	}
	for _, s := range r.scenarios {
		counted = append(counted, s.failures()...)
	}
	if len(counted) > 0 {
		return fmt.Errorf("%d failures count:\n%w", len(counted), errors.Join(counted...))
	}
	return nil
}

// page is the report in Markdown.
func (r *report) page() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Kubernetes' own e2e suite\n\n`make e2e` runs the specs of SIG Network in a cluster of three nodes on one machine, and writes this page: "+
		"[testing.md](testing.md#kubernetes-own-suite) says how.\n\nThe proxy is %s, a process on each node. The load of the machine was %s at the start.\n\n", r.proxy, r.load)
	writeVersions(&b, r.versions)
	b.WriteString("\n## What ran\n\nA spec that skips itself lacks something: its own message, below, says what.\n\n| part | passed | failed | skipped themselves | seconds |\n|---|---|---|---|---|\n")
	var all partResult
	for _, p := range r.parts {
		writeRow(&b, p)
		all.specs, all.took = append(all.specs, p.specs...), all.took+p.took
	}
	all.name = "all"
	writeRow(&b, all)
	if r.focus != "" {
		fmt.Fprintf(&b, "\nOnly specs that match `%s` ran.\n", r.focus)
	}
	r.writeFailures(&b)
	r.writeScenarios(&b)
	r.writeSkipped(&b, all)
	r.writeOmitted(&b)
	return b.String()
}

func writeVersions(b *strings.Builder, versions [][2]string) {
	b.WriteString("| | |\n|---|---|\n")
	for _, v := range versions {
		fmt.Fprintf(b, "| %s | %s |\n", v[0], v[1])
	}
}

func writeRow(b *strings.Builder, p partResult) {
	fmt.Fprintf(b, "| %s | %d | %d | %d | %.0f |\n", p.name, p.count(passed), len(p.failed()), p.count(skipped), p.took.Seconds())
}

func (r *report) writeFailures(b *strings.Builder) {
	b.WriteString("\n## What failed\n\n")
	judged := r.judged
	if judged == nil {
		judged = r.failures()
	}
	if len(judged) == 0 {
		b.WriteString("Nothing.\n")
	}
	for _, f := range judged {
		kubeProxy := "kube-proxy passes it in the same cluster"
		if f.kubeProxyToo {
			kubeProxy = "kube-proxy fails it too, in the same cluster"
		}
		if r.judged == nil {
			kubeProxy = "it was not run with kube-proxy"
		}
		fmt.Fprintf(b, "- `%s`: %s. %s\n", f.name, kubeProxy, cmp.Or(f.known, "The cause is not known."))
	}
	for _, n := range r.ended {
		fmt.Fprintf(b, "- The proxy of %s ended by itself.\n", n)
	}
}

// writeScenarios writes a table of the steps, and below it what failed.
func (r *report) writeScenarios(b *strings.Builder) {
	if len(r.scenarios) == 0 {
		return
	}
	b.WriteString("\n## Scenarios\n\nRequests went on all the time: new connections and kept ones, from pods and from outside, over both families. " +
		"In a step that counts, one failed request fails the run. In a control, requests have to fail: it shows that they would show a fault.\n\n")
	for _, s := range r.scenarios {
		fmt.Fprintf(b, "- `%s` (%.0f s): %s\n", s.name, s.took.Seconds(), s.shows)
	}
	b.WriteString("\n| scenario | step | | requests | failed | slowest |\n|---|---|---|---|---|---|\n")
	for _, s := range r.scenarios {
		for _, st := range s.steps {
			fmt.Fprintf(b, "| %s | %s | %s | %d | %d | %v |\n", s.name, cell(st.name), st.kind, st.requests, st.failed, st.slowest.Round(time.Millisecond))
		}
	}
	b.WriteString("\n")
	for _, s := range r.scenarios {
		for _, st := range s.steps {
			if st.note != "" {
				fmt.Fprintf(b, "- %s, %s: %s\n", s.name, st.name, st.note)
			}
		}
		for _, err := range s.failures() {
			fmt.Fprintf(b, "- **Failed:** %s\n", cell(err.Error()))
		}
	}
}

func (r *report) writeSkipped(b *strings.Builder, all partResult) {
	b.WriteString("\n## What skipped itself\n\n| spec | why |\n|---|---|\n")
	for _, s := range all.specs {
		if s.outcome == skipped {
			fmt.Fprintf(b, "| %s | %s |\n", cell(s.name), cell(s.message))
		}
	}
}

// cell is a text in a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

func (r *report) writeOmitted(b *strings.Builder) {
	b.WriteString("\n## What was left out\n\n| specs | why |\n|---|---|\n")
	for _, reason := range slices.Sorted(maps.Keys(r.omitted)) {
		fmt.Fprintf(b, "| %d | %s |\n", r.omitted[reason], reason)
	}
	ran := map[string]bool{}
	for _, p := range r.parts {
		ran[p.name] = true
	}
	for _, s := range r.scenarios {
		ran[s.name] = true
	}
	var missing []string
	for _, name := range partNames() {
		if !ran[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		fmt.Fprintf(b, "\nThis run left out the parts %s.\n", strings.Join(missing, ", "))
	}
}
