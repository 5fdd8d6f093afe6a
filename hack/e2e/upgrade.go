package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// firstCommit is where an upgrade starts while the repository has no tag.
const firstCommit = "8e6b7282"

// runUpgrade swaps the proxies of all nodes, from an earlier version to this one and back.
func runUpgrade(ctx context.Context, s *scenarioRun) error {
	before, err := s.options.earlierProxy(ctx)
	if err != nil {
		return err
	}
	now, err := s.options.contender("nftproxy")
	if err != nil {
		return err
	}
	made, err := s.serveWithControl(ctx)
	if err != nil {
		return err
	}
	for _, to := range []contender{before, now, before, now} {
		if err := s.swapTo(ctx, to, made); err != nil {
			return err
		}
	}
	return nil
}

// startProxies starts a proxy on all nodes, node after node.
func (c *cluster) startProxies(ctx context.Context, p contender) error {
	for i := range c.Nodes {
		if err := c.startProxyOf(ctx, &c.Nodes[i], p); err != nil {
			return err
		}
	}
	return nil
}

// earlierProxy builds the proxy of the commit --from.
func (o options) earlierProxy(ctx context.Context) (contender, error) {
	commit, err := o.earlierCommit(ctx)
	if err != nil {
		return contender{}, err
	}
	p := contender{name: "nftproxy at " + commit, binary: filepath.Join(o.images, "kube-proxy-"+commit), mode: "nftables"}
	if isFile(p.binary) {
		return p, nil
	}
	progress("building the kube-proxy of %s", commit)
	source, err := os.MkdirTemp("", "e2e-upgrade-")
	if err != nil {
		return p, err
	}
	defer os.RemoveAll(source)
	archive := filepath.Join(source, "source.tar")
	for _, cmd := range []*exec.Cmd{
		exec.CommandContext(ctx, "git", "archive", "--output="+archive, commit),
		exec.CommandContext(ctx, "tar", "--extract", "--file="+archive, "--directory="+source),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return p, fmt.Errorf("the source of %s: %s: %w\n%s", commit, cmd.Args[0], err, out)
		}
	}
	return p, o.build(ctx, source, p.binary, "./cmd/kube-proxy")
}

// earlierCommit is the short name of the commit --from, or of the last tag.
func (o options) earlierCommit(ctx context.Context) (string, error) {
	from := o.from
	if from == "" {
		from = firstCommit
		if tag, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--abbrev=0").Output(); err == nil {
			from = strings.TrimSpace(string(tag))
		}
	}
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=8", "--verify", from+"^{commit}").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("--from %q: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}
