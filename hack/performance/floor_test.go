package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/model"
)

// floorRules is the smallest ruleset that serves Services with two endpoints each. The verb is the elements of the map.
const floorRules = `table ip kube-proxy {
	map endpoints {
		typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport
		elements = { %s }
	}
	chain nat-prerouting {
		type nat hook prerouting priority dstnat
		dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints
	}
}
`

func floor(changes *model.Changes) string {
	var elements strings.Builder
	for _, p := range changes.Ports {
		for slot, e := range p.Cluster {
			fmt.Fprintf(&elements, "%s . udp . %d . %d : %s . %d,\n", p.ClusterIP, p.Port, slot, e.AddrPort.Addr(), e.AddrPort.Port())
		}
	}
	return fmt.Sprintf(floorRules, elements.String())
}

// without returns a script that deletes a base chain.
func without(chain string) string {
	return fmt.Sprintf("flush chain ip kube-proxy %[1]s\ndelete chain ip kube-proxy %[1]s\n", chain)
}

// rewritten returns a script that gives a chain other rules.
func rewritten(chain string, rules ...string) string {
	script := fmt.Sprintf("flush chain ip kube-proxy %s\n", chain)
	for _, rule := range rules {
		script += fmt.Sprintf("add rule ip kube-proxy %s %s\n", chain, rule)
	}
	return script
}

// BenchmarkFirstPacketParts measures what the parts of the rules cost the first packet of a flow, to a ClusterIP or, with
// -direct, to an endpoint itself: the floor, the rules of 1,000 Services and of 999, which need no set of their chain, and
// the rules of 1,000 without a part or with it written in another way. Twins show the noise.
func BenchmarkFirstPacketParts(b *testing.B) {
	lookUpAll := rewritten("nat-prerouting", "jump services") + rewritten("nat-prerouting-again", "jump services")
	checkAll := rewritten("filter-forward", "ct state new jump forward-check")
	var nodes []*node
	for _, n := range []node{
		{name: "floor", floor: true, services: 1000},
		{name: "rules", rules: true, services: 1000},
		{name: "rules-twin", rules: true, services: 1000},
		{name: "rules-999", rules: true, services: 999},
		{name: "without-again", script: without("nat-prerouting-again")},
		{name: "without-forward", script: without("filter-forward")},
		{name: "without-postrouting", script: without("nat-postrouting")},
		{name: "look-up-all", script: lookUpAll},
		{name: "check-all", script: checkAll},
		{name: "look-up-and-check-all", script: lookUpAll + checkAll},
	} {
		if n.script != "" {
			n.rules, n.services = true, 1000
		}
		direct := n
		direct.name, direct.direct = n.name+"-direct", true
		nodes = append(nodes, &n, &direct)
	}
	takeTurns(b, nodes, func(round int) int { return round })
}
