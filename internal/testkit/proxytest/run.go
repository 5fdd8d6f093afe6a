// Package proxytest sends the flows of the golden cases through a node that any service proxy runs, and says which
// packets went elsewhere.
//
// A case's objects come from an HTTP API server, or from a node-local server, as in a cluster. The proxy is a command.
package proxytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"sigs.k8s.io/yaml"
)

// Options say what to test.
type Options struct {
	// Command is the command line of the proxy. In its words, {config} is the path of a KubeProxyConfiguration,
	// {kubeconfig} that of a kubeconfig, {node} the name of the Node, and {node-local} the address of a node-local server.
	Command string
	// Promise says what the proxy promises. The default is everything.
	Promise flows.Promise
	// Families are those of the flows. Default both.
	Families []Family
	// Config has fields of the configuration that win over those of the cases.
	Config map[string]any
	// Fresh makes a new node and process for each case.
	Fresh bool
	// Kubernetes is a folder with Kubernetes' own kube-apiserver and etcd, from which the objects come. Default: a server
	// of the tool's own, which takes any objects.
	Kubernetes string
	// Ready is the time that the proxy has to apply the objects of a case. Default 30 s.
	Ready time.Duration
	// Progress, if set, gets the result of each case when it is there.
	Progress func(Result)
	// Keep, if set, gets the commands that enter the lab after the first case with a new difference. The run ends
	// when it returns.
	Keep func(commands string)
}

// maxFailures is the number of cases in a row in which the proxy may end or not settle.
// After these it is not tried again.
const maxFailures = 3

// patience is the time in which an endpoint that must be reached answers: long enough for TCP's third SYN.
const patience = 5 * time.Second

// Run runs the cases. The error says why the tool itself failed.
func Run(ctx context.Context, cases []flows.Case, o Options) (*Report, error) {
	r, err := newRun(o)
	if err != nil {
		return nil, fmt.Errorf("--proxy: %w", err)
	}
	defer r.end()
	groups, err := r.groups(cases)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		for _, c := range g.cases {
			err := r.one(ctx, g, c)
			if r.kept { // until the context ended
				return r.done(), nil
			}
			if err != nil {
				return nil, fmt.Errorf("case %s: %w", c.Name, err)
			}
			if o.Fresh {
				r.end()
			}
		}
		r.end()
	}
	return r.done(), nil
}

type run struct {
	Options
	command []string
	report  *Report
	// node is the present one, nil if the next case needs a new one.
	node *node
	// failures counts the cases in a row in which the proxy ended or did not settle.
	failures int
	// deaf are the families that the proxy does not serve. They are known once it has settled for the first time.
	deaf  []Family
	known bool
	kept  bool
}

func newRun(o Options) (*run, error) {
	command, err := split(o.Command)
	if err != nil {
		return nil, err
	}
	if o.Families == nil {
		o.Families = []Family{IPv4, IPv6}
	}
	if o.Ready == 0 {
		o.Ready = 30 * time.Second
	}
	return &run{Options: o, command: command, report: &Report{Proxy: o.Command, Started: time.Now()}}, nil
}

func (r *run) done() *Report {
	r.report.Seconds = time.Since(r.report.Started).Seconds()
	return r.report
}

// end ends the present node.
func (r *run) end() {
	if r.node != nil {
		r.node.close()
		r.node = nil
	}
}

// group is cases with one configuration.
type group struct {
	config map[string]any
	cases  []flows.Case
}

// groups puts cases with the same configuration together, in the order of the first of each.
func (r *run) groups(cases []flows.Case) (groups []*group, err error) {
	byConfig := map[string]*group{}
	for _, c := range cases {
		config, err := r.configOf(c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		key, err := yaml.Marshal(config)
		if err != nil {
			return nil, err
		}
		if byConfig[string(key)] == nil {
			byConfig[string(key)] = &group{config: config}
			groups = append(groups, byConfig[string(key)])
		}
		byConfig[string(key)].cases = append(byConfig[string(key)].cases, c)
	}
	return groups, nil
}

// configOf returns the fields of {config} for a case, nil if the command takes none.
func (r *run) configOf(c flows.Case) (config map[string]any, err error) {
	if !strings.Contains(r.Command, "{config}") {
		return nil, nil
	}
	data, err := c.Configuration()
	if err != nil {
		return nil, err
	}
	config = map[string]any{}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("config.yaml: %w", err)
	}
	merge(config, r.Config)
	return config, nil
}

// one runs a case and adds its result to the report.
func (r *run) one(ctx context.Context, g *group, c flows.Case) error {
	list := r.inFamilies(c.Flows())
	if !r.Promise.Claims(c) || len(list) == 0 {
		return nil
	}
	began := time.Now()
	result := Result{Case: c.Name, Flows: len(list)}
	switch reason, lacks := r.Promise.Lacks[c.Name]; {
	case lacks:
		result.Lacks = reason
	case c.HasConfig() && !strings.Contains(r.Command, "{config}"):
		result.Lacks = "the command takes no {config}"
	case r.failures >= maxFailures:
		result.Failure = fmt.Sprintf("not tried: the proxy failed %d times in a row", r.failures)
	default:
		if err := r.try(ctx, g, c, list, &result); err != nil {
			return err
		}
		if result.Failure == "" {
			r.failures = 0
		}
	}
	result.decide()
	result.Seconds = time.Since(began).Seconds()
	r.report.Results = append(r.report.Results, result)
	if r.Progress != nil {
		r.Progress(result)
	}
	if r.Keep != nil && result.Verdict == New && r.node != nil {
		r.Keep(r.node.commands())
		r.kept = true
	}
	if r.node != nil && r.node.failed {
		r.end()
	}
	return ctx.Err()
}

func (r *run) inFamilies(list []flows.Flow) []flows.Flow {
	return slices.DeleteFunc(slices.Clone(list), func(f flows.Flow) bool { return !slices.Contains(r.Families, familyOf(f.To.Addr())) })
}

// prepare puts the objects of a case in force, on the present node or a new one, and waits until the proxy has settled.
// The runner has the endpoints of all steps. If the proxy has failed, settled is false, and the result has the reason.
func (r *run) prepare(ctx context.Context, config map[string]any, c flows.Case, steps []flows.Step, result *Result) (runner *flows.Runner, settled bool, err error) {
	objects, err := flows.Objects(c.Manifests())
	if err != nil {
		return nil, false, fmt.Errorf("manifests.yaml: %w", err)
	}
	setDefaults(objects)
	if r.node == nil {
		nodes, err := c.Nodes()
		if err != nil {
			return nil, false, err
		}
		if r.node, err = newNode(r.command, config, nodes, r.served(), r.Kubernetes); err != nil {
			return nil, false, err
		}
	}
	n := r.node
	if err := n.replace(objects); err != nil {
		return nil, false, err
	}
	if n.proxy == nil { // It finds the objects of its first case at its start.
		if err := n.start(); err != nil {
			return nil, false, err
		}
	}
	all := slices.Clone(objects)
	for _, s := range steps {
		setDefaults(s.Objects)
		all = append(all, s.Objects...)
	}
	if runner, err = flows.NewRunner(n.lab, flows.EndpointsOf(all)); err != nil {
		return nil, false, err
	}
	runner.Patience = patience
	return runner, r.settled(ctx, result), nil
}

// try runs a case on the present node or a new one. The error is that of the tool, the proxy's go into the result.
func (r *run) try(ctx context.Context, g *group, c flows.Case, list []flows.Flow, result *Result) (err error) {
	steps, err := c.Steps()
	if err != nil {
		return err
	}
	runner, settled, err := r.prepare(ctx, g.config, c, steps, result)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	if !settled {
		return nil
	}
	if result.Differences, err = r.differences(runner, c, list); err != nil {
		return err
	}
	for i, s := range steps {
		if err := r.step(ctx, runner, c, s, fmt.Sprintf("step %d", i+1), result); err != nil {
			return fmt.Errorf("step %d (%s): %w", i+1, s, err)
		}
	}
	if err := r.node.proxy.hasEnded(); err != nil && result.Failure == "" {
		r.fail(result, err)
	}
	if len(result.Differences) > 0 {
		result.Manifests, result.Ruleset = string(c.Manifests()), r.node.ruleset()
	}
	return nil
}

// step does a step of the case. Nothing is done once the proxy has failed.
func (r *run) step(ctx context.Context, runner *flows.Runner, c flows.Case, s flows.Step, name string, result *Result) error {
	n := r.node
	if n.failed {
		return nil
	}
	switch {
	case s.Apply != "":
		if err := errors.Join(n.apply(s.Objects), n.newProbe()); err != nil {
			return err
		}
	case s.Delete != "":
		if err := errors.Join(n.remove(s.Objects), n.newProbe()); err != nil {
			return err
		}
	case s.Restart:
		n.stop()
		if err := errors.Join(n.newProbe(), n.start()); err != nil {
			return err
		}
	case s.Flush:
		if err := n.flush(); err != nil {
			return err
		}
	case s.Wait != "":
		time.Sleep(s.Pause)
		return nil
	default:
		list := r.inFamilies(s.Flows)
		result.Flows += len(list)
		differences, err := r.differencesOfStep(ctx, runner, c, list)
		for _, d := range differences {
			d.Step = name
			result.Differences = append(result.Differences, d)
		}
		return err
	}
	if !r.settled(ctx, result) {
		result.Failure = fmt.Sprintf("%s (%s): %s", name, s, result.Failure)
	}
	return nil
}

// differencesOfStep is differences for flows after a change. Flows with a port of their own are sent again for a while if
// they differ: connection tracking follows a change a moment later than the rules.
func (r *run) differencesOfStep(ctx context.Context, runner *flows.Runner, c flows.Case, list []flows.Flow) (all []Difference, err error) {
	var once, again []flows.Flow
	for _, f := range list {
		if f.Port != 0 {
			again = append(again, f)
		} else {
			once = append(once, f)
		}
	}
	if all, err = r.differences(runner, c, once); err != nil {
		return nil, err
	}
	isNew := func(d Difference) bool { return d.Known == "" }
	for until := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		differences, err := r.differences(runner, c, again)
		if err != nil || !slices.ContainsFunc(differences, isNew) || time.Now().After(until) || ctx.Err() != nil {
			return append(all, differences...), err
		}
	}
}

// settled waits until the proxy has settled in one family at least, and notes in the result if it has not in all.
func (r *run) settled(ctx context.Context, result *Result) bool {
	ctx, cancel := context.WithTimeout(ctx, r.Ready)
	defer cancel()
	served, err := r.node.settle(ctx)
	switch {
	case err == nil:
		r.known = true
	case r.known || len(served) == 0 || r.node.proxy.hasEnded() != nil:
		r.fail(result, err)
		return false
	default:
		r.known = true
		r.deaf = slices.DeleteFunc(slices.Clone(r.node.families), func(f Family) bool { return slices.Contains(served, f) })
		r.node.families = served
		result.Failure = err.Error()
	}
	return true
}

// served returns the families that the proxy serves, as far as one knows. Later cases do not wait for the others again.
func (r *run) served() []Family {
	return slices.DeleteFunc(slices.Clone(r.Families), func(f Family) bool { return slices.Contains(r.deaf, f) })
}

// fail notes that the proxy failed. The next case gets a new node.
func (r *run) fail(result *Result, err error) {
	r.failures++
	result.Failure, result.Output = err.Error(), r.node.proxy.output.String()
	result.Ruleset, r.node.failed = r.node.ruleset(), true
}

// differences sends flows and returns those that ended otherwise than the corpus expects,
// each with whether that is known.
func (r *run) differences(runner *flows.Runner, c flows.Case, list []flows.Flow) (all []Difference, err error) {
	var sent []flows.Flow
	for _, f := range list {
		if slices.Contains(r.deaf, familyOf(f.To.Addr())) {
			all = append(all, newDifference(&flows.Failure{Flow: f, Seen: fmt.Sprintf("not sent: the proxy does not serve %s", familyOf(f.To.Addr()))}))
			continue
		}
		sent = append(sent, f)
	}
	ofSent, err := r.differencesOf(runner, c, runner.Failures(sent))
	return append(all, ofSent...), err
}

// differencesOf returns the difference of each failure, with the reason of the promise if it is known.
func (r *run) differencesOf(runner *flows.Runner, c flows.Case, failures []*flows.Failure) (all []Difference, err error) {
	var again []flows.Flow
	of := map[string]int{}
	for _, failure := range failures {
		d := newDifference(failure)
		for _, k := range r.Promise.Differences {
			if !k.About(c, failure.Flow) {
				continue
			}
			instead, checked, err := k.Instead(failure.Flow)
			if err != nil {
				return nil, err
			}
			d.Known = k.Reason
			if checked {
				again, of[instead.Name] = append(again, instead), len(all)
			}
			break
		}
		all = append(all, d)
	}
	// What is known to be otherwise must be as it is known.
	for _, failure := range runner.Failures(again) {
		d := &all[of[failure.Flow.Name]]
		d.Seen = fmt.Sprintf("%s; with the known difference (%s) expected: %s", failure.Seen, d.Known, failure.Flow.Expect)
		d.Known = ""
	}
	return all, nil
}
