package main

import (
	"context"
	"fmt"
)

// runSwap swaps the proxies of all nodes, from each mode of Kubernetes' kube-proxy to this one and back.
func runSwap(ctx context.Context, s *scenarioRun) error {
	made, err := s.serve(ctx)
	if err != nil {
		return err
	}
	if err := s.withoutRules(ctx, made); err != nil {
		return err
	}
	paths := made.all()
	for _, mode := range []string{"kube-proxy", "kube-proxy-iptables"} {
		if err := s.swapTo(ctx, mode, paths); err != nil {
			return err
		}
		if err := s.swapTo(ctx, "nftproxy", paths); err != nil {
			return err
		}
	}
	return nil
}

// iptablesGap is why requests may fail when kube-proxy starts in this mode.
const iptablesGap = "at its start in iptables mode kube-proxy deletes the tables of nftables mode before it has written rules of its own, whichever proxy made them"

// swapTo has a proxy take over all nodes, node after node.
func (s *scenarioRun) swapTo(ctx context.Context, name string, paths []path) error {
	swap := func(ctx context.Context) error { return s.setProxy(ctx, s.options, name) }
	title := fmt.Sprintf("%s to %s", s.Nodes[0].Contender, name)
	if name == "kube-proxy-iptables" {
		return s.measure(ctx, title, iptablesGap, paths, swap)
	}
	return s.step(ctx, title, counts, paths, swap)
}

// withoutRules is a control: the first node has no proxy and no rules.
func (s *scenarioRun) withoutRules(ctx context.Context, made servers) error {
	n := &s.Nodes[0]
	own, err := s.options.contender("nftproxy")
	if err != nil {
		return err
	}
	return s.step(ctx, n.Name+" has no proxy and no rules", control, made.all(), func(ctx context.Context) error {
		if err := s.stopProxyOf(n); err != nil {
			return err
		}
		if err := n.run(own.binary, "--cleanup"); err != nil {
			return err
		}
		if err := pause(ctx, around); err != nil {
			return err
		}
		return s.startProxyOf(ctx, n, own)
	})
}
