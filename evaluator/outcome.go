package evaluator

import (
	"net/netip"
	"slices"
	"strings"
)

// Outcome is a group of fates of the same rules, which differ in elements and destinations only.
type Outcome struct {
	// Fate is one of them. Its Path has the elements that any of them found.
	Fate Fate
	// Destinations are those of all of them, in the order of the numbers drawn, each once.
	Destinations []netip.AddrPort
}

// String returns the outcome in one line, such as "to 10.244.1.5:8080 or 10.244.1.6:8080, source kept".
func (o *Outcome) String() string { return o.Fate.describe(o.Destinations) }

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
			out = append(out, Outcome{Fate: f[i]})
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
