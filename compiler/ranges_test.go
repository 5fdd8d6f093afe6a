package compiler

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Packets that skip chains because of their destination go where they would go if all packets ran through all chains.
func TestRanges(t *testing.T) {
	seen := map[string]bool{"services for all": false, "checks for all": false, "a node port, services not for all": false, "refused, services not for all": false, "dropped, services not for all": false}
	check := rapid.MakeCheck(func(r *rapid.T) {
		c := &cluster{failer: r, chooser: drawn{r}, config: randomConfig(drawn{r}), directAddresses: 3}
		c.internal, c.config.DetectLocal.Interface = c.maybe(2), ""
		if c.maybe(2) {
			c.config.NodePortAddresses.CIDRs = []netip.Prefix{netip.PrefixFrom(c.addr(model.IPv4, externalNet, 3), 8*c.choose(5)).Masked()}
		}
		c.compiler = c.newCompiler(fewFrontends(drawn{r}))
		c.compiler.Apply(&model.Changes{Full: true, Node: c.node(), ServiceCIDRs: c.serviceCIDRs(), ServiceCIDRsChanged: true})
		for range 1 + c.choose(4) {
			c.compiler.Apply(c.change())
		}
		var packets []evaluator.Packet
		for range 20 {
			packets = append(packets, c.packet())
		}
		skips := c.fates(packets)
		var was [2]uses
		for i, f := range c.compiler.families {
			was[i] = f.program.uses
			f.program.uses.servedOutside, f.program.uses.checkedOutside = true, true
			f.putFixedChains()
		}
		for i, all := range c.fates(packets) {
			if diff := cmp.Diff(all, skips[i]); diff != "" {
				r.Fatalf("%s (-through all chains +as compiled):\n%s", packets[i], diff)
			}
			to := packets[i].Destination
			before := was[index(to.Addr().Is6())]
			translated := !slices.ContainsFunc(all, func(fate string) bool { return strings.HasPrefix(fate, "to "+to.String()) })
			for what, is := range map[string]bool{
				"services for all": before.servedOutside, "checks for all": before.checkedOutside,
				"a node port, services not for all": !before.servedOutside && translated && strings.HasPrefix(all[0], "to") && to.Port() >= 30000 && slices.Contains(c.compiler.families[0].program.node.IPs, to.Addr()),
				"refused, services not for all":     !before.servedOutside && strings.HasPrefix(all[0], "refused"),
				"dropped, services not for all":     !before.servedOutside && strings.HasPrefix(all[0], "dropped"),
			} {
				seen[what] = seen[what] || is
			}
		}
	})
	for round := 0; round == 0 || slices.Contains(slices.Collect(maps.Values(seen)), false) && round < 50 && !t.Failed(); round++ {
		t.Run("skip nothing that they need", check)
	}
	for what, is := range seen {
		if !is {
			t.Errorf("no packet was tried with: %s", what)
		}
	}
}

// packet chooses the first packet of a connection.
func (c *cluster) packet() evaluator.Packet {
	family := model.Families[c.choose(2)]
	to := c.addr(family, []byte{serviceNet, serviceNet, externalNet, podNet}[c.choose(4)], 5)
	from := c.addr(family, []byte{podNet, 7}[c.choose(2)], 5)
	port := []uint16{80, 81, 30000, 30001, 30002, 8080}[c.choose(6)]
	if ips := c.compiler.families[0].program.node.IPs; c.maybe(3) && len(ips) > 0 {
		to, port = ips[c.choose(len(ips))], uint16(30000+c.choose(3))
		from = c.addr(model.FamilyOf(to), podNet, 5)
	}
	p := evaluator.Packet{
		Source:      netip.AddrPortFrom(from, 40000),
		Destination: netip.AddrPortFrom(to, port),
		Protocol:    []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}[c.choose(2)],
		Local:       c.maybe(3),
	}
	if !p.Local {
		p.Interface = "eth0"
	}
	return p
}

// fates returns the fates of packets, without the ways there.
func (c *cluster) fates(packets []evaluator.Packet) (all [][]string) {
	c.Helper()
	var host evaluator.Host
	for _, f := range c.compiler.families {
		host.Addresses = append(host.Addresses, f.program.node.IPs...)
	}
	e := evaluator.New(c.compiler.Tables(), host)
	for _, p := range packets {
		fates, err := e.Fates(p)
		if err != nil {
			c.Fatalf("%s: %v", p, err)
		}
		var texts []string
		for i := range fates {
			f := &fates[i]
			texts = append(texts, fmt.Sprintf("%s, mark %#x, copy to %s, adds %v", f, f.Mark, f.CopyTo, f.Added))
		}
		slices.Sort(texts)
		all = append(all, texts)
	}
	return all
}

// Chains are called for fewer packets as long as every frontend that they look for is in a known range, and the rules
// follow in the transaction that changes that.
func TestRangesFollow(t *testing.T) {
	config := Default()
	config.DirectReturn, config.NodePortAddresses = true, NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ip := netip.MustParseAddr
	port := &model.ServicePort{
		ID: model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4}, ClusterIP: ip("10.96.0.10"), Port: 80,
		Cluster: []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true}},
	}
	with := func(change func(*model.ServicePort)) *model.Changes {
		p := *port
		change(&p)
		return &model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: &p}}
	}
	cidrs := func(prefixes ...string) *model.Changes {
		changes := &model.Changes{ServiceCIDRsChanged: true}
		for _, p := range prefixes {
			changes.ServiceCIDRs = append(changes.ServiceCIDRs, netip.MustParsePrefix(p))
		}
		return changes
	}
	const (
		all, allChecked = "jump services", "ct state new jump forward-check"
		some            = "ip daddr 10.96.0.0/16 jump services"
		someChecked     = "ip daddr 10.96.0.0/16 ct state new jump forward-check"
	)
	for _, step := range []struct {
		name     string
		changes  *model.Changes
		services []string
		checks   []string
	}{
		{"no ServiceCIDR is known", with(func(*model.ServicePort) {}), []string{all}, []string{allChecked}},
		{"one is known", cidrs("10.96.0.0/16", "fd00::/112"), []string{some}, []string{someChecked}},
		{"a load balancer IP has endpoints", with(func(p *model.ServicePort) { p.LoadBalancerIPs = []netip.Addr{ip("192.0.2.1")} }), []string{all}, []string{someChecked}},
		{"it has none", with(func(p *model.ServicePort) {
			p.LoadBalancerIPs, p.Cluster = []netip.Addr{ip("192.0.2.1")}, nil
		}), []string{some}, []string{allChecked}},
		{"an external IP is in the range", with(func(p *model.ServicePort) { p.ExternalIPs = []netip.Addr{ip("10.96.0.11")} }), []string{some}, []string{someChecked}},
		{"a node port answers on all addresses", with(func(p *model.ServicePort) { p.NodePort = 30080 }), []string{all}, []string{someChecked}},
		{"affinity", with(func(p *model.ServicePort) { p.AffinityTimeout = 1e9 }), []string{some}, []string{"ct state new ct status dnat goto affinity-check", someChecked}},
		{"the ClusterIP is outside", with(func(p *model.ServicePort) { p.ClusterIP = ip("10.97.0.10") }), []string{all}, []string{allChecked}},
		{"another range is known", cidrs("10.96.0.0/16", "10.97.0.0/16"), []string{some, "ip daddr 10.97.0.0/16 jump services"}, []string{someChecked, "ip daddr 10.97.0.0/16 ct state new jump forward-check"}},
		{"a range contains others", cidrs("10.96.0.0/16", "10.97.0.0/16", "10.96.0.0/12"), []string{"ip daddr 10.96.0.0/12 jump services"}, []string{"ip daddr 10.96.0.0/12 ct state new jump forward-check"}},
		{"the range goes", cidrs("10.96.0.0/16"), []string{all}, []string{allChecked}},
		{"the ClusterIP is back", with(func(*model.ServicePort) {}), []string{some}, []string{someChecked}},
		{"direct return", with(func(p *model.ServicePort) {
			p.LoadBalancerIPs, p.DirectReturn = []netip.Addr{ip("192.0.2.1")}, true
			p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.MustParseAddrPort("10.244.2.5:8080"), Remote: true})
		}), []string{all}, []string{someChecked}},
		{"direct return ends, with the endpoints", with(func(p *model.ServicePort) {
			p.LoadBalancerIPs, p.Cluster = []netip.Addr{ip("192.0.2.1")}, nil
		}), []string{all}, []string{allChecked}},
		{"the Service goes", &model.Changes{Ports: map[model.PortID]*model.ServicePort{port.ID: nil}}, []string{some}, []string{someChecked}},
	} {
		c.Apply(step.changes)
		c.Committed()
		table := c.Tables()[0]
		for chain, want := range map[string][]string{
			"nat-prerouting": step.services, "nat-prerouting-again": step.services, "nat-output": step.services, "nat-output-again": step.services,
			"filter-forward": step.checks, "filter-output": step.checks,
		} {
			var got []string
			for _, rule := range table.Chain(chain).Rules {
				got = append(got, rule.String())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", step.name, chain, diff)
			}
		}
	}
}

// Later packets of IPv6 pay for a comparison of the state of their connection, and not for one of the address.
func TestRangesOfIPv6(t *testing.T) {
	c, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(&model.Changes{ServiceCIDRsChanged: true, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00::/108")}})
	for chain, want := range map[string]string{
		"nat-prerouting": "ip6 daddr fd00::/108 jump services", "filter-forward": "ct state new ip6 daddr fd00::/108 jump forward-check",
	} {
		if got := c.Tables()[1].Chain(chain).Rules[0].String(); got != want {
			t.Errorf("%s: %q, want %q", chain, got, want)
		}
	}
}

func TestRangesAreBounded(t *testing.T) {
	c, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	for count, want := range map[int]string{maxRanges: "ip daddr 10.0.0.0/16 ct state new jump forward-check", maxRanges + 1: "ct state new jump forward-check"} {
		changes := &model.Changes{ServiceCIDRsChanged: true}
		for i := range count {
			changes.ServiceCIDRs = append(changes.ServiceCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16))
		}
		c.Apply(changes)
		if got := c.Tables()[0].Chain("filter-forward").Rules[0].String(); got != want {
			t.Errorf("%d ServiceCIDRs: %q, want %q", count, got, want)
		}
	}
}
