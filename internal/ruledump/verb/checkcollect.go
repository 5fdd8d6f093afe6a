package verb

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// CheckTable is the answer of the check command about many nodes.
type CheckTable struct {
	document
	Verdict verdict     `json:"verdict" jsonschema:"enum=works,enum=broken,enum=unknown"` // the worst verdict of the nodes
	Nodes   []checkNode `json:"nodes"`                                                    // the worst first
	// Findings: each cause once, the worst first; everything but nodes is from the first node
	Findings []sharedCause `json:"findings"`
}

type checkNode struct {
	Node    string  `json:"node"`
	Verdict verdict `json:"verdict" jsonschema:"enum=works,enum=broken,enum=unknown"`
	Broken  int     `json:"broken"`        // number of findings of this level
	Remarks int     `json:"remarks"`       // number of findings of this level
	Why     string  `json:"why,omitempty"` // why the node's verdict is not known
}

// sharedCause is a finding of several nodes.
type sharedCause struct {
	CheckFinding
	Nodes []string `json:"nodes"`
}

// checkTableOf puts the answers of nodes together. Findings of the same level with the same cause share a line.
func checkTableOf(byNode map[string]*Check) *CheckTable {
	t := &CheckTable{document: documentOf("CheckTable"), Verdict: verdictWorks, Findings: []sharedCause{}}
	type key struct {
		level checkLevel
		cause string
	}
	shared := map[key]int{}
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		c := byNode[name]
		row := checkNode{Node: name, Verdict: c.Verdict}
		if c.Verdict == verdictUnknown {
			row.Why = strings.Join(c.NotLookedAt, "; ")
		}
		t.Verdict = worseVerdict(t.Verdict, c.Verdict)
		for _, f := range c.Findings {
			if f.Level == levelBroken {
				row.Broken++
			} else {
				row.Remarks++
			}
			at, known := shared[key{f.Level, f.Cause}]
			if !known {
				at = len(t.Findings)
				shared[key{f.Level, f.Cause}] = at
				t.Findings = append(t.Findings, sharedCause{CheckFinding: f})
			}
			t.Findings[at].Nodes = append(t.Findings[at].Nodes, name)
		}
		t.Nodes = append(t.Nodes, row)
	}
	slices.SortStableFunc(t.Nodes, func(a, b checkNode) int {
		return slices.Index(checkVerdicts, b.Verdict) - slices.Index(checkVerdicts, a.Verdict)
	})
	slices.SortStableFunc(t.Findings, func(a, b sharedCause) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(len(b.Nodes), len(a.Nodes)))
	})
	return t
}

// Text implements View.
func (t *CheckTable) Text(p *Page) {
	table(p, []string{"NODE", "VERDICT", "BROKEN", "REMARKS"}, t.Nodes, func(n checkNode) []any {
		return []any{n.Node, n.Verdict, n.Broken, n.Remarks}
	}, func(n checkNode) bool { return n.Verdict == verdictBroken })
	if len(t.Findings) > 0 {
		p.printf("\n")
		table(p, []string{"LEVEL", "CAUSE", "NODES", "HITS", "FROM", "MORE (on the first node)"}, t.Findings, func(f sharedCause) []any {
			return []any{f.Level, f.Cause, fmt.Sprintf("%d: %s", len(f.Nodes), some(f.Nodes, shownNames)), f.hits(), orDash(strings.Join(f.Clients, ", ")), f.More}
		}, func(f sharedCause) bool { return f.Level == levelBroken })
	}
	for _, n := range t.Nodes {
		if n.Why != "" {
			p.printf("\n%s is not known: %s\n", n.Node, n.Why)
		}
	}
}

func (t *CheckTable) verdict() verdict { return t.Verdict }

func (c *Check) verdict() verdict { return c.Verdict }
