package evaluator

import (
	"fmt"
	"net/netip"
	"strings"
)

// Fate is what becomes of a packet on one way through the rules.
type Fate struct {
	Result Result
	// Source and Destination are what the packet says in the end. A source address that
	// masquerading chose is the zero Addr unless the host's routes tell it; its port is 0.
	Source, Destination netip.AddrPort
	// Masqueraded says that the packet got a source address of the node's.
	Masqueraded bool
	// Local says that it goes to a process of the node.
	Local bool
	// Interface is where it leaves the node, if the host's routes say.
	Interface string
	// Mark is the packet mark in the end.
	Mark uint32
	// Added holds the elements that the packet added to dynamic maps, in order.
	Added []Added
	// Path is how it came to this.
	Path Path

	sent netip.AddrPort
}

// Result is how a packet ends.
type Result uint8

// The results.
const (
	// Dropped means that nobody hears of the packet again.
	Dropped Result = iota
	// Refused means that it is dropped and the sender gets an ICMP port unreachable.
	Refused
	// Delivered means that it leaves the node or reaches a process there. Whether anybody
	// answers is not the evaluator's to know.
	Delivered
)

func (r Result) String() string {
	switch r {
	case Delivered:
		return "delivered"
	case Refused:
		return "refused"
	}
	return "dropped"
}

// Untouched reports whether the packet ends as if there were no rules.
func (f *Fate) Untouched() bool {
	return f.Result == Delivered && f.Destination == f.sent && !f.Masqueraded
}

// String returns the fate in one line, such as "to 10.244.1.5:8080, source kept".
func (f *Fate) String() string {
	return f.describe([]string{formatAddrPort(f.Destination)})
}

// describe is String for fates that differ in their destinations only.
func (f *Fate) describe(destinations []string) string {
	switch f.Result {
	case Refused:
		return "refused: the sender gets an ICMP port unreachable"
	case Dropped:
		return "dropped"
	}
	text := "to " + strings.Join(destinations, " or ")
	if f.Local {
		text += ", a process of the node"
	}
	switch {
	case f.Untouched():
		return "untouched, " + text
	case f.Masqueraded:
		return text + ", source masqueraded"
	}
	return text + ", source kept"
}

// Fates is all that can become of a packet.
type Fates []Fate

// String prints each fate with its path. Fates that came about by the same rules print once,
// with all the elements that these rules found.
func (f Fates) String() string {
	groups := f.groups()
	var b strings.Builder
	if len(groups) > 1 {
		fmt.Fprintf(&b, "%d possible fates\n\n", len(groups))
	}
	for i, g := range groups {
		if i > 0 {
			b.WriteByte('\n')
		}
		g.print(&b)
	}
	return b.String()
}

// Destinations returns the different destinations of the packets that are delivered.
func (f Fates) Destinations() []netip.AddrPort {
	var out []netip.AddrPort
	seen := map[netip.AddrPort]bool{}
	for i := range f {
		if d := f[i].Destination; f[i].Result == Delivered && !seen[d] {
			seen[d] = true
			out = append(out, d)
		}
	}
	return out
}
