package verb

import (
	"fmt"
	"maps"
	"slices"
)

// PreflightTable is the answer of the preflight command about many nodes.
type PreflightTable struct {
	document
	Verdict level           `json:"verdict"` // the worst verdict of the nodes
	Nodes   []preflightNode `json:"nodes"`   // the worst first
	// Findings: each finding once, the worst first; seen is from the first node
	Findings []sharedFinding `json:"findings"`
}

type preflightNode struct {
	Node    string `json:"node"`
	Verdict level  `json:"verdict"`
	Mode    string `json:"mode"`
	Stop    int    `json:"stop"` // number of findings of this level
	Look    int    `json:"look"` // number of findings of this level
}

// sharedFinding is a finding of several nodes, which may have seen different things.
type sharedFinding struct {
	finding
	Nodes []string `json:"nodes"`
}

func (t *PreflightTable) worst() level { return t.Verdict }

func tableOf(byNode map[string]*Preflight) *PreflightTable {
	t := &PreflightTable{document: documentOf("PreflightTable"), Verdict: levelGo, Findings: []sharedFinding{}}
	shared := map[finding]int{}
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		a := byNode[name]
		row := preflightNode{Node: name, Verdict: a.Verdict, Mode: a.Mode}
		t.Verdict = worse(t.Verdict, a.Verdict)
		for _, f := range a.Findings {
			switch f.Level {
			case levelStop:
				row.Stop++
			case levelLook:
				row.Look++
			}
			key := f
			if f.Do != "" || f.Why != "" {
				key.Seen = "" // which addresses, which chains
			}
			at, known := shared[key]
			if !known {
				at = len(t.Findings)
				shared[key] = at
				t.Findings = append(t.Findings, sharedFinding{finding: f})
			}
			if s := &t.Findings[at]; !slices.Contains(s.Nodes, name) {
				s.Nodes = append(s.Nodes, name)
			}
		}
		t.Nodes = append(t.Nodes, row)
	}
	byLevel := func(a, b level) int { return slices.Index(levels, b) - slices.Index(levels, a) }
	slices.SortStableFunc(t.Nodes, func(a, b preflightNode) int { return byLevel(a.Verdict, b.Verdict) })
	slices.SortStableFunc(t.Findings, func(a, b sharedFinding) int { return byLevel(a.Level, b.Level) })
	return t
}

// Text implements View. What speaks for the swap is not printed.
func (t *PreflightTable) Text(p *Page) {
	table(p, []string{"NODE", "VERDICT", "MODE NOW", "STOP", "LOOK"}, t.Nodes, func(n preflightNode) []any {
		return []any{n.Node, verdicts[n.Verdict], n.Mode, n.Stop, n.Look}
	}, func(n preflightNode) bool { return n.Verdict == levelStop })
	for _, f := range t.Findings {
		if f.Level != levelGo {
			p.printf("\n")
			f.text(p, fmt.Sprintf(" (%d: %s)", len(f.Nodes), some(f.Nodes, explainShown)))
		}
	}
}
