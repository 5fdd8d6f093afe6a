package verb

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/nft"
)

// fact adds a cause that no single packet shows. It takes the place of one that a packet has shown.
func (e *checker) fact(l checkLevel, text, why, more string) *cause {
	c, _ := e.cause(causeKey{text: text}, CheckFinding{Level: l, Why: why, More: more})
	return c
}

// hitAddrs adds the endpoints with these addresses to a cause, and the Service ports that they serve.
func (e *checker) hitAddrs(c *cause, addrs map[netip.Addr]bool) {
	e.hit(c, func(at netip.AddrPort) bool { return addrs[at.Addr()] })
}

// hit adds endpoints to a cause, and the Service ports that they serve.
func (e *checker) hit(c *cause, is func(netip.AddrPort) bool) {
	for _, f := range e.frontends {
		for at := range serversOf(f) {
			if is(at) {
				c.services[f.ServicePort], c.endpoints[at] = true, true
			}
		}
	}
}

// addFacts adds what the host's settings say.
func (e *checker) addFacts() {
	e.checkWays()
	e.checkDetectLocal()
	e.checkMarks()
	e.checkReversePaths()
}

// checkWays looks at the routes to endpoints: next hops that do not answer, and a smaller MTU than that of this node's pods.
func (e *checker) checkWays() {
	host := &e.rules.Host
	failed := map[evaluator.Hop]map[netip.Addr]bool{}
	for _, hop := range host.FailedNeighbours {
		failed[hop] = map[netip.Addr]bool{}
	}
	pods, podDevice := uint32(0), ""
	small := map[string]map[netip.Addr]bool{}
	ways := map[netip.Addr]evaluator.Route{}
	for _, addr := range e.network.endpoints {
		r, known := e.eval.RouteTo(addr)
		if !known || r.Type != "" {
			continue
		}
		ways[addr] = r
		hops := r.Hops
		if len(hops) == 0 {
			hops = []evaluator.Hop{{Gateway: r.Gateway, Interface: r.Interface}}
		}
		for _, hop := range hops {
			if !hop.Gateway.IsValid() {
				hop.Gateway = addr
			}
			if failed[hop] != nil {
				failed[hop][addr] = true
			}
		}
	}
	for i := range e.clients {
		for _, sources := range e.clients[i].sources {
			for _, s := range sources {
				if mtu := host.Devices[s.iface].MTU; e.clients[i].Kind == clientPod && mtu > pods {
					pods, podDevice = mtu, s.iface
				}
			}
		}
	}
	for addr, r := range ways {
		if mtu := cmp.Or(r.MTU, host.Devices[r.Interface].MTU); mtu > 0 && mtu < pods {
			way := fmt.Sprintf("MTU %d by %s, and pods here have %d", mtu, r.Interface, pods)
			if small[way] == nil {
				small[way] = map[netip.Addr]bool{}
			}
			small[way][addr] = true
		}
	}
	for _, hop := range host.FailedNeighbours {
		if addrs := failed[hop]; len(addrs) > 0 {
			e.hitAddrs(e.fact(levelBroken, fmt.Sprintf("%s on %s does not answer", hop.Gateway, hop.Interface),
				"the kernel asked for its Ethernet address and got none", "ip neigh show "+hop.Gateway.String()), addrs)
		}
	}
	for _, way := range slices.Sorted(maps.Keys(small)) {
		e.hitAddrs(e.fact(levelRemark, way, "where ICMP is filtered, connections that send long packets hang: the first packets pass, long ones do not",
			"ip link show "+podDevice), small[way])
	}
}

// checkDetectLocal looks whether what tells the cluster's clients from others fits the node: a route, an address or an interface.
func (e *checker) checkDetectLocal() {
	host := &e.rules.Host
	if host.Routes == nil {
		return
	}
	n := config.NodeNetwork{Addresses: e.rules.Addresses, Interfaces: slices.Collect(maps.Keys(host.Interfaces)), LeadsInto: func(in netip.Prefix) (bool, error) {
		return slices.ContainsFunc(host.Routes, func(r evaluator.Route) bool { return routesInto(r, in) }), nil
	}}
	for _, t := range e.rules.Tables {
		text, _ := config.DetectLocalProblem(compiler.DetectLocalFromTable(t), n) // routes that were read
		if text == "" {
			continue
		}
		level := levelRemark // its pods may be still to come
		if slices.ContainsFunc(e.network.endpoints, func(a netip.Addr) bool {
			_, here := e.network.isHere(a)
			return here && a.Is4() == (t.Family == nft.FamilyIP)
		}) {
			level = levelBroken
		}
		e.fact(level, "detect-local: "+text, "the proxy takes pods for clients outside the cluster: it masquerades them, and policy Local refuses them", "ip route; see clusterCIDR and detectLocal in the proxy's configuration")
	}
}

// masqueradeMark returns the bits of the packet mark that the proxy's own rules set: by them, they know what to masquerade.
func masqueradeMark(tables []*nft.Table) (bits uint32) {
	for _, t := range tables {
		for _, c := range t.Chains {
			for i := range c.Rules {
				bits |= leftovers.MarkBits(&c.Rules[i])
			}
		}
	}
	return bits
}

// checkMarks names rules of other programs that set the bit with which the proxy marks packets to masquerade.
func (e *checker) checkMarks() {
	var others []*nft.Table
	for _, t := range e.rules.Ordered {
		if t.Kernel != nil && t.Kernel.Other && !e.explains.isProxys(t) {
			others = append(others, t)
		}
	}
	mark := masqueradeMark(e.rules.Tables)
	var places []string
	for _, u := range leftovers.OthersIn(others, mark).Uses {
		if u.Sets != 0 && !u.Whole {
			places = append(places, fmt.Sprintf("%s (rule %d)", u.Chain, u.Rule))
		}
	}
	if len(places) > 0 {
		e.fact(levelRemark, fmt.Sprintf("%s changes the masquerade mark 0x%x", andMore(places[0], len(places)), mark),
			"the proxy masquerades packets with this bit: endpoints see an address of the node, or one that they cannot answer: "+some(places, shownNames),
			"nft list ruleset")
	}
}

// checkReversePaths looks at what rp_filter has dropped. The packets are in no table, so the kernel's counter is all there is.
func (e *checker) checkReversePaths() {
	text := e.rules.Files["netstat.txt"]
	if e.rules.Origin == "kernel" && e.rules.Files == nil && e.live {
		text, _ = os.ReadFile("/proc/thread-self/net/netstat") // without it nothing is known
	}
	var strict []string
	for name, device := range e.rules.Host.Devices {
		if device.RPFilter == evaluator.Strict {
			strict = append(strict, name)
		}
	}
	slices.Sort(strict)
	if dropped := netstat(string(text), "IPReversePathFilter"); dropped > 0 && len(strict) > 0 {
		e.fact(levelRemark, fmt.Sprintf("rp_filter is strict on %s and has dropped packets: %d", some(strict, shownNames), dropped),
			"the way back to their sources led by other interfaces; the kernel counts since the boot", "nstat -az TcpExtIPReversePathFilter; ip route get ADDRESS")
	}
}

// netstat returns a counter of /proc/net/netstat, where a line of names precedes each line of values; 0 if there is none.
func netstat(text, name string) uint64 {
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if at := slices.Index(names, name); at > 0 && at < len(fields) {
			n, _ := strconv.ParseUint(fields[at], 10, 64)
			return n
		}
		names = fields
	}
	return 0
}
