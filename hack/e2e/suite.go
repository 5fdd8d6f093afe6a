package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// partTimeout bounds a part: a spec that hangs must not hold up the others.
const partTimeout = 20 * time.Minute

// run makes a cluster, runs the suite in it, and removes the cluster.
func (o options) run(ctx context.Context) error {
	unlock, err := o.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := o.check(ctx); err != nil {
		return err
	}
	c, err := o.make(ctx, syscall.SIGKILL)
	if err != nil {
		return err
	}
	if err := o.complete(ctx); err != nil {
		return err
	}
	c.programs = o.programs
	err = o.runSuite(ctx, c)
	if err != nil && o.keep && ctx.Err() == nil {
		progress("%v; the cluster stays until Ctrl-C", err)
		<-ctx.Done()
	}
	progress("removing the cluster")
	return errors.Join(err, o.removeBut("logs"))
}

// check returns the errors of flags that would show only after minutes.
func (o options) check(ctx context.Context) error {
	selected, err := selectParts(o.parts)
	if slices.ContainsFunc(selected.scenarios, func(s scenario) bool { return s.name == "upgrade" }) {
		_, err = o.earlierCommit(ctx)
	}
	_, reading := readKnown(o.known)
	_, compiling := regexp.Compile(o.focus)
	return errors.Join(err, reading, compiling)
}

// suite runs the suite in the cluster that is up.
func (o options) suite(ctx context.Context) error {
	c, err := o.load(ctx)
	if err != nil {
		return err
	}
	return o.runSuite(ctx, c)
}

// runSuite runs the selected parts, and writes the report. It fails if a failure counts.
func (o options) runSuite(ctx context.Context, c *cluster) error {
	selected, err := selectParts(o.parts)
	if err != nil {
		return err
	}
	known, err := readKnown(o.known)
	if err != nil {
		return err
	}
	specs, err := o.suiteSpecs(ctx)
	if err != nil {
		return err
	}
	if selected, err = selected.focused(o.focus, o.parts != "", specs); err != nil {
		return err
	}
	r, err := o.newReport(ctx, c, specs)
	if err != nil {
		return err
	}
	for _, p := range selected.parts {
		result, err := c.runPart(ctx, o, p.name, p.focus, skips())
		if err != nil {
			return err
		}
		progress("%s: %s", p.name, result.summary())
		r.parts = append(r.parts, result)
		if err := o.writePage(&r); err != nil { // what has run is reported, whatever becomes of the rest
			return err
		}
	}
	r.ended = c.deadProxies()
	for _, s := range selected.scenarios {
		progress("%s: %s", s.name, s.shows)
		r.scenarios = append(r.scenarios, c.runScenario(ctx, o, s))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := o.writePage(&r); err != nil {
			return err
		}
	}
	if err := o.judge(ctx, c, &r, known); err != nil {
		return err
	}
	return errors.Join(o.writePage(&r), r.verdict())
}

func (o options) writePage(r *report) error {
	if o.page == "" {
		return nil
	}
	return os.WriteFile(o.page, []byte(r.page()), 0o644)
}

// judge runs what failed once more, with Kubernetes' own proxy.
func (o options) judge(ctx context.Context, c *cluster, r *report, known map[string]string) error {
	failed := r.failures()
	if len(failed) == 0 || o.proxy != "nftproxy" {
		return nil
	}
	progress("%d specs failed: whether kube-proxy fails them too", len(failed))
	if err := c.setProxy(ctx, o, "kube-proxy"); err != nil {
		return err
	}
	var names []string
	for _, f := range failed {
		names = append(names, regexp.QuoteMeta(f.text()))
	}
	result, err := c.runPart(ctx, o, "kube-proxy", strings.Join(names, "|"), "")
	if err != nil {
		return err
	}
	r.judge(result, known)
	return c.setProxy(ctx, o, o.proxy)
}

// runPart runs specs, and reads their results.
func (c *cluster) runPart(ctx context.Context, o options, name, focus, skip string) (partResult, error) {
	begin := time.Now()
	dir := filepath.Join(c.dir, "logs")
	junit := "junit-" + name + ".xml"
	if err := os.Remove(filepath.Join(dir, junit)); err != nil && !os.IsNotExist(err) {
		return partResult{}, err
	}
	log, err := os.Create(filepath.Join(dir, "suite-"+name+".log"))
	if err != nil {
		return partResult{}, err
	}
	defer log.Close()
	cmd := c.program("ginkgo", ginkgoArgs(o, dir, junit, focus, skip)...)
	cmd.Args = append(cmd.Args, filepath.Join(c.programs, "e2e.test"), "--",
		"--provider=skeleton", "--kubeconfig="+c.kubeconfig("admin"), "--kubectl-path="+filepath.Join(c.programs, "kubectl"),
		"--num-nodes="+strconv.Itoa(nodeCount), "--disable-log-dump", "--report-complete-ginkgo=false", "--allowed-not-ready-nodes=0")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig("admin"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	ended := wait(ctx, c.machine(), cmd)
	if ctx.Err() != nil {
		return partResult{}, ctx.Err()
	}
	specs, err := readJUnit(filepath.Join(dir, junit))
	if err != nil {
		return partResult{}, fmt.Errorf("%s: %w (%v), see %s", name, err, ended, log.Name())
	}
	if len(specs) == 0 {
		return partResult{}, fmt.Errorf("%s: no spec ran, see %s", name, log.Name())
	}
	return partResult{name: name, specs: specs, took: time.Since(begin)}, nil
}

func ginkgoArgs(o options, dir, junit, focus, skip string) []string {
	args := []string{
		"--procs=" + strconv.Itoa(o.procs), "--no-color", "--timeout=" + partTimeout.String(), "--poll-progress-after=0",
		"--output-dir=" + dir, "--junit-report=" + junit, "--focus=" + focus,
	}
	if skip != "" {
		args = append(args, "--skip="+skip)
	}
	return args
}

// wait runs a program in a place until it ends, or the context does.
func wait(ctx context.Context, p place, cmd *exec.Cmd) error {
	if err := p.start(cmd); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stop()
	return cmd.Wait()
}
