package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// How long connections run before the change, and after the last one to the removed pod.
const (
	before = 500 * time.Millisecond
	after  = 500 * time.Millisecond
)

// interval is the time between two connections of one stream; there are two streams.
const interval = 4 * time.Millisecond

// replacement is one pod that takes the place of another.
type replacement struct{ removed, added pod }

// change replaces a pod while connections run, and measures what they notice.
func (d *demo) change(ctx context.Context) error {
	r := replacement{oldPod, newcomer}
	d.say("\n4. %s replaces %s while connections run\n", r.added.name, r.removed.name)
	return d.replace(ctx, r, func(rename func() error) (time.Time, error) {
		renamed := time.Now()
		return renamed, rename()
	}, func(begin time.Time, all observations) {
		d.say("")
		d.say("    manifest renamed into place            0.0 ms")
		d.say("    first connection answered by %s  %9s", r.added.name, milliseconds(all.firstNew.Sub(begin)))
		d.say("    last connection answered by %s   %9s", r.removed.name, milliseconds(all.lastOld.Sub(begin)))
		d.say("    (Of this, kube-proxy waits 50 ms to see that nobody writes to the directory any more.)")
	})
}

// replace has one pod take the place of another while connections run. act makes the manifests say so by
// calling rename, and returns since when the proxy could know it. tell prints what the connections
// noticed. replace fails if a connection did.
func (d *demo) replace(ctx context.Context, r replacement, act func(rename func() error) (time.Time, error), tell func(time.Time, observations)) error {
	if err := d.startPod(r.added); err != nil {
		return err
	}
	rename, err := stageReplacement(d.manifests, r)
	if err != nil {
		return err
	}
	long, err := d.openLasting(ctx, r.removed)
	if err != nil {
		return err
	}
	defer long.conn.Close()
	// Streams that are still running when something failed must end too.
	running, stop := context.WithCancel(ctx)
	defer stop()
	echoes := long.keepUsing(running)
	streams := []*stream{
		startStream(running, client{d.lab.Client, "tcp", webClusterIP[0]}, r),
		startStream(running, client{d.lab.Outside, "tcp", webLoadBalancer[1]}, r),
	}
	if err := sleep(ctx, before); err != nil {
		return err
	}
	begin, err := act(rename)
	if err != nil {
		return err
	}
	if err := awaitHandover(ctx, streams); err != nil {
		return err
	}
	// Only now does the pod stop to serve, as one that Kubernetes gives time to terminate. A
	// connection that still reached it would be refused, and count as failed.
	d.servers[r.removed.name].close()
	if err := sleep(ctx, after); err != nil {
		return err
	}
	stop()
	all := d.collect(streams)
	tell(begin, all)
	return d.judge(begin, all, long.reached, <-echoes)
}

// collect waits until the streams have ended, and prints how many connections each had.
func (d *demo) collect(streams []*stream) (all observations) {
	for _, s := range streams {
		<-s.ended
		d.say("    %-8s %4d connections to %-22s %d failed", s.client.host.Name, s.seen.total, s.client.to.String()+",", s.seen.failed)
		all.merge(s.seen)
	}
	return all
}

// judge fails if a connection did, and tells how the one fared that was open all the time.
func (d *demo) judge(begin time.Time, all observations, lasting netip.AddrPort, echoes echoResult) error {
	d.say("\n    A connection opened before, to %s, stayed alive: %d of %d lines came back.", lasting, echoes.returned, echoes.sent)
	if all.failed > 0 {
		return fmt.Errorf("%d of %d connections failed, the first %s after the change, with: %w; kube-proxy said last: %s",
			all.failed, all.total, milliseconds(all.failedAt.Sub(begin)), all.firstFailure, d.proxy.lastWords())
	}
	if echoes.err != nil {
		return fmt.Errorf("the connection to %s broke: %w", lasting, echoes.err)
	}
	return nil
}

// awaitHandover waits until the new pod gets connections and the old one gets none.
func awaitHandover(ctx context.Context, streams []*stream) error {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
		over := true
		for _, s := range streams {
			seen := s.observed()
			over = over && !seen.firstNew.IsZero() && time.Since(seen.lastOld) > after
		}
		if over {
			return nil
		}
	}
	return errors.New("the change had no effect within 5 s")
}

// sleep returns early, with an error, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// observations has the results of a stream of connections so far.
type observations struct {
	replacement
	total, failed int
	firstFailure  error
	failedAt      time.Time
	// firstNew is the time of the new pod's first answer, lastOld of the old pod's last answer.
	firstNew, lastOld time.Time
}

func (o *observations) add(r reply, err error) {
	o.total++
	if err != nil {
		o.failed++
		if o.firstFailure == nil {
			o.firstFailure, o.failedAt = err, time.Now()
		}
		return
	}
	switch addr := r.reached.Addr(); {
	case o.added.has(addr) && o.firstNew.IsZero():
		o.firstNew = r.answered
	case o.removed.has(addr):
		o.lastOld = r.answered
	}
}

func (o *observations) merge(other observations) {
	o.total += other.total
	o.failed += other.failed
	if other.firstFailure != nil && (o.firstFailure == nil || other.failedAt.Before(o.failedAt)) {
		o.firstFailure, o.failedAt = other.firstFailure, other.failedAt
	}
	if o.firstNew.IsZero() || other.firstNew.Before(o.firstNew) {
		o.firstNew = other.firstNew
	}
	if other.lastOld.After(o.lastOld) {
		o.lastOld = other.lastOld
	}
}

// stream is one connection after the other, in the background.
type stream struct {
	client client
	ended  chan struct{}
	// mu guards seen until ended is closed.
	mu   sync.Mutex
	seen observations
}

func (s *stream) observed() observations {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

func startStream(ctx context.Context, c client, r replacement) *stream {
	s := &stream{client: c, ended: make(chan struct{}), seen: observations{replacement: r}}
	go func() {
		defer close(s.ended)
		// All that can go wrong is counted, and a host that cannot be entered counts as well.
		if err := c.host.Do(func() error { s.run(ctx); return nil }); err != nil {
			s.note(reply{}, err)
		}
	}()
	return s
}

func (s *stream) run(ctx context.Context) {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			s.note(s.client.ask(patience))
		}
	}
}

func (s *stream) note(r reply, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.add(r, err)
}

// tally counts the replies of one burst.
type tally struct {
	byEndpoint map[netip.Addr]int
	// bySource counts what the servers saw; kept are the sources that were the client's own.
	bySource map[netip.Addr]int
	kept     map[netip.Addr]bool
	total    int
}

func newTally() *tally {
	return &tally{byEndpoint: map[netip.Addr]int{}, bySource: map[netip.Addr]int{}, kept: map[netip.Addr]bool{}}
}

func (t *tally) add(r reply) {
	t.byEndpoint[r.reached.Addr()]++
	t.bySource[r.seen]++
	t.kept[r.seen] = r.seen == r.own
	t.total++
}

// sources says whom the endpoints saw.
func (t *tally) sources() string {
	var kept, masqueraded int
	var seen []string
	for addr, n := range t.bySource {
		if t.kept[addr] {
			kept += n
			seen = append(seen, addr.String())
		} else {
			masqueraded += n
		}
	}
	switch {
	case masqueraded == 0:
		return "the client's own, " + strings.Join(seen, ", ") + " (kept)"
	case kept == 0:
		return "an address of node-1 (masqueraded)"
	}
	return fmt.Sprintf("kept %d times, masqueraded %d times", kept, masqueraded)
}

// barWidth is as long as the bar of an endpoint that gets everything. Half of it fits a column.
const barWidth = 60

// printTallies prints an IPv4 and an IPv6 burst beside each other, a line for each pod.
func printTallies(w io.Writer, pods []pod, tallies [2]*tally) {
	fmt.Fprintf(w, "    %-16s%-34s%s\n", "endpoint", "IPv4", "IPv6")
	for _, p := range pods {
		line := fmt.Sprintf("    %-16s", p.name+" "+p.node)
		for i, t := range tallies {
			n := t.byEndpoint[p.addrs[i]]
			line += fmt.Sprintf("%3d %-30s", n, strings.Repeat("#", n*barWidth/t.total))
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
	for i, family := range []string{"IPv4", "IPv6"} {
		fmt.Fprintf(w, "    source address seen over %s: %s\n", family, tallies[i].sources())
	}
}
