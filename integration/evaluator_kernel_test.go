package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/random"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"
)

// flowsPerRuleset is the number of flows through each random ruleset.
const flowsPerRuleset = 40

func init() {
	flag.DurationVar(&flows.ShortPatience, "short-patience", flows.ShortPatience, "how long a connection waits where silence is among what is expected")
}

func TestEvaluator(t *testing.T) {
	t.Parallel()
	t.Run("agrees with the kernel", testEvaluatorAgreesWithTheKernel)
	t.Run("agrees with the kernel on any rules", testEvaluatorAgreesWithTheKernelOnAnyRules)
}

// The kernel treats random packets through the rulesets of random models as the evaluator
// predicts. rapid prints how to repeat a case that fails.
func testEvaluatorAgreesWithTheKernel(t *testing.T) {
	b := newBench(t)
	rapid.Check(t, func(rt *rapid.T) {
		d := newGenerator(rt)
		config, m := d.config(), d.model()
		tables := compiled(rt, config, m)
		c := b.load(rt, tables)
		if err := c.compare(d.Flows(random.Places, m, flowsPerRuleset)); err != nil {
			rt.Fatalf("%+v\n%s\n%v", config, portsOf(m), err)
		}
		if err := c.checkAdded(tables); err != nil {
			rt.Fatalf("%+v\n%s\n%v", config, portsOf(m), err)
		}
	})
	b.tally.expectAll(t)
}

// bench is a lab in which rulesets are tried.
type bench struct {
	lab    *lab.Lab
	conn   *nft.Conn
	runner *flows.Runner
	host   evaluator.Host
	tally  *tally
}

func newBench(t *testing.T) *bench {
	t.Helper()
	l := lab.ForTest(t)
	runner, err := flows.NewRunner(l, random.Endpoints())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := runner.Close(); err != nil {
			t.Error(err)
		}
	})
	return &bench{lab: l, conn: lab.Conn(t, l.Node), runner: runner, host: hostInLab(t, l), tally: &tally{counts: map[string]int{}}}
}

// load puts tables in force, and forgets all connections.
func (b *bench) load(t failing, tables []*nft.Table) *comparison {
	t.Helper()
	var tx nft.Transaction
	for _, table := range tables {
		tx.Append(nft.Replace(table))
	}
	if _, err := b.conn.Commit(context.Background(), tx); err != nil {
		t.Fatalf("%v\n%s", err, flows.PrintTables(tables))
	}
	if err := b.lab.Node.FlushConntrack(); err != nil {
		t.Fatal(err)
	}
	return &comparison{bench: b, evaluator: evaluator.New(tables, b.host), may: map[string]bool{}, must: map[string]bool{}}
}

// comparison sends flows through a ruleset and compares with what the evaluator says.
type comparison struct {
	*bench
	evaluator *evaluator.Evaluator

	// mu guards may and must: the elements that connections can have added to dynamic maps, and those that they must have.
	mu        sync.Mutex
	may, must map[string]bool
}

// tally counts what was observed, to show that a test saw something of everything.
type tally struct {
	// mu guards counts.
	mu     sync.Mutex
	counts map[string]int
}

func (t *tally) add(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[what]++
}

func (t *tally) expectAll(test *testing.T) {
	test.Helper()
	test.Logf("connections by what became of them: %v", t.counts)
	for _, kind := range []any{flows.Refused, flows.Dropped, flows.Untouched, flows.Kept, flows.Masqueraded} {
		if t.counts[fmt.Sprint(kind)] == 0 {
			test.Errorf("none was %s", kind)
		}
	}
}

// compare sends all flows at the same time.
func (c *comparison) compare(list []flows.Flow) error {
	list, err := c.independent(list)
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(64)
	for _, f := range list {
		all.Go(func() error {
			if err := c.compareFlow(f); err != nil {
				return fmt.Errorf("%s %s to %s: %w", f.Protocol, f.From, f.To, err)
			}
			return nil
		})
	}
	return all.Wait()
}

// independent leaves out flows whose client another flow can add to a map: all addresses of a Service port with
// session affinity share a map of clients.
func (c *comparison) independent(list []flows.Flow) (alone []flows.Flow, err error) {
	taken := map[string]bool{}
	for _, f := range list {
		fates, err := c.evaluator.Fates(packetInLab(c.host, f))
		if err != nil {
			return nil, err
		}
		clients := map[string]bool{}
		shared := false
		for _, fate := range fates {
			for _, l := range fate.Added {
				client := fmt.Sprintf("%s %s %x", l.Family, l.Map, l.Element.Key)
				clients[client] = true
				shared = shared || taken[client]
			}
		}
		if shared {
			c.tally.add("shares its client with another flow")
			continue
		}
		maps.Copy(taken, clients)
		alone = append(alone, f)
	}
	return alone, nil
}

// fewFates bounds the fates of a flow of which a test must see each. Of more fates, some are too
// improbable to come up.
const fewFates = 4

// compareFlow makes connections until each fate of the first one was seen. Each must have one of
// the fates that the evaluator gives it, knowing what those before it added.
func (c *comparison) compareFlow(f flows.Flow) error {
	var added []evaluator.Added
	var unseen map[string]bool
	for i := 0; ; i++ {
		fates, err := c.evaluator.Fates(packetInLab(c.host, f), added...)
		if err != nil {
			return err
		}
		if !observable(c.lab, f, fates) {
			c.tally.add("not observable")
			return nil
		}
		expectations := c.expectations(f, fates)
		if unseen == nil {
			unseen = distinct(expectations)
		}
		met, became, err := c.runner.Observe(f, expectations)
		if err != nil {
			return err
		}
		if len(met) == 0 {
			return fmt.Errorf("connection %d %s; expected:\n%s", i+1, became, fates)
		}
		for _, m := range met {
			delete(unseen, describe(expectations[m]))
		}
		c.tally.add(kind(expectations[met[0]]))
		c.record(fates, met)
		added = append(added, fates[met[0]].Added...)
		switch {
		case len(unseen) == 0, i >= 3 && (len(fates) > fewFates || !canCome(unseen, expectations)):
			return nil
		case i > 40*fewFates:
			return fmt.Errorf("none of %d connections came to %v:\n%s", i+1, unseen, fates)
		}
	}
}

// canCome reports whether a connection that expects this can show anything that was not seen yet.
func canCome(unseen map[string]bool, expectations []flows.Expectation) bool {
	return slices.ContainsFunc(expectations, func(e flows.Expectation) bool { return unseen[describe(e)] })
}

// record notes the elements that a connection added, which had one of the fates that it met. Those
// that look alike may have added different things.
func (c *comparison) record(fates evaluator.Fates, met []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	times := map[string]int{}
	for i := range fates {
		once := map[string]bool{}
		for _, l := range fates[i].Added {
			once[added(l)] = true
		}
		for l := range once {
			c.may[l] = true
			if slices.Contains(met, i) {
				times[l]++
			}
		}
	}
	for l, n := range times {
		if n == len(met) {
			c.must[l] = true
		}
	}
}

// added prints an element that packets added, without its times.
func added(l evaluator.Added) string {
	return fmt.Sprintf("%s %s %x : %x", l.Family, l.Map, l.Element.Key, l.Element.Value)
}

// expectations says of each fate of a flow what a flow file would.
func (c *comparison) expectations(f flows.Flow, fates evaluator.Fates) []flows.Expectation {
	var out []flows.Expectation
	for i := range fates {
		out = append(out, c.expectation(f, &fates[i]))
	}
	return out
}

func (c *comparison) expectation(f flows.Flow, fate *evaluator.Fate) flows.Expectation {
	nobody := c.lab.HostOf(fate.Destination.Addr()) == nil && !fate.Destination.Addr().IsLoopback()
	switch {
	case fate.Result == evaluator.Refused:
		return flows.Expectation{Result: flows.Refused}
	case fate.Result == evaluator.Dropped || nobody:
		return flows.Expectation{Result: flows.Dropped}
	case fate.Untouched():
		return flows.Expectation{Result: flows.Untouched}
	}
	e := flows.Expectation{Endpoints: []netip.AddrPort{fate.Destination}, Source: flows.Kept}
	if fate.Masqueraded {
		e.Source = flows.Masqueraded
	}
	return e
}

// describe identifies an expectation of one connection.
func describe(e flows.Expectation) string { return fmt.Sprint(e.Result, e.Endpoints, e.Source) }

// kind is describe without addresses.
func kind(e flows.Expectation) string { return string(e.Result) + string(e.Source) }

func distinct(expectations []flows.Expectation) map[string]bool {
	out := map[string]bool{}
	for _, e := range expectations {
		out[describe(e)] = true
	}
	return out
}

// checkAdded compares the kernel's dynamic maps with the elements that connections added.
func (c *comparison) checkAdded(tables []*nft.Table) error {
	var errs []error
	holds := map[string]bool{}
	for _, table := range tables {
		for _, s := range table.Sets {
			if !s.Dynamic {
				continue
			}
			elements, err := c.conn.ReadElements(context.Background(), table.Family, table.Name, s)
			if err != nil {
				return err
			}
			for _, e := range elements {
				l := added(evaluator.Added{Family: table.Family, Map: s.Name, Element: e})
				holds[l] = true
				if !c.may[l] {
					errs = append(errs, fmt.Errorf("the kernel has an element that nothing should have added: %s: %s", l, s.FormatElement(e)))
				}
			}
		}
	}
	for l := range c.must {
		if !holds[l] {
			errs = append(errs, fmt.Errorf("the kernel lacks: %s", l))
		}
	}
	return errors.Join(errs...)
}

func compiled(t failing, config compiler.Config, m *model.Changes) []*nft.Table {
	t.Helper()
	c, err := compiler.New(config)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(m)
	return c.Tables()
}

// failing has the methods of *testing.T and *rapid.T that the tests here use.
type failing interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// hostInLab asks the kernel of the node under test for what the evaluator has to be told.
func hostInLab(t *testing.T, l *lab.Lab) evaluator.Host {
	t.Helper()
	host := evaluator.Host{Addresses: l.Node.Addrs()}
	// What goes to the node itself goes by lo, which has no address to masquerade to.
	for _, addr := range []netip.Addr{lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6} {
		host.Routes = append(host.Routes, routeInLab(netip.PrefixFrom(addr, addr.BitLen()), "lo"))
	}
	err := l.Node.Do(func() error {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, r := range routes {
			link, err := netlink.LinkByIndex(r.LinkIndex)
			if err != nil {
				return err
			}
			if addr, ok := netip.AddrFromSlice(r.Dst.IP); ok {
				bits, _ := r.Dst.Mask.Size()
				host.Routes = append(host.Routes, routeInLab(netip.PrefixFrom(addr.Unmap(), bits), link.Attrs().Name))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// routeInLab is a route by an interface of the node under test. Those without an address of
// their own masquerade to the node's first one.
func routeInLab(to netip.Prefix, link string) evaluator.Route {
	source := lab.NodeAddrs.Like(to.Addr())
	if strings.HasPrefix(link, "veth-") {
		source = lab.GatewayAddrs.Like(to.Addr())
	}
	return evaluator.Route{Destination: to, Interface: link, Source: source}
}

// packetInLab is the first packet of a flow, as the node under test sees it.
func packetInLab(host evaluator.Host, f flows.Flow) evaluator.Packet {
	p := f.Packet("")
	bits := -1
	for _, r := range host.Routes {
		if !p.Local && r.Destination.Contains(p.Source.Addr()) && r.Destination.Bits() > bits {
			p.Interface, bits = r.Interface, r.Destination.Bits()
		}
	}
	return p
}

// observable reports whether the lab can show what becomes of a flow. It cannot where a
// host other than the node under test would answer itself directly.
func observable(l *lab.Lab, f flows.Flow, fates evaluator.Fates) bool {
	if f.From == flows.FromNode {
		return true
	}
	sender := l.HostOf(f.From.Addr(f.To.Addr()))
	if sender == l.HostOf(f.To.Addr()) {
		return false
	}
	return !slices.ContainsFunc(fates, func(fate evaluator.Fate) bool {
		return fate.Result == evaluator.Delivered && !fate.Masqueraded && l.HostOf(fate.Destination.Addr()) == sender
	})
}

// portsOf prints the Service ports of a model.
func portsOf(m *model.Changes) string {
	var b strings.Builder
	for _, id := range slices.SortedFunc(maps.Keys(m.Ports), model.PortID.Compare) {
		fmt.Fprintf(&b, "%+v\n", *m.Ports[id])
	}
	return b.String()
}
