package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/mutation"
)

// mutants are mutations of the compiler (make mutations), each with the spec that must find it. Each proxy runs the specs
// of all mutants.
var mutants = []struct{ mutation, spec string }{
	{"hairpins are not masqueraded", "Services should allow pods to hairpin back to themselves through services"},
	{"there is no affinity", "Services should have session affinity work for service with type clusterIP"},
	{"internal policy Local is ignored", "Services should respect internalTrafficPolicy=Local Pod to Pod"},
}

// mutantResult is a run of the specs over a proxy. Its spec is empty for the proxy without a mutation.
type mutantResult struct {
	mutation, spec string
	partResult
}

// err is nil if the spec failed that must find the mutation. Without a mutation none may fail.
func (r mutantResult) err() error {
	if r.count(skipped) > 0 || len(r.specs) != len(mutants) {
		return fmt.Errorf("%s: %d specs ran and %d skipped themselves, want %d", r.mutation, len(r.specs), r.count(skipped), len(mutants))
	}
	failed := r.failedNames()
	switch {
	case r.spec == "" && len(failed) > 0:
		return fmt.Errorf("the proxy without a mutation fails %s", strings.Join(failed, "; "))
	case r.spec != "" && !slices.ContainsFunc(failed, func(name string) bool { return strings.Contains(name, r.spec) }):
		return fmt.Errorf("%s: not found", r.mutation)
	}
	return nil
}

func (r mutantResult) failedNames() (names []string) {
	for _, s := range r.failed() {
		names = append(names, s.name)
	}
	return names
}

// mutants runs specs over proxies whose compiler has a defect, in the cluster that is up, and writes the page.
func (o options) mutants(ctx context.Context) error {
	c, err := o.load(ctx)
	if err != nil {
		return err
	}
	versions, err := o.versions(ctx, c)
	if err != nil {
		return err
	}
	defer func() { // also after an error
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoring)
		defer cancel()
		if err := c.setProxy(limited, o, o.proxy); err != nil {
			progress("the proxy is not as before: %v", err)
		}
	}()
	results := []mutantResult{{mutation: "none"}}
	for _, m := range mutants {
		results = append(results, mutantResult{mutation: m.mutation, spec: m.spec})
	}
	for i := range results {
		if err := c.runMutant(ctx, o, &results[i]); err != nil {
			return err
		}
		if o.page == "" {
			continue
		}
		if err := os.WriteFile(o.page, []byte(mutantsPage(versions, results[:i+1])), 0o644); err != nil {
			return err
		}
	}
	var failures []error
	for _, r := range results {
		failures = append(failures, r.err())
	}
	return errors.Join(failures...)
}

// runMutant runs the specs over a proxy with the result's mutation on all nodes.
func (c *cluster) runMutant(ctx context.Context, o options, r *mutantResult) error {
	progress("mutation: %s", r.mutation)
	p, err := o.mutant(ctx, *r)
	if err != nil {
		return err
	}
	if err := c.startProxies(ctx, p); err != nil {
		return err
	}
	if r.partResult, err = c.runPart(ctx, o, "mutants", mutantFocus(), ""); err != nil {
		return err
	}
	progress("mutation: %s: %s", r.mutation, r.summary())
	return nil
}

// mutantFocus is the expression of the specs of all mutants.
func mutantFocus() string {
	var names []string
	for _, m := range mutants {
		names = append(names, regexp.QuoteMeta(m.spec))
	}
	return `\[sig-network\] (` + strings.Join(names, "|") + `)( \[|$)`
}

// mutant builds the proxy with the result's mutation. Without one it is the proxy that is built already.
func (o options) mutant(ctx context.Context, r mutantResult) (contender, error) {
	if r.spec == "" {
		return o.contender("nftproxy")
	}
	m, err := mutation.Find(r.mutation)
	if err != nil {
		return contender{}, err
	}
	p := contender{name: "mutant", binary: filepath.Join(o.images, "kube-proxy-mutant"), mode: "nftables"}
	return p, m.Build(ctx, o.goCommand, ".", p.binary)
}

func mutantsPage(versions [][2]string, results []mutantResult) string {
	var b strings.Builder
	b.WriteString("# Mutations that Kubernetes' suite finds\n\n`make e2e-mutants` puts defects into the compiler, which are some of those of `make mutations`. It runs the same specs of " +
		"[Kubernetes' suite](testing.md#kubernetes-own-suite) over the proxy without a defect and over each mutant, in one cluster, and writes this page. The first must pass all, and each mutant must fail its spec.\n\n")
	writeVersions(&b, versions)
	b.WriteString("\n| mutation | verdict | passed | specs that failed | seconds |\n|---|---|---|---|---|\n")
	for _, r := range results {
		verdict := "found"
		if r.spec == "" {
			verdict = "sound"
		}
		if err := r.err(); err != nil {
			verdict = "**" + err.Error() + "**"
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %.0f |\n", r.mutation, cell(verdict), r.count(passed), cell(strings.Join(r.failedNames(), "; ")), r.took.Round(time.Second).Seconds())
	}
	return b.String()
}
