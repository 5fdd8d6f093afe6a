package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
)

// scenario is a part that is no spec of the suite: it does something to the cluster, and sends requests meanwhile.
type scenario struct {
	name string
	// shows is a sentence for the report.
	shows string
	run   func(context.Context, *scenarioRun) error
}

// scenarios are in the order in which they run, after the parts of the suite.
var scenarios = []scenario{
	{"swap", "Kubernetes' kube-proxy and this proxy replace each other, node after node. No request fails but where kube-proxy starts in iptables mode.", runSwap},
	{"upgrade", "The proxy of an earlier commit and this one replace each other, node after node, and no request fails.", runUpgrade},
	{"daemonset", "The image of `make image`, in a DaemonSet with the manifests of the overlay standalone, takes over from processes, is restarted, and is replaced by processes.", runDaemonSet},
	{"nodelocal", "The nodes' proxies take their Services from a node-local server while endpoints change; the server is killed, and another one starts.", runNodeLocal},
	{"directreturn", "A node leaves the route to a load balancer's address, and comes back, while connections with direct return are open.", runDirectReturn},
}

// stepKind says what a failed request means in a step.
type stepKind string

const (
	// counts: each failed request fails the run.
	counts stepKind = "counts"
	// control: some requests must fail. Otherwise the requests would not show a fault in the other steps either.
	control stepKind = "control"
	// measured: failed requests are reported only. The step's note says what causes them.
	measured stepKind = "measured"
)

// step is a step of a scenario, with its requests.
type step struct {
	name string
	kind stepKind
	// note is for the report.
	note string
	tally
}

// err is nil if the requests ended as the step's kind says.
func (s step) err() error {
	switch {
	case s.requests == 0:
		return fmt.Errorf("%s: no request was sent", s.name)
	case s.kind == counts && s.failed > 0:
		return fmt.Errorf("%s: %d of %d requests failed, the first ones: %w", s.name, s.failed, s.requests, errors.Join(s.errors...))
	case s.kind == control && s.failed == 0:
		return fmt.Errorf("%s: %d requests, none failed: such requests show no fault", s.name, s.requests)
	}
	return nil
}

// scenarioRun is a scenario that runs in a cluster.
type scenarioRun struct {
	*cluster
	options options
	client  *kubernetes.Clientset
	name    string
	steps   []step
	// undo is done in reverse order when the scenario has ended.
	undo []func(context.Context) error
}

// scenarioResult is what the report has of a scenario.
type scenarioResult struct {
	scenario
	steps []step
	err   error
	took  time.Duration
}

// failures are what makes the run fail: requests, by step, and errors.
func (r scenarioResult) failures() (all []error) {
	for _, s := range r.steps {
		if err := s.err(); err != nil {
			all = append(all, fmt.Errorf("%s: %w", r.name, err))
		}
	}
	if r.err != nil {
		all = append(all, fmt.Errorf("%s: %w", r.name, r.err))
	}
	return all
}

// restoring bounds what makes the cluster as it was, also after Ctrl-C.
const restoring = 2 * time.Minute

// runScenario runs a scenario. Afterwards the cluster is as before: o.proxy serves all nodes.
func (c *cluster) runScenario(ctx context.Context, o options, sc scenario) scenarioResult {
	begin := time.Now()
	client, err := c.client()
	if err != nil {
		return scenarioResult{scenario: sc, err: err}
	}
	s := &scenarioRun{cluster: c, options: o, client: client, name: sc.name}
	err = sc.run(ctx, s)
	for _, name := range c.deadProxies() {
		err = errors.Join(err, fmt.Errorf("the proxy of %s ended by itself", name))
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoring)
	defer cancel()
	return scenarioResult{scenario: sc, steps: s.steps, err: errors.Join(err, s.restore(limited)), took: time.Since(begin)}
}

// restore makes the cluster as it was before the scenario.
func (s *scenarioRun) restore(ctx context.Context) error {
	var failures []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		failures = append(failures, s.undo[i](ctx))
	}
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Contender != s.options.proxy || !n.Proxy.alive() {
			failures = append(failures, s.setProxyOf(ctx, s.options, n, s.options.proxy))
		}
	}
	return errors.Join(failures...)
}

// later has the scenario's end do something. What was added last is done first.
func (s *scenarioRun) later(undo func(context.Context) error) { s.undo = append(s.undo, undo) }

// around is how long a step sends requests before and after what it does.
const around = time.Second

// step does something under requests on all paths, and returns its error. Failed requests are no error of the step: the
// scenario goes on, and the report has them.
func (s *scenarioRun) step(ctx context.Context, name string, kind stepKind, paths []path, do func(context.Context) error) error {
	return s.send(ctx, step{name: name, kind: kind}, paths, do)
}

// action is what a step does.
type action struct {
	name string
	kind stepKind
	do   func(context.Context) error
}

// each makes a step of each action, with requests on the same paths.
func (s *scenarioRun) each(ctx context.Context, paths []path, actions []action) error {
	for _, a := range actions {
		if err := s.step(ctx, a.name, a.kind, paths, a.do); err != nil {
			return err
		}
	}
	return nil
}

// measure is a step whose failures are reported only, with a note that says what causes them.
func (s *scenarioRun) measure(ctx context.Context, name, note string, paths []path, do func(context.Context) error) error {
	return s.send(ctx, step{name: name, kind: measured, note: note}, paths, do)
}

func (s *scenarioRun) send(ctx context.Context, st step, paths []path, do func(context.Context) error) error {
	requests := startRequests(paths)
	err := errors.Join(pause(ctx, around), do(ctx), pause(ctx, around))
	st.tally = requests.stop()
	s.record(st)
	if err != nil {
		return fmt.Errorf("%s: %w", st.name, err)
	}
	return nil
}

// record reports a step.
func (s *scenarioRun) record(st step) {
	s.steps = append(s.steps, st)
	progress("%s: %s: %d requests, %d failed, the slowest took %v", s.name, st.name, st.requests, st.failed, st.slowest.Round(time.Millisecond))
	for _, failed := range st.errors {
		progress("  %v", failed)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
