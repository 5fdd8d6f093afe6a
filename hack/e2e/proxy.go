package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// proxyConfig is the configuration of every proxy: its fields are kube-proxy's. Node ports answer on loopback too, for the
// specs of LocalhostNodePorts.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %[1]q}
clusterCIDR: %[2]q
hostnameOverride: %[3]q
mode: %[4]q
healthzBindAddress: "[::]:10256"
metricsBindAddress: "[::]:10249"
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0}
featureGates: {%[5]s}
nodePortAddresses: [%[6]s, 127.0.0.0/8, "::1/128"]
`

// healthPort is the port at which every proxy answers probes.
const healthPort = "10256"

// contender is a proxy that can serve a node.
type contender struct {
	name, binary, mode string
	// gates are its feature gates.
	gates string
	// server is the node-local server that it takes its Services from, instead of the API server.
	server *nodeLocal
}

// command is the program on a node, whose configuration it writes.
func (p contender) command(c *cluster, n node) (*exec.Cmd, error) {
	file, kubeconfig := filepath.Join(c.nodeDir(n), "proxy.yaml"), c.kubeconfig("kube-proxy")
	args := []string{"--config=" + file}
	if p.server != nil {
		kubeconfig, args = "", append(args, p.server.clientFlags(n)...)
	}
	config := fmt.Appendf(nil, proxyConfig, kubeconfig, podRanges, n.Name, p.mode, p.gates, nodeRanges())
	return program(p.binary, args...), os.WriteFile(file, config, 0o644)
}

func (o options) contender(name string) (contender, error) {
	switch name {
	case "nftproxy":
		return contender{name: name, binary: filepath.Join(o.binaries, "kube-proxy"), mode: "nftables"}, nil
	case "kube-proxy":
		return contender{name: name, binary: filepath.Join(o.programs, "kube-proxy"), mode: "nftables", gates: "KubeProxyNFTablesLocalhostNodePorts: true"}, nil
	case "kube-proxy-iptables":
		return contender{name: name, binary: filepath.Join(o.programs, "kube-proxy"), mode: "iptables"}, nil
	}
	return contender{}, fmt.Errorf("--proxy %q is none of %v", name, contenders)
}

// changeProxy is the command of this name.
func (o options) changeProxy(ctx context.Context) error {
	c, err := o.load(ctx)
	if err != nil {
		return err
	}
	return c.setProxy(ctx, o, o.proxy)
}

// setProxy has a proxy serve all nodes, one node after the other. A proxy that serves one already is started again.
func (c *cluster) setProxy(ctx context.Context, o options, name string) error {
	for i := range c.Nodes {
		if err := c.setProxyOf(ctx, o, &c.Nodes[i], name); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) setProxyOf(ctx context.Context, o options, n *node, name string) error {
	if name == "none" {
		return c.stopProxyOf(n)
	}
	p, err := o.contender(name)
	if err != nil {
		return err
	}
	return c.startProxyOf(ctx, n, p)
}

// stopProxyOf ends the node's proxy. Its rules stay.
func (c *cluster) stopProxyOf(n *node) error {
	n.Proxy.end(30 * time.Second)
	n.Contender, n.Proxy = "none", processID{}
	return c.save()
}

// startProxyOf starts a proxy in the place of the node's, and waits until it is healthy.
func (c *cluster) startProxyOf(ctx context.Context, n *node, p contender) error {
	if err := c.stopProxyOf(n); err != nil {
		return err
	}
	cmd, err := p.command(c, *n)
	if err != nil {
		return err
	}
	if n.Proxy, err = n.place().background(c.logs(), cmd); err != nil {
		return err
	}
	n.Contender = p.name
	if err := c.save(); err != nil {
		return err
	}
	return await(ctx, n.Name+": "+p.name+" is healthy", func() error {
		if !n.Proxy.alive() {
			return errEnded
		}
		return c.probe(ctx, n.addrs()[0].Addr().String(), healthPort)
	})
}

// probe asks a health endpoint from the machine, as load balancers do.
func (c *cluster) probe(ctx context.Context, host, port string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: c.machine().dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return nil
}

// deadProxies names the nodes whose proxy has ended by itself.
func (c *cluster) deadProxies() (names []string) {
	for _, n := range c.Nodes {
		if n.Proxy.PID != 0 && !n.Proxy.alive() {
			names = append(names, n.Name)
		}
	}
	return names
}
