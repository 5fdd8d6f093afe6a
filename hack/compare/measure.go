package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"time"
)

// span is the time that something took, and the processor time that it cost until the proxy was idle again.
type span struct {
	took, cpu time.Duration
	// sync is the time of the Syncs meanwhile, by the proxy's own metric.
	sync time.Duration
	// over says that it took longer than took, where measuring ended.
	over bool
	// none says that this was not measured, or that the proxy has nothing to measure it with: kube-proxy in iptables mode has
	// no table of its own.
	none bool
}

// result has the measurements of one contender.
type result struct {
	name                                string
	cold, change, restart, flush, table span
	peak                                int64
	// floor is the kernel's time to commit the tables of the start, encoded before; 0 for proxies of others.
	floor time.Duration
}

// measure takes one contender through all of it. There are no tables before, and none after.
func (c *cluster) measure(ctx context.Context, p contender, o options) (r result, err error) {
	none := span{none: true}
	r = result{name: p.name, change: none, restart: none, flush: none, table: none}
	say := func(what string) {
		if o.verbose {
			fmt.Fprintf(os.Stderr, "%s %s %s: %s\n", time.Now().Format(time.TimeOnly), c.size, p.name, what)
		}
	}
	say("cold sync")
	proxy, err := c.timedStart(ctx, p, o, &r.cold, c.first, c.last)
	if err != nil {
		return r, err
	}
	if err := c.measureRunning(ctx, proxy, p, o, &r, say); err != nil {
		proxy.kill()
		return r, err
	}
	r.peak = proxy.peak.Load()
	if r.cold.over || r.change.over {
		proxy.kill()
		return r, c.reset()
	}
	if err := proxy.stop(); err != nil {
		return r, err
	}
	if !o.brief {
		say("restart")
		if err := c.measureRestart(ctx, p, o, &r); err != nil {
			return r, err
		}
	}
	return r, c.reset()
}

// measureRunning measures what a proxy does that has started.
func (c *cluster) measureRunning(ctx context.Context, proxy *process, p contender, o options, r *result, say func(string)) (err error) {
	if r.cold.over {
		return nil
	}
	if err := c.refuseWhatNftCannotRemove(ctx); err != nil {
		return err
	}
	if p.path == o.ours {
		say("floor")
		if r.floor, err = c.floor(ctx); err != nil {
			return err
		}
	}
	say("one more Service")
	if r.change, err = c.timedChanges(ctx, proxy, o); err != nil || r.change.over || o.brief {
		return err
	}
	say("flush ruleset")
	if r.flush, err = c.timedRepair(ctx, proxy, o, "flush ruleset"); err != nil {
		return err
	}
	has, err := c.hasTable(ctx)
	if err != nil || !has {
		return err
	}
	say("delete table")
	r.table, err = c.timedRepair(ctx, proxy, o, "delete table ip kube-proxy")
	return err
}

// measureRestart starts a proxy over its tables, after a change.
func (c *cluster) measureRestart(ctx context.Context, p contender, o options, r *result) error {
	meanwhile, err := c.addAnswering()
	if err != nil {
		return err
	}
	restarted, err := c.timedStart(ctx, p, o, &r.restart, meanwhile)
	if err != nil {
		return err
	}
	r.peak = max(r.peak, restarted.peak.Load())
	if r.restart.over {
		restarted.kill()
		return nil
	}
	return restarted.stop()
}

// timedStart starts a proxy and waits until it serves the addresses, or the limit is over. After an error nothing runs.
func (c *cluster) timedStart(ctx context.Context, p contender, o options, s *span, addrs ...netip.AddrPort) (*process, error) {
	begin := time.Now()
	proxy, err := c.start(p, o.verbose)
	if err != nil {
		return nil, err
	}
	if err := c.timeStart(ctx, proxy, begin, o.limit, s, addrs); err != nil {
		proxy.kill()
		return nil, err
	}
	return proxy, nil
}

func (c *cluster) timeStart(ctx context.Context, proxy *process, begin time.Time, limit time.Duration, s *span, addrs []netip.AddrPort) error {
	*s = span{}
	serving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-proxy.ended:
			cancel(errors.New("the proxy has ended; -v keeps its log"))
		case <-serving.Done():
		}
	}()
	for _, addr := range addrs {
		at, err := c.untilServed(serving, addr, limit-time.Since(begin))
		if timedOut(serving, err) {
			s.took, s.over = limit, true
			return nil
		}
		if err != nil {
			return err
		}
		s.took = max(s.took, at.Sub(begin))
	}
	if err := proxy.waitIdle(); err != nil {
		return err
	}
	var err error
	if s.sync, err = c.syncTime(ctx); err != nil {
		return err
	}
	s.cpu, err = proxy.cpu()
	return err
}

// timedOut reports whether the wait for a Service ended because its time was over.
func timedOut(ctx context.Context, err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}

// timedChanges adds Services one by one, each when the proxy is done with the one before.
func (c *cluster) timedChanges(ctx context.Context, proxy *process, o options) (s span, err error) {
	var took, cpu, sync []time.Duration
	for range o.changes {
		one, err := c.timed(ctx, proxy, func(begin time.Time) (time.Time, error) {
			addr, err := c.addAnswering()
			if err != nil {
				return begin, err
			}
			return c.untilServed(ctx, addr, o.limit)
		})
		if timedOut(ctx, err) {
			return span{took: o.limit, over: true}, nil
		}
		if err != nil {
			return s, err
		}
		took, cpu, sync = append(took, one.took), append(cpu, one.cpu), append(sync, one.sync)
	}
	return span{took: median(took), cpu: median(cpu), sync: median(sync)}, nil
}

// timedRepair has somebody else remove the tables. If the proxy does not notice, another Service makes it.
func (c *cluster) timedRepair(ctx context.Context, proxy *process, o options, command string) (span, error) {
	over := false
	s, err := c.timed(ctx, proxy, func(begin time.Time) (time.Time, error) {
		if err := c.nft(command); err != nil {
			return begin, err
		}
		at, err := c.untilServed(ctx, c.last, o.patience)
		if timedOut(ctx, err) {
			over = true
			return begin.Add(o.patience), nil
		}
		return at, err
	})
	s.over = over
	if err != nil || !over {
		return s, err
	}
	if _, err := c.addAnswering(); err != nil {
		return s, err
	}
	if _, err := c.untilServed(ctx, c.last, o.limit); err != nil {
		return s, fmt.Errorf("after `nft %s` and a change: %w", command, err)
	}
	return s, proxy.waitIdle()
}

func (c *cluster) timed(ctx context.Context, proxy *process, do func(begin time.Time) (time.Time, error)) (s span, err error) {
	before, err := proxy.cpu()
	if err != nil {
		return s, err
	}
	synced, err := c.syncTime(ctx)
	if err != nil {
		return s, err
	}
	begin := time.Now()
	end, err := do(begin)
	if err != nil {
		return s, err
	}
	s.took = end.Sub(begin)
	if err := proxy.waitIdle(); err != nil {
		return s, err
	}
	after, err := c.syncTime(ctx)
	if err != nil {
		return s, err
	}
	s.sync = after - synced
	used, err := proxy.cpu()
	s.cpu = used - before
	return s, err
}

// reset removes what a contender left, for the next.
func (c *cluster) reset() error {
	if err := c.nft("flush ruleset"); err != nil {
		return err
	}
	return c.lab.Node.FlushConntrack()
}

func (c *cluster) nft(command string) error {
	return c.lab.Node.Do(func() error {
		out, err := exec.Command("nft", command).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft %s: %w\n%s", command, err, out)
		}
		return nil
	})
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
