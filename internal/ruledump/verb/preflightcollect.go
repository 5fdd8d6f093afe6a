package verb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/spf13/cobra"
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

// collected reads answers of many nodes from files; "-" is standard input. A file may have several answers, with other
// lines between them, as logs of pods have. If a node has several answers, the last one counts.
func collected(cmd *cobra.Command, paths []string) (*PreflightTable, error) {
	byNode := map[string]*Preflight{}
	for _, path := range paths {
		in, err := input(cmd, path)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		text, err := io.ReadAll(in)
		if err != nil {
			return nil, err
		}
		answers, err := preflights(text)
		if err == nil && len(answers) == 0 {
			err = fmt.Errorf("it has no output of ruledump preflight -o json")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for _, a := range answers {
			byNode[a.Node] = a
		}
	}
	return tableOf(byNode), nil
}

// preflights reads the JSON documents that begin at the beginnings of lines.
func preflights(text []byte) (out []*Preflight, err error) {
	for len(text) > 0 {
		if text[0] != '{' {
			_, text, _ = bytes.Cut(text, []byte("\n"))
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(text))
		var answer Preflight
		if err := decoder.Decode(&answer); err != nil {
			return nil, fmt.Errorf("answer %d: %w", len(out)+1, err)
		}
		if answer.APIVersion != ruledump.APIVersion ||
			answer.Kind != "Preflight" || !slices.Contains(levels, answer.Verdict) {
			return nil, fmt.Errorf("answer %d is %s of %s, want Preflight of %s",
				len(out)+1, answer.Kind, answer.APIVersion, ruledump.APIVersion)
		}
		for _, f := range answer.Findings {
			if !slices.Contains(levels, f.Level) {
				return nil, fmt.Errorf("answer %d, finding %s: level %q is not known: another version wrote it",
					len(out)+1, f.Check, f.Level)
			}
		}
		out, text = append(out, &answer), text[decoder.InputOffset():]
	}
	return out, nil
}

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
