package main

import "context"

// runSwap swaps the proxies of all nodes, from each mode of Kubernetes' kube-proxy to this one and back.
func runSwap(ctx context.Context, s *scenarioRun) error {
	made, err := s.serveWithControl(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"kube-proxy", "nftproxy", "kube-proxy", "kube-proxy-iptables", "nftproxy", "kube-proxy-iptables", "nftproxy"} {
		p, err := s.options.contender(name)
		if err != nil {
			return err
		}
		if err := s.swapTo(ctx, p, made); err != nil {
			return err
		}
	}
	return nil
}

// iptablesGap is why requests may fail when kube-proxy starts in iptables mode.
const iptablesGap = "At its start in iptables mode kube-proxy deletes the tables `kube-proxy`, whichever proxy wrote them, and then writes its own rules ([takeover.md](takeover.md#from-kube-proxy-in-iptables-mode))."

// swapTo has a proxy take over all nodes, node after node, and serve a new Service.
func (s *scenarioRun) swapTo(ctx context.Context, p contender, made servers) error {
	swap := func(ctx context.Context) error {
		if err := s.startProxies(ctx, p); err != nil {
			return err
		}
		return s.serveAnother(ctx, made)
	}
	title := s.Nodes[0].Contender + " to " + p.name
	if p.mode == "iptables" {
		return s.measure(ctx, title, iptablesGap, made.all(), swap)
	}
	return s.step(ctx, title, counts, made.all(), swap)
}

// serveWithControl makes the servers, and shows that requests to them fail where no proxy serves.
func (s *scenarioRun) serveWithControl(ctx context.Context) (servers, error) {
	made, err := s.serve(ctx)
	if err != nil {
		return made, err
	}
	return made, s.withoutRules(ctx, made)
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
