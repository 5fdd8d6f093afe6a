package compiler

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"pgregory.net/rapid"
)

// chooser makes the choices that an event sequence is made of: drawn by rapid or read
// from a fuzzer's bytes.
type chooser interface {
	// choose returns a number from 0 to n-1.
	choose(n int) int
}

type drawn struct{ *rapid.T }

func (d drawn) choose(n int) int { return rapid.IntRange(0, n-1).Draw(d.T, "choice") }

// script reads choices from bytes; when they are used up it always chooses 0.
type script struct{ rest []byte }

func (s *script) choose(n int) int {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return int(b) % n
}

type failer interface {
	Helper()
	Fatalf(string, ...any)
}

// cluster is a few Services that claim each other's addresses, and the compiler
// that is told of each change.
type cluster struct {
	failer
	chooser
	config Config
	// limits are those of the compiler that is told of each change.
	limits   chainLimits
	compiler *Compiler
	state    model.Changes
	last     *model.Changes
}

func (c *cluster) maybe(of int) bool { return c.choose(of) == 0 }

// addr chooses one of n addresses of a network: 10.<network>.0.1 and on, or their like in IPv6.
func (c *cluster) addr(f model.Family, network byte, n int) netip.Addr {
	host := byte(c.choose(n) + 1)
	if f == model.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 1: network, 15: host})
	}
	return netip.AddrFrom4([4]byte{10, network, 0, host})
}

// addrs chooses some addresses, sorted and each once; nil for none.
func (c *cluster) addrs(f model.Family, network byte, n int) []netip.Addr {
	var out []netip.Addr
	for range c.choose(n) {
		out = append(out, c.addr(f, network, n))
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func (c *cluster) id() model.PortID {
	return model.PortID{
		Namespace: "default",
		Service:   []string{"a", "b", "c"}[c.choose(3)],
		Port:      []string{"", "http"}[c.choose(2)],
		Protocol:  []model.Protocol{model.TCP, model.UDP}[c.choose(2)],
		Family:    model.Families[c.choose(2)],
	}
}

// The networks of the cluster. External and load balancer addresses may meet, and an external
// address may be a ClusterIP.
const (
	serviceNet  = 96
	externalNet = 100
	podNet      = 244
)

func (c *cluster) port(id model.PortID) *model.ServicePort {
	p := &model.ServicePort{
		ID:             id,
		ClusterIP:      c.addr(id.Family, serviceNet, 3),
		Port:           uint16(80 + c.choose(2)),
		InternalPolicy: model.TrafficPolicy(c.choose(2)),
		ExternalPolicy: model.TrafficPolicy(c.choose(2)),
	}
	if c.maybe(2) {
		p.NodePort = uint16(30000 + c.choose(3))
	}
	p.LoadBalancerIPs = c.addrs(id.Family, externalNet, 3)
	p.ExternalIPs = c.addrs(id.Family, []byte{externalNet, serviceNet}[c.choose(2)], 3)
	if c.maybe(3) {
		for _, a := range c.addrs(id.Family, externalNet, 4) {
			p.LoadBalancerSourceRanges = append(p.LoadBalancerSourceRanges, netip.PrefixFrom(a, a.BitLen()-2*c.choose(4)).Masked())
		}
		slices.SortFunc(p.LoadBalancerSourceRanges, netip.Prefix.Compare)
		p.LoadBalancerSourceRanges = slices.Compact(p.LoadBalancerSourceRanges)
	}
	if c.maybe(4) {
		p.AffinityTimeout = 3 * time.Hour
	}
	p.Cluster = c.endpoints(id.Family, false)
	p.Local = c.endpoints(id.Family, true)
	return p
}

func (c *cluster) endpoints(f model.Family, local bool) []model.Endpoint {
	var out []model.Endpoint
	for _, a := range c.addrs(f, podNet, 5) {
		e := model.Endpoint{AddrPort: netip.AddrPortFrom(a, uint16(8080+c.choose(2))), Local: local || c.maybe(3)}
		e.Remote = !e.Local && c.maybe(2)
		out = append(out, e)
	}
	return out
}

func (c *cluster) node() *model.Node {
	n := &model.Node{Name: "node-1"}
	for _, f := range model.Families {
		if c.maybe(2) {
			n.IPs = append(n.IPs, c.addr(f, externalNet, 3))
		}
		for _, a := range c.addrs(f, podNet, 2) {
			n.PodCIDRs = append(n.PodCIDRs, netip.PrefixFrom(a, 24).Masked())
		}
	}
	return n
}

func (c *cluster) serviceCIDRs() []netip.Prefix {
	var out []netip.Prefix
	for _, f := range model.Families {
		for _, a := range c.addrs(f, serviceNet, 3) {
			out = append(out, netip.PrefixFrom(a, 16+c.choose(8)).Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// change chooses changes and takes them into the state.
func (c *cluster) change() *model.Changes {
	next := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
	switch c.choose(8) {
	case 0:
		next.Node = c.node()
	case 1:
		next.ServiceCIDRs, next.ServiceCIDRsChanged = c.serviceCIDRs(), true
	case 2:
		next.Full, next.Node, next.ServiceCIDRs, next.ServiceCIDRsChanged = true, c.node(), c.serviceCIDRs(), true
		for range c.choose(6) {
			id := c.id()
			next.Ports[id] = c.port(id)
		}
	default:
		for range 1 + c.choose(3) {
			id := c.id()
			if next.Ports[id] = nil; !c.maybe(4) {
				next.Ports[id] = c.port(id)
			}
		}
	}
	c.state.Merge(next)
	return next
}

// newCompiler returns a compiler whose chains have sets, and chains in advance, with a few frontends.
func (c *cluster) newCompiler(limits chainLimits) *Compiler {
	compiler, err := New(c.config)
	if err != nil {
		c.Fatalf("%v", err)
	}
	for _, f := range compiler.families {
		f.limits = limits
	}
	return compiler
}

// fewFrontends chooses limits that a few frontends reach.
func fewFrontends(c chooser) chainLimits {
	l := chainLimits{
		chainSetFrom: 2 + c.choose(2), chainSets: 1 + c.choose(3),
		spareChainsFrom: 2 + c.choose(4), spareChains: 1 + c.choose(2), keptChains: c.choose(4), spareSetsFrom: 2 + c.choose(3),
	}
	l.chainSetUntil, l.spareChainsUntil, l.spareSetsUntil = 1+c.choose(l.chainSetFrom), 1+c.choose(l.spareChainsFrom), 1+c.choose(l.spareSetsFrom)
	return l
}

// fresh compiles the state from nothing. Which chains have a set, or chains in advance, depends on what was there
// before, between two limits. So it gives those in advance to all that may have them and takes away those that the
// compiler that is told of each change does not have. It gives sets to the chains to which that compiler gives them, if
// it may, and keeps the chains that stay there.
func (c *cluster) fresh() *Compiler {
	most := c.limits
	most.spareChainsFrom, most.spareSetsFrom = most.spareChainsUntil, most.spareSetsUntil
	compiler := c.newCompiler(most)
	all := c.state
	all.Ports = maps.Clone(c.state.Ports)
	compiler.Apply(&all)
	for i, f := range compiler.families {
		c.takeAway(f, c.compiler.families[i])
		c.expectChainSets(c.compiler.families[i])
		moveChainSets(f, c.compiler.families[i])
		c.keepChains(f, c.compiler.families[i])
	}
	return compiler
}

func (c *cluster) takeAway(f, has *family) {
	for key, group := range f.endpointChains.groups {
		if group.spare > 0 && group.frontends < c.limits.spareChainsFrom && has.endpointChains.groups[key].spare == 0 {
			f.setSpare(key, group, false)
		}
	}
	if !has.endpointChains.spareSets && f.sets.addresses.known.Len()+f.sets.nodePorts.known.Len() < c.limits.spareSetsFrom {
		f.limits.spareSetsFrom, f.limits.spareSetsUntil = math.MaxInt, math.MaxInt
		f.updateSpareSets()
	}
}

// expectChainSets fails if a chain has a set that it may not have, or has none that it must have.
func (c *cluster) expectChainSets(f *family) {
	c.Helper()
	e := &f.endpointChains
	if n := len(e.withSet()); n > c.limits.chainSets {
		c.Fatalf("%d chains have a set because of their frontends, want at most %d", n, c.limits.chainSets)
	}
	for chain := range e.sets {
		if n := e.frontends(chain); !e.spareSet(chain) && n < c.limits.chainSetUntil {
			c.Fatalf("%s has a set with %d frontends", chain.name(), n)
		}
	}
	for chain := range e.used {
		if chain.mayHaveSet() && e.spareSet(chain) && e.sets[chain] == nil {
			c.Fatalf("%s has no set", chain.name())
		}
	}
}

// moveChainSets gives sets to the chains that have one in the other family.
func moveChainSets(f, has *family) {
	for chain := range f.endpointChains.sets {
		if has.endpointChains.sets[chain] == nil {
			f.removeChainSet(chain)
		}
	}
	for chain := range has.endpointChains.sets {
		if f.endpointChains.sets[chain] == nil {
			f.addChainSet(chain)
		}
	}
}

// keepChains keeps the chains that stay in the other family. It fails if these are more than may stay, or have frontends.
func (c *cluster) keepChains(f, has *family) {
	c.Helper()
	for key, group := range has.endpointChains.groups {
		if n := len(group.kept); n > c.limits.keptChains {
			c.Fatalf("%d chains like %s stay, want at most %d", n, key.name(), c.limits.keptChains)
		}
		f.endpointChains.groups[key].kept = group.kept
		for _, key.count = range group.kept {
			if f.endpointChains.used[key] != nil {
				c.Fatalf("%s stays, and has frontends", key.name())
			}
			f.putEndpointChain(key)
		}
	}
}

func printed(tables []*nft.Table) string {
	var b strings.Builder
	for _, t := range tables {
		b.WriteString(t.String())
	}
	return b.String()
}

// run plays events until there are enough, and compares with a compiler that never saw
// anything but the state after each of them.
func (c *cluster) run(events int) {
	c.Helper()
	c.compiler = c.newCompiler(c.limits)
	c.state = model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}, Node: c.node(), ServiceCIDRsChanged: true}
	first := c.state
	first.Ports = nil
	c.last = &first
	c.compiler.Apply(&first)
	for range events {
		switch c.choose(6) {
		case 0:
			c.commit()
		case 1: // A commit that fails: the transaction is asked for and lost.
			_ = c.compiler.Transaction()
		case 2:
			c.applyAgain()
		default:
			c.last = c.change()
			c.compiler.Apply(c.last)
		}
		c.compare()
	}
	c.commit()
}

// commit checks that there is nothing left to send after a commit, nor after the same state once more.
func (c *cluster) commit() {
	c.Helper()
	c.compiler.Committed()
	if tx := c.compiler.Transaction(); !tx.Empty() {
		c.Fatalf("after a commit there still is:\n%s", tx)
	}
	all := c.state
	c.compiler.Apply(&all)
	if tx := c.compiler.Transaction(); !tx.Empty() {
		c.Fatalf("the same state again gives:\n%s", tx)
	}
}

// applyAgain applies the last changes once more, which must not change what there is to send.
func (c *cluster) applyAgain() {
	c.Helper()
	before := c.compiler.Transaction()
	c.compiler.Apply(c.last)
	if diff := cmp.Diff(before.String(), c.compiler.Transaction().String()); diff != "" {
		c.Fatalf("the same changes again give another transaction (-once +twice):\n%s", diff)
	}
}

func (c *cluster) compare() {
	c.Helper()
	if diff := cmp.Diff(printed(c.fresh().Tables()), printed(c.compiler.Tables())); diff != "" {
		c.Fatalf("tables (-compiled at once +compiled change by change):\n%s", diff)
	}
}

func randomConfig(c chooser) Config {
	config := Config{MasqueradeBit: uint8(c.choose(32)), MasqueradeAll: c.choose(3) == 0, AffinityHash: c.choose(3) == 0, CountServices: c.choose(3) == 0}
	config.NodePortAddresses.Primary = c.choose(2) == 0
	config.DetectLocal.NodePodCIDRs = c.choose(2) == 0
	if c.choose(3) == 0 {
		config.DetectLocal.Interface = "veth*"
	}
	if c.choose(2) == 0 {
		config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fdf4::/16")}
	}
	return config
}

func TestCompilerIncremental(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := &cluster{failer: rt, chooser: drawn{rt}, config: randomConfig(drawn{rt}), limits: fewFrontends(drawn{rt})}
		c.run(rapid.IntRange(1, 15).Draw(rt, "events"))
	})
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("ports come, claim each other's addresses and go again"))
	f.Add([]byte{0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 1, 0, 0, 1, 1, 2, 2, 2, 1, 0, 4, 4, 4, 5, 5, 0, 0, 3, 3, 1, 0, 0})
	f.Add(slices.Repeat([]byte{3, 5, 2, 1, 0, 4, 7, 11}, 40))
	f.Add(slices.Repeat([]byte{200, 13, 77, 3, 9, 250, 31, 5, 1}, 60))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<9 {
			return
		}
		s := &script{rest: data}
		c := &cluster{failer: t, chooser: s, config: randomConfig(s), limits: fewFrontends(s)}
		c.run(1 + min(len(data)/16, 12))
	})
}
