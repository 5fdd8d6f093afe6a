package main

import (
	"context"
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
	defer func() { // also after an error
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoring)
		defer cancel()
		if err := c.setProxy(limited, o, o.proxy); err != nil {
			progress("the proxy is not as before: %v", err)
		}
	}()
	sound, err := o.contender("nftproxy")
	if err != nil {
		return err
	}
	results, err := c.runMutant(ctx, o, nil, mutantResult{mutation: "none"}, sound)
	if err != nil {
		return err
	}
	for _, m := range mutants {
		p, err := o.mutant(ctx, m.mutation)
		if err != nil {
			return err
		}
		defer os.Remove(p.binary)
		if results, err = c.runMutant(ctx, o, results, mutantResult{mutation: m.mutation, spec: m.spec}, p); err != nil {
			return err
		}
	}
	return nil
}

// runMutant runs the specs over a proxy on all nodes. It writes the page with the results so far.
func (c *cluster) runMutant(ctx context.Context, o options, results []mutantResult, r mutantResult, p contender) ([]mutantResult, error) {
	progress("mutation: %s", r.mutation)
	if err := c.startProxies(ctx, p); err != nil {
		return nil, err
	}
	var err error
	if r.partResult, err = c.runPart(ctx, o, "mutants", mutantFocus(), ""); err != nil {
		return nil, err
	}
	progress("mutation: %s: %s", r.mutation, r.summary())
	results = append(results, r)
	if o.page != "" {
		if err := os.WriteFile(o.page, []byte(mutantsPage(results)), 0o644); err != nil {
			return nil, err
		}
	}
	return results, r.err()
}

// mutantFocus is the expression of the specs of all mutants.
func mutantFocus() string {
	var names []string
	for _, m := range mutants {
		names = append(names, regexp.QuoteMeta(m.spec))
	}
	return `\[sig-network\] (` + strings.Join(names, "|") + `)( \[|$)`
}

// mutant builds the proxy with a mutation.
func (o options) mutant(ctx context.Context, name string) (contender, error) {
	m, err := mutation.Find(name)
	if err != nil {
		return contender{}, err
	}
	p := contender{"mutant", filepath.Join(o.images, "kube-proxy-mutant"), "nftables"}
	return p, m.Build(ctx, o.goCommand, ".", p.binary)
}

func mutantsPage(results []mutantResult) string {
	var b strings.Builder
	b.WriteString("# Mutations that Kubernetes' suite finds\n\n`make e2e-mutants` puts defects into the compiler, which are some of those of `make mutations`. It runs the same specs of " +
		"[Kubernetes' suite](testing.md#kubernetes-own-suite) over the proxy without a defect and over each mutant, in one cluster, and writes this page. The first must pass all, and each mutant must fail its spec.\n\n" +
		"| mutation | verdict | passed | specs that failed | seconds |\n|---|---|---|---|---|\n")
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
