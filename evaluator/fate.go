package evaluator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Fate is the end of a packet after one path through the rules.
type Fate struct {
	// Result says whether the packet is delivered.
	Result Result
	// Source and Destination are the packet's in the end. After masquerading, the source port is 0, and the source
	// address is that of the host's Route, or the zero Addr if there is none.
	Source, Destination netip.AddrPort
	// Masqueraded says that the packet got a source address of the node.
	Masqueraded bool
	// Local says that the packet goes to a process of the node.
	Local bool
	// Interface is the name of the interface by which the packet leaves the node; empty if the host's routes do not
	// tell.
	Interface string
	// Route is the one by which the packet leaves the node, if the host's Routes are complete or the kernel was asked.
	Route Route
	// Failure says why the kernel did not route the packet; empty if that did not end it.
	Failure RoutingFailure
	// CopyTo is an address to whose next hop the last copy of the packet was sent, as it
	// was; the zero Addr if there is none.
	CopyTo netip.Addr
	// Mark is the packet mark in the end.
	Mark uint32
	// Added holds the elements that the packet added to dynamic maps, in order.
	Added []Added
	// Path is the way to this fate.
	Path Path
	// Depends are rules of other programs on which the fate depends. Whether they match is not known; the Verdict says
	// which of both this fate is for, or why the walk ended there. A Step without a Rule is a chain (StepOrder,
	// StepDevices or StepUnknown), or a bridge (StepBridge).
	Depends []Step

	sent netip.AddrPort
}

// Result is the end of a packet in one word.
type Result uint8

// The results.
const (
	// Dropped means that the packet is discarded silently.
	Dropped Result = iota
	// Refused means that the packet is discarded and the sender gets an ICMP port unreachable.
	Refused
	// Delivered means that the packet leaves the node or reaches a process there. The evaluator does not know whether
	// anybody answers.
	Delivered
	// Undecided means that a rule of another program decides, in a way that the evaluator does not model.
	Undecided
)

// String returns "dropped", "refused", "delivered" or "undecided".
func (r Result) String() string {
	switch r {
	case Delivered:
		return "delivered"
	case Refused:
		return "refused"
	case Undecided:
		return "undecided"
	}
	return "dropped"
}

// Untouched reports whether the packet is delivered where it was sent to, without masquerading. Its mark may have
// changed.
func (f *Fate) Untouched() bool {
	return f.Result == Delivered && f.Destination == f.sent && !f.Masqueraded
}

// String returns the fate in one line, such as "to 10.244.1.5:8080, source kept".
func (f *Fate) String() string {
	return f.describe([]netip.AddrPort{f.Destination}, 1)
}

// describe is String for fates that differ in their destinations only. It names at most the first ones.
func (f *Fate) describe(destinations []netip.AddrPort, most int) string {
	if f.Failure != "" {
		return f.Result.String() + ": " + f.failed(most)
	}
	switch f.Result {
	case Refused:
		return "refused: the sender gets an ICMP port unreachable"
	case Dropped:
		if f.CopyTo.IsValid() {
			return "sent on, as it is, to where the routes lead to " + f.CopyTo.String()
		}
		return "dropped"
	case Undecided:
		if f.Path.EndsInKernel() {
			return "not known: " + f.failed(most)
		}
		return "not known: a rule of another program decides"
	}
	var to []string
	for _, d := range destinations[:min(len(destinations), most)] {
		to = append(to, formatAddrPort(d))
	}
	if more := len(destinations) - most; more > 0 {
		to = append(to, fmt.Sprintf("%d more", more))
	}
	text := "to " + strings.Join(to, " or ")
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

// failed returns what the kernel decided last, in words. It names at most the first addresses.
func (f *Fate) failed(most int) string {
	last := f.Path[len(f.Path)-1]
	text := strings.TrimPrefix(last.Verdict, routing)
	if len(last.Elements) == 0 {
		return text
	}
	text += " " + strings.Join(last.Elements[:min(len(last.Elements), most)], " or ")
	if more := len(last.Elements) - most; more > 0 {
		text += fmt.Sprintf(" or %d more", more)
	}
	return text
}

// Fates are all possible fates of a packet.
type Fates []Fate

// String prints each fate with its path. Fates of the same rules print once, with all elements that these rules found.
func (f Fates) String() string {
	outcomes := f.Outcomes()
	var b strings.Builder
	if len(outcomes) > 1 {
		fmt.Fprintf(&b, "%d possible fates\n\n", len(outcomes))
	}
	for i := range outcomes {
		if i > 0 {
			b.WriteByte('\n')
		}
		outcomes[i].print(&b)
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

// Outcome is a group of fates of the same rules, which differ in elements and destinations only.
type Outcome struct {
	// Fate is one of them. Its Path has the elements that any of them found.
	Fate Fate
	// Destinations are those of all of them, in the order of the numbers drawn, each once.
	Destinations []netip.AddrPort
	// Routes are those by which the packets leave the node, by their destinations, where they are known.
	Routes map[netip.Addr]Route
}

// String returns the outcome in one line, such as "to 10.244.1.5:8080 or 10.244.1.6:8080, source kept".
func (o *Outcome) String() string { return o.Head(len(o.Destinations)) }

// Head is String with at most the first destinations, and the number of the others.
func (o *Outcome) Head(most int) string { return o.Fate.describe(o.Destinations, most) }

// Outcomes groups the fates by the rules that led to them.
func (f Fates) Outcomes() []Outcome {
	byRoute := map[string]int{}
	var out []Outcome
	for i := range f {
		route := f[i].route()
		at, known := byRoute[route]
		if !known {
			at = len(out)
			byRoute[route] = at
			out = append(out, Outcome{Fate: f[i], Routes: map[netip.Addr]Route{}})
			out[at].Fate.Path = slices.Clone(f[i].Path)
		}
		out[at].add(&f[i])
	}
	return out
}

// add merges a fate of the same rules into the outcome.
func (o *Outcome) add(f *Fate) {
	if !slices.Contains(o.Destinations, f.Destination) {
		o.Destinations = append(o.Destinations, f.Destination)
	}
	if f.Route.Destination.IsValid() {
		o.Routes[f.Destination.Addr()] = f.Route
	}
	for i := range f.Path {
		have := &o.Fate.Path[i]
		for _, e := range f.Path[i].Elements {
			if !slices.Contains(have.Elements, e) {
				have.Elements = append(slices.Clip(have.Elements), e)
			}
		}
	}
}

func (o *Outcome) print(b *strings.Builder) {
	b.WriteString(o.String() + "\n")
	o.Fate.Path.print(b, "  ")
}
