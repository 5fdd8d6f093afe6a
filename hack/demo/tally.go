package main

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
)

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
