package proxytest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/random"
	"github.com/nftproxy/nftproxy/tracker"
	"golang.org/x/sync/errgroup"
)

// RandomOptions say how to compare two proxies.
type RandomOptions struct {
	// Options are those of both proxies. Command is the one that is tested, and Promise says in what it is known to
	// differ from the other one. Fresh does not count.
	Options
	// Against is the command line of the proxy to compare with.
	Against string
	// Rounds is the number of random clusters, each with a seed of its own: Seed and the following ones.
	Rounds int
	Seed   uint64
	// Corpus has the Nodes and the configuration.
	Corpus fs.FS
	// Found, if set, gets each case that shows a difference.
	Found func(flows.Case) error
	// Log, if set, gets a line about what is going on.
	Log func(string)
}

// Bounds of a round.
const (
	flowsPerRound = 40
	// casesPerRound is the number of differences of a round that are made smaller. The other flows only count.
	casesPerRound = 3
)

// sureAfter bounds the wait for an answer once flows seem to differ: less than TCP takes to send its SYN again.
const sureAfter = 900 * time.Millisecond

// pair is two proxies on two nodes that are alike.
type pair struct {
	RandomOptions
	proxy, against *run
	report         *Report
	// failure is the result of a proxy that has failed.
	failure *Result
	// patience bounds the wait for an answer.
	patience time.Duration
	// compared counts the flows of the last comparison for which an expectation covers what the other proxy does, and
	// known are those of its differences that the promise names. They are not among the divergences.
	compared int
	known    []Difference
	kept     bool
}

// divergence is a flow that both proxies treat otherwise.
type divergence struct {
	// flow expects what one of them does.
	flow flows.Flow
	// seen is the flow's result with the other one.
	seen *flows.Failure
	// swapped says that flow expects what the proxy under test does, because no expectation covers what the other does.
	swapped bool
}

// RunRandom sends random flows to random Services through two proxies, and reports those with another result. The error
// says why the tool itself failed.
func RunRandom(ctx context.Context, o RandomOptions) (report *Report, err error) {
	if o.Rounds < 1 {
		return nil, fmt.Errorf("--random: %d random clusters, want 1 at least", o.Rounds)
	}
	p := &pair{RandomOptions: o}
	if p.proxy, err = newRun(o.Options); err != nil {
		return nil, fmt.Errorf("--proxy: %w", err)
	}
	other := o.Options
	other.Command = o.Against
	if p.against, err = newRun(other); err != nil {
		return nil, fmt.Errorf("--against: %w", err)
	}
	defer p.against.end()
	defer p.proxy.end()
	p.report = &Report{Proxy: fmt.Sprintf("%s against %s", o.Command, o.Against), Started: time.Now()}
	for i := range o.Rounds {
		err := p.round(ctx, o.Seed+uint64(i))
		if ctx.Err() != nil && i > 0 && !p.kept {
			p.log("interrupted after %d of %d random clusters", i, o.Rounds)
			break
		}
		if err != nil {
			return nil, fmt.Errorf("seed %d: %w", o.Seed+uint64(i), err)
		}
		if p.kept || p.exhausted() {
			break
		}
	}
	p.report.Seconds = time.Since(p.report.Started).Seconds()
	return p.report, nil
}

// exhausted notes that a proxy has failed too often to be tried again.
func (p *pair) exhausted() bool {
	for _, r := range p.sides() {
		if r.failures >= maxFailures {
			p.add(Result{Case: "random", Failure: fmt.Sprintf("no more tries: %s failed %d times in a row", p.nameOf(r), r.failures)}, time.Now())
			return true
		}
	}
	return false
}

func (p *pair) sides() [2]*run { return [2]*run{p.proxy, p.against} }

func (p *pair) nameOf(r *run) string {
	if r == p.against {
		return "--against"
	}
	return "--proxy"
}

// add adds a result to the report.
func (p *pair) add(r Result, began time.Time) {
	r.decide()
	r.Seconds = time.Since(began).Seconds()
	p.report.Results = append(p.report.Results, r)
	if p.Progress != nil {
		p.Progress(r)
	}
}

func (p *pair) log(format string, args ...any) {
	if p.Log != nil {
		p.Log(fmt.Sprintf(format, args...))
	}
}

// round compares the proxies on the random cluster of a seed.
func (p *pair) round(ctx context.Context, seed uint64) error {
	began := time.Now()
	name := fmt.Sprintf("random-%d", seed)
	objects, list := draw(seed, p.proxy.Families)
	p.failure, p.patience = nil, flows.ShortPatience
	found, of, err := p.differing(ctx, objects, list)
	compared, known := p.compared, p.known
	p.patience = sureAfter
	if err == nil && len(found) > 0 {
		// Once is by chance: a slow machine, or an endpoint that was not drawn.
		found, of, err = p.differing(ctx, objects, flowsOf(found))
	}
	if err != nil {
		return err
	}
	if p.failure != nil || len(found) == 0 {
		result := Result{Case: name, Flows: compared, Differences: known}
		if p.failure != nil {
			result.Failure, result.Output, result.Ruleset = p.failure.Failure, p.failure.Output, p.failure.Ruleset
			result.Manifests, err = manifestsOf(objects)
		}
		p.add(result, began)
		return err
	}
	p.log("%s: %d of %d flows differ; looking for the smallest manifests that show it", name, len(found), compared)
	for number := 1; len(found) > 0 && number <= casesPerRound && !p.kept; number++ {
		caseName := name
		if number > 1 {
			caseName = fmt.Sprintf("%s-%d", name, number)
		}
		if found, err = p.explain(ctx, caseName, seed, of, found, began); err != nil {
			return err
		}
		began = time.Now()
	}
	if len(found) > 0 && !p.kept {
		p.log("%s: %d more flows differ", name, len(found))
	}
	return nil
}

// explain looks for the smallest objects with which the first flow still differs, adds a result with all flows that
// differ with these, and returns the others.
func (p *pair) explain(ctx context.Context, name string, seed uint64, objects []apiservertest.Object, found []divergence, began time.Time) (rest []divergence, err error) {
	if err := p.fromClient(ctx, objects, found); err != nil {
		return nil, err
	}
	smallest, steps, err := p.shrink(ctx, objects, found[0])
	if err != nil {
		return nil, err
	}
	shown, _, err := p.differing(ctx, smallest, flowsOf(found))
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(shown, func(d divergence) bool { return d.flow.Name == found[0].flow.Name }) {
		p.log("%s: %s does not differ every time", name, found[0].flow.Name)
		smallest, shown = objects, found[:1]
	}
	measure, other := p.Against, p.Command
	if shown[0].swapped {
		measure, other = other, measure
	}
	comment := fmt.Sprintf("proxytest --random 1 --seed %d found this difference and shrank it in %d steps.\n"+
		"The flows expect what this proxy does: %s\nThey fail with this one: %s\n", seed, steps, measure, other)
	// Only flows with one of the proxies as their measure make a case.
	shown = slices.DeleteFunc(shown, func(d divergence) bool { return d.swapped != shown[0].swapped })
	c, err := flows.NewCase(p.Corpus, name, comment, smallest, flowsOf(shown))
	if err != nil {
		return nil, err
	}
	result := Result{Case: name, Flows: len(shown), Manifests: string(c.Manifests())}
	for _, d := range shown {
		difference := newDifference(d.seen)
		if d.swapped {
			difference.Seen = p.nameOf(p.against) + ": " + difference.Seen
		}
		result.Differences = append(result.Differences, difference)
	}
	if p.proxy.node != nil {
		result.Ruleset = p.proxy.node.ruleset()
	}
	p.add(result, began)
	if p.Found != nil {
		if err := p.Found(c); err != nil {
			return nil, err
		}
	}
	if p.Keep != nil && p.proxy.node != nil && p.against.node != nil {
		p.Keep(fmt.Sprintf("# %s\n%s# %s\n%s", p.nameOf(p.proxy), p.proxy.node.commands(), p.nameOf(p.against), p.against.node.commands()))
		p.kept = true
	}
	return slices.DeleteFunc(found[1:], func(d divergence) bool {
		return slices.ContainsFunc(shown, func(s divergence) bool { return s.flow.Name == d.flow.Name })
	}), nil
}

// fromClient has the client send the first flow instead of a pod, if it still differs
// then: a pod needs an EndpointSlice.
func (p *pair) fromClient(ctx context.Context, objects []apiservertest.Object, found []divergence) error {
	f := found[0].flow
	if !isPod(f) {
		return nil
	}
	f.From = flows.FromClient
	f.Name = nameOf(f)
	instead, _, err := p.differing(ctx, objects, []flows.Flow{f})
	if err == nil && len(instead) > 0 {
		found[0] = instead[0]
	}
	p.failure = nil
	return err
}

// isPod reports whether a pod sends the flow that is there only if an EndpointSlice has it.
func isPod(f flows.Flow) bool { return string(f.From) == f.From.Addr(f.To.Addr()).String() }

func nameOf(f flows.Flow) string { return fmt.Sprintf("%s from %s to %s", f.Protocol, f.From, f.To) }

// draw draws objects, and flows to them from hosts that the lab has then.
func draw(seed uint64, families []Family) ([]apiservertest.Object, []flows.Flow) {
	places := slices.DeleteFunc(slices.Clone(random.Places), func(p *random.Place) bool { return !slices.Contains(families, Family(p.Family)) })
	choose := random.Seeded(seed)
	drawn := choose.Objects(places)
	objects := listOf(drawn)
	t := tracker.New(tracker.Options{NodeName: lab.NodeName})
	drawn.Feed(t)
	list := choose.Flows(places, t.Changes(), flowsPerRound)
	endpoints := flows.EndpointsOf(objects)
	list = slices.DeleteFunc(list, func(f flows.Flow) bool {
		from := f.From.Addr(f.To.Addr())
		lives := slices.ContainsFunc(endpoints, func(e flows.Endpoint) bool { return e.Addr == from })
		// What a host sends to itself does not pass the node.
		return isPod(f) && !lives || from == f.To.Addr() && f.From != flows.FromNode
	})
	for i := range list {
		list[i].Name = nameOf(list[i])
	}
	return objects, list
}

func listOf(o manifests.Objects) (list []apiservertest.Object) {
	for _, cidr := range o.ServiceCIDRs {
		list = append(list, cidr)
	}
	for _, s := range o.Services {
		list = append(list, s)
	}
	for _, s := range o.EndpointSlices {
		list = append(list, s)
	}
	return list
}

func flowsOf(found []divergence) (list []flows.Flow) {
	for _, d := range found {
		list = append(list, d.flow)
	}
	return list
}

func manifestsOf(objects []apiservertest.Object) (string, error) {
	text, err := flows.Manifests(objects)
	return string(text), err
}

// differing returns the flows that the proxies treat otherwise, and the objects with which they do. With session
// affinity the endpoint of a client is by chance. So flows are first compared without any; if they do not differ then,
// and the objects have some, once more with it. Nothing differs if a proxy fails: p.failure says so.
func (p *pair) differing(ctx context.Context, objects []apiservertest.Object, list []flows.Flow) (found []divergence, of []apiservertest.Object, err error) {
	p.known = nil
	plain, changed := withoutAffinity(objects)
	found, learned, err := p.compare(ctx, plain, list, p.learn)
	p.compared = len(learned)
	if err != nil || len(found) > 0 || !changed || p.failure != nil {
		return found, plain, err
	}
	if list = aloneWithTheirClient(learned); len(list) == 0 {
		return nil, objects, nil
	}
	found, _, err = p.compare(ctx, objects, list, p.learnStickiness)
	return found, objects, err
}

// aloneWithTheirClient returns flows with several endpoints, one for each sender and family: the
// flows of one client could share an endpoint.
func aloneWithTheirClient(list []flows.Flow) (alone []flows.Flow) {
	for _, f := range list {
		same := func(o flows.Flow) bool {
			return o.From == f.From && o.To.Addr().Is4() == f.To.Addr().Is4()
		}
		if len(f.Expect.Endpoints) > 1 && !slices.ContainsFunc(alone, same) {
			alone = append(alone, f)
		}
	}
	return alone
}

// runners send flows through the two nodes.
type runners struct{ proxy, against *flows.Runner }

// learner returns flows with what to expect of them: what the other proxy does, and in
// swapped what the proxy under test does.
type learner func(r runners, list []flows.Flow) (learned, swapped []flows.Flow)

// compare puts objects in force on both nodes, learns what to expect of flows, and judges the proxies by that.
func (p *pair) compare(ctx context.Context, objects []apiservertest.Object, list []flows.Flow, learn learner) (found []divergence, learned []flows.Flow, err error) {
	c, err := flows.NewCase(p.Corpus, "random", "", objects, nil)
	if err != nil {
		return nil, nil, err
	}
	r, err := p.prepare(ctx, c)
	defer func() { err = errors.Join(err, p.release(r), ctx.Err()) }()
	if err != nil || p.failure != nil {
		return nil, nil, err
	}
	r.proxy.Patience, r.against.Patience = 2*p.patience, 2*p.patience
	list = p.proxy.inFamilies(list)
	list = slices.DeleteFunc(list, func(f flows.Flow) bool {
		family := familyOf(f.To.Addr())
		return slices.Contains(p.proxy.deaf, family) || slices.Contains(p.against.deaf, family)
	})
	learned, swapped := learn(r, list)
	if found, err = p.news(r, c, judge(r, learned, swapped)); err != nil {
		return nil, nil, err
	}
	for _, side := range p.sides() {
		if err := side.node.proxy.hasEnded(); err != nil {
			failed := &Result{}
			side.fail(failed, err)
			p.fail(side, failed)
		}
	}
	if p.failure != nil {
		return nil, nil, nil
	}
	return found, learned, nil
}

// news leaves out what the promise names, and adds that to known.
func (p *pair) news(r runners, c flows.Case, found []divergence) (news []divergence, err error) {
	var failures []*flows.Failure
	for _, d := range found {
		failures = append(failures, d.seen)
	}
	differences, err := p.proxy.differencesOf(r.proxy, c, failures)
	for i, d := range differences {
		if d.Known != "" {
			p.known = append(p.known, d)
		} else {
			news = append(news, found[i])
		}
	}
	return news, err
}

// judge returns the flows on which the two proxies disagree.
func judge(r runners, learned, swapped []flows.Flow) (found []divergence) {
	for _, failure := range r.proxy.Failures(learned) {
		found = append(found, divergence{flow: failure.Flow, seen: failure})
	}
	for _, failure := range r.against.Failures(swapped) {
		found = append(found, divergence{flow: failure.Flow, seen: failure, swapped: true})
	}
	return slices.DeleteFunc(found, func(d divergence) bool {
		measure := r.against
		if d.swapped {
			measure = r.proxy
		}
		return len(measure.Failures([]flows.Flow{d.flow})) > 0
	})
}

// learn expects what the other proxy does; or, if no expectation covers that, what the proxy under test does.
func (p *pair) learn(r runners, list []flows.Flow) (learned, swapped []flows.Flow) {
	var strange []flows.Flow
	for _, l := range r.against.Learn(list, p.patience) {
		if l.Strange != "" {
			strange = append(strange, l.Flow)
			continue
		}
		learned = append(learned, l.Flow)
	}
	for _, l := range r.proxy.Learn(strange, p.patience) {
		if l.Strange == "" {
			swapped = append(swapped, l.Flow)
		}
	}
	return learned, swapped
}

// learnStickiness expects that a flow stays with one of its endpoints, if it does so with the other proxy.
func (p *pair) learnStickiness(r runners, list []flows.Flow) (learned, swapped []flows.Flow) {
	sticky := slices.Clone(list)
	for i := range sticky {
		sticky[i].Expect.Sticky = true
	}
	failures := r.against.Failures(sticky)
	for i, f := range sticky {
		if slices.ContainsFunc(failures, func(failure *flows.Failure) bool { return failure.Flow.Name == f.Name }) {
			f = list[i]
		}
		learned = append(learned, f)
	}
	return learned, nil
}

// prepare puts a case in force on both nodes at the same time.
func (p *pair) prepare(ctx context.Context, c flows.Case) (r runners, err error) {
	var both errgroup.Group
	results := map[*run]*Result{p.proxy: {}, p.against: {}}
	settled := [2]bool{}
	for i, side := range p.sides() {
		config, err := side.configOf(c)
		if err != nil {
			return r, err
		}
		both.Go(func() (err error) {
			into := &r.proxy
			if side == p.against {
				into = &r.against
			}
			*into, settled[i], err = side.prepare(ctx, config, c, nil, results[side])
			return err
		})
	}
	if err := both.Wait(); err != nil {
		return r, err
	}
	for i, side := range p.sides() {
		if settled[i] {
			side.failures = 0
		}
		if results[side].Failure != "" {
			p.fail(side, results[side])
		}
	}
	return r, nil
}

// fail notes that a proxy has failed.
func (p *pair) fail(side *run, result *Result) {
	result.Failure = p.nameOf(side) + ": " + result.Failure
	p.failure = result
}

// release closes runners, and the nodes that are of no use any more.
func (p *pair) release(r runners) error {
	var errs []error
	for _, runner := range []*flows.Runner{r.proxy, r.against} {
		if runner != nil {
			errs = append(errs, runner.Close())
		}
	}
	for _, side := range p.sides() {
		if side.node != nil && side.node.failed {
			side.end()
		}
	}
	return errors.Join(errs...)
}
