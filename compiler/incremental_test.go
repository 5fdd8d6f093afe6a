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
	"github.com/nftproxy/nftproxy/internal/directreturn"
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
	limits chainLimits
	// internal has no load balancer IPs and no external IPs.
	internal bool
	// directAddresses is few enough to be reached.
	directAddresses int
	compiler        *Compiler
	state           model.Changes
	last            *model.Changes
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
		Port:           []uint16{80, 81, 30000}[c.choose(3)], // 30000 may be a node port as well
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
	if p.DirectReturn = c.maybe(2); p.DirectReturn && c.maybe(2) { // and can have it
		p.ExternalPolicy = model.PolicyCluster
	}
	if c.internal {
		p.LoadBalancerIPs, p.ExternalIPs = nil, nil
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
			bits := 16 + c.choose(8)
			if c.maybe(3) { // not all ClusterIPs are in it
				bits = a.BitLen() - 1
			}
			out = append(out, netip.PrefixFrom(a, bits).Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// change chooses changes and takes them into the state.
func (c *cluster) change() *model.Changes {
	next := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
	switch c.choose(9) {
	case 0:
		next.Node = c.node()
	case 1: // slots of direct return move
		p := c.port(model.PortID{Namespace: "default", Service: "a", Protocol: model.TCP, Family: model.IPv4})
		p.DirectReturn, p.ExternalPolicy, p.LoadBalancerIPs, p.Cluster = true, model.PolicyCluster, []netip.Addr{c.addr(model.IPv4, externalNet, 2)}, nil
		for on := range byte(3) {
			if c.maybe(2) {
				p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, on, 5}), 53), Local: on == 0, Remote: on > 0})
			}
		}
		next.Ports[p.ID] = p
	case 2:
		next.ServiceCIDRs, next.ServiceCIDRsChanged = c.serviceCIDRs(), true
	case 3:
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

// newCompiler returns a compiler with the limits.
func (c *cluster) newCompiler(limits chainLimits) *Compiler {
	compiler, err := New(c.config)
	if err != nil {
		c.Fatalf("%v", err)
	}
	for _, f := range compiler.families {
		f.chains.limits, f.front.(*directreturn.Planner).MaxAddresses = limits, c.directAddresses
	}
	return compiler
}

// fewFrontends chooses limits that a few frontends reach.
func fewFrontends(c chooser) chainLimits {
	return chainLimits{
		setFrom:   2 + c.choose(2),
		spareFrom: 2 + c.choose(4), spare: 1 + c.choose(2), kept: c.choose(4), spareSetsFrom: 2 + c.choose(3),
	}
}

// fresh compiles the state from nothing but the frontends that leave direct return, and then gives it the chains and the
// sets that depend on the past. It fails if the past does not explain them.
func (c *cluster) fresh() *Compiler {
	compiler := c.newCompiler(chainLimits{spareFrom: math.MaxInt, setFrom: math.MaxInt, spareSetsFrom: math.MaxInt})
	all := c.state
	all.Ports = maps.Clone(c.state.Ports)
	compiler.Restore(func(family nft.Family, set *nft.Set) []nft.Element { // for frontends that leave direct return
		for _, table := range c.compiler.Tables() {
			if have := table.Set(set.Name); have != nil && table.Family == family {
				return have.Elements()
			}
		}
		return nil
	})
	compiler.Apply(&all)
	for i, f := range compiler.families {
		c.expectChains(c.compiler.families[i].chains, f.chains)
		for chain, state := range c.compiler.families[i].chains.chains {
			if f.chains.chains[chain] == nil {
				f.chains.add(chain)
			}
			if state.set != nil {
				f.chains.addSet(chain, f.chains.chains[chain])
			}
		}
		f.putFixedChains()
	}
	return compiler
}

// expectChains fails if a chain exists that the limits do not explain, or lacks something that they demand.
func (c *cluster) expectChains(e, fresh *endpointChains) {
	c.Helper()
	l := c.limits
	unused := map[endpointChain]int{}
	for chain, state := range e.chains {
		if state.frontends == 0 && !e.isSpare(chain) {
			unused[chain.group()]++
		}
	}
	for chain := range fresh.chains {
		if e.chains[chain] == nil || e.chains[chain].frontends != fresh.chains[chain].frontends {
			c.Fatalf("%s has %+v frontends, want %d", chain.name(), e.chains[chain], fresh.chains[chain].frontends)
		}
	}
	for group, state := range e.groups {
		if unused[group] > l.kept || unused[group] > 0 && !state.spare || state.spare && 2*state.frontends < l.spareFrom || !state.spare && state.frontends >= l.spareFrom {
			c.Fatalf("chains like %s: %+v with %+v, and %d stay", group.name(), state, l, unused[group])
		}
	}
	for chain, state := range e.chains {
		spare := e.spareSets && e.isSpare(chain) && chain.mayHaveSet()
		demanded := spare || chain.mayHaveSet() && state.frontends >= l.setFrom
		if state.set == nil && demanded || state.set != nil && !spare && 2*state.frontends < l.setFrom {
			c.Fatalf("%s has a set: %v, with %d frontends", chain.name(), state.set != nil, state.frontends)
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
	c.directAddresses = c.choose(6)
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
	config := Config{MasqueradeBit: uint8(c.choose(32)), MasqueradeAll: c.choose(3) == 0, AffinityHash: c.choose(3) == 0, CountServices: c.choose(3) == 0, CountRefused: c.choose(2) == 0, DirectReturn: c.choose(2) == 0}
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
