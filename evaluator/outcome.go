package evaluator

import "net/netip"

// Outcome is a group of fates of the same rules, which differ in elements and destinations only.
type Outcome struct {
	// Fate is one of them. Its Path has the elements that any of them found.
	Fate Fate
	// Destinations are those of all of them, in the order of the numbers drawn, each once.
	Destinations []netip.AddrPort
	text         string
}

// String returns the outcome in one line, such as "to 10.244.1.5:8080 or 10.244.1.6:8080, source kept".
func (o *Outcome) String() string { return o.text }

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
			out = append(out, Outcome{})
		}
		addDestination(&out[at].Destinations, f[i].Destination)
	}
	for i, g := range f.groups() {
		out[i].Fate, out[i].text = *g.fate, g.fate.describe(g.destinations)
		out[i].Fate.Path = g.path
	}
	return out
}

func addDestination(list *[]netip.AddrPort, d netip.AddrPort) {
	for _, have := range *list {
		if have == d {
			return
		}
	}
	*list = append(*list, d)
}
