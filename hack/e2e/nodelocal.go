package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	nodeLocalPort        = "10264"
	nodeLocalMetricsPort = "10265"
	metricsPort          = "10249"
	// away is how long requests go on without the node-local server at least. Its clients try again several times by then.
	away = 5 * time.Second
)

// nodeLocal is a node-local server beside the control plane, with a certificate for each node.
type nodeLocal struct {
	dir     string
	process processID
}

// newNodeLocal makes the certificates.
func (c *cluster) newNodeLocal() (*nodeLocal, error) {
	l := &nodeLocal{dir: filepath.Join(c.dir, "credentials", "node-local")}
	ca, err := newAuthority(l.dir)
	if err != nil {
		return nil, err
	}
	failures := []error{ca.issue("server", "node-local-server", machineAddrs[0].Addr())}
	for _, n := range c.Nodes {
		failures = append(failures, ca.issue(n.Name, "system:node:"+n.Name))
	}
	return l, errors.Join(failures...)
}

// address is the server's, from everywhere in the machine.
func (l *nodeLocal) address() string {
	return "tcp://" + net.JoinHostPort(machineAddrs[0].Addr().String(), nodeLocalPort)
}

// credentials are the flags of a server or client with the certificate of this name.
func (l *nodeLocal) credentials(name string) []string {
	file := filepath.Join(l.dir, name)
	return []string{"--node-local-cert-file=" + file + ".crt", "--node-local-key-file=" + file + ".key", "--node-local-ca-file=" + filepath.Join(l.dir, authorityFile)}
}

// clientFlags are those of the node's proxy.
func (l *nodeLocal) clientFlags(n node) []string {
	return append(l.credentials(n.Name), "--node-local-source="+l.address())
}

// start starts the server, and waits until it serves.
func (l *nodeLocal) start(ctx context.Context, s *scenarioRun) (err error) {
	args := append([]string{
		"node-local-server", "--kubeconfig=" + s.kubeconfig("kube-proxy"), "--listen=" + l.address(),
		"--metrics-bind-address=" + net.JoinHostPort("127.0.0.1", nodeLocalMetricsPort),
	}, l.credentials("server")...)
	if l.process, err = s.machine().background(s.logs(), program(filepath.Join(s.options.binaries, "kube-proxy"), args...)); err != nil {
		return err
	}
	return await(ctx, "the node-local server is ready", func() error {
		if !l.process.alive() {
			return errEnded
		}
		return s.probe(ctx, "127.0.0.1", nodeLocalMetricsPort)
	})
}

// runNodeLocal has all nodes' proxies take their Services from a node-local server, kills it, and starts another one.
func runNodeLocal(ctx context.Context, s *scenarioRun) error {
	made, err := s.serve(ctx)
	if err != nil {
		return err
	}
	server, err := s.newNodeLocal()
	if err != nil {
		return err
	}
	backend, err := s.options.contender("nftproxy")
	if err != nil {
		return err
	}
	backend.name, backend.server = "nftproxy of a node-local server", server
	s.later(func(context.Context) error { server.process.end(30 * time.Second); return nil })
	if err := server.start(ctx, s); err != nil {
		return err
	}
	var changed []path
	return s.each(ctx, made.all(), []action{
		{"the proxies take their Services from the server, node after node", counts, func(ctx context.Context) error { return s.startProxies(ctx, backend) }},
		{"each endpoint in turn leaves the Service and comes back", counts, s.endpointsInTurns},
		{"all endpoints leave the Service and come back", control, s.noEndpoints},
		{"the server is killed, and a Service is made meanwhile", counts, func(ctx context.Context) (err error) {
			changed, err = s.killNodeLocal(ctx, server, made)
			return err
		}},
		{"the server comes back: this Service and a later one arrive on all nodes", counts, func(ctx context.Context) error {
			return s.reviveNodeLocal(ctx, server, changed, made)
		}},
		{"each endpoint in turn leaves the Service and comes back once more", counts, s.endpointsInTurns},
		{"the proxies ask the API server again, node after node", counts, func(ctx context.Context) error { return s.setProxy(ctx, s.options, "nftproxy") }},
	})
}

// killNodeLocal kills the server, waits until all proxies say so, and makes a Service, to which no path may work: its paths.
func (s *scenarioRun) killNodeLocal(ctx context.Context, server *nodeLocal, made servers) ([]path, error) {
	server.process.signal(syscall.SIGKILL)
	for _, n := range s.Nodes {
		if err := await(ctx, n.Name+": the proxy says that the server is away", func() error { return s.saysServerAway(ctx, n) }); err != nil {
			return nil, err
		}
	}
	paths, err := s.another(ctx, made)
	if err != nil {
		return nil, err
	}
	return paths, errors.Join(pause(ctx, away), noneWorks(paths))
}

// reviveNodeLocal starts the server, and waits until what changed meanwhile and what changes now is on all nodes.
func (s *scenarioRun) reviveNodeLocal(ctx context.Context, server *nodeLocal, changed []path, made servers) error {
	if err := server.start(ctx, s); err != nil {
		return err
	}
	if err := awaitPaths(ctx, changed); err != nil {
		return err
	}
	return s.serveAnother(ctx, made)
}

// saysServerAway is nil if the proxy's metric of a source that fails is 1.
func (s *scenarioRun) saysServerAway(ctx context.Context, n node) error {
	const metric = `kubeproxy_watch_failing{resource="node-local-source"} 1`
	address := net.JoinHostPort(n.addrs()[0].Addr().String(), metricsPort)
	text, err := path{n.Name + ": metrics", s.machine().dial, address}.fetch(ctx, "/metrics")
	if err == nil && !strings.Contains(text, metric) {
		err = fmt.Errorf("the metrics lack %s", metric)
	}
	return err
}
