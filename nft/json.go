package nft

import "encoding/json"

// The JSON of a table has nft's words as keys and, for rules, keys and values, the same text as
// the nft syntax: it is for programs that look things up, such as
// `jq '.tables[].maps[] | select(.name == "service-ips") | .elements[]'`.
type tableJSON struct {
	Family  string      `json:"family"`
	Name    string      `json:"name"`
	Comment string      `json:"comment,omitempty"`
	Sets    []setJSON   `json:"sets"`
	Maps    []setJSON   `json:"maps"`
	Chains  []chainJSON `json:"chains"`
}

type setJSON struct {
	Name     string        `json:"name"`
	Key      string        `json:"key"`
	Data     string        `json:"data,omitempty"`
	Comment  string        `json:"comment,omitempty"`
	Interval bool          `json:"interval,omitempty"`
	Dynamic  bool          `json:"dynamic,omitempty"`
	Size     uint32        `json:"size,omitempty"`
	Elements []elementJSON `json:"elements"`
}

type elementJSON struct {
	Key     string `json:"key"`
	Value   string `json:"value,omitempty"`
	Comment string `json:"comment,omitempty"`
}

type chainJSON struct {
	Name     string     `json:"name"`
	Comment  string     `json:"comment,omitempty"`
	Type     string     `json:"type,omitempty"`
	Hook     string     `json:"hook,omitempty"`
	Priority *int32     `json:"priority,omitempty"`
	Rules    []ruleJSON `json:"rules"`
}

type ruleJSON struct {
	Rule    string `json:"rule"`
	Comment string `json:"comment,omitempty"`
}

// MarshalJSON returns the table with its sets, maps, elements, chains and rules.
func (t *Table) MarshalJSON() ([]byte, error) {
	out := tableJSON{Family: t.Family.String(), Name: t.Name, Comment: t.Comment, Sets: []setJSON{}, Maps: []setJSON{}, Chains: []chainJSON{}}
	for _, s := range t.Sets {
		if s.IsMap() {
			out.Maps = append(out.Maps, s.json())
		} else {
			out.Sets = append(out.Sets, s.json())
		}
	}
	for _, c := range t.Chains {
		out.Chains = append(out.Chains, c.json())
	}
	return json.Marshal(out)
}

func (s *Set) json() setJSON {
	out := setJSON{Name: s.Name, Key: s.Key.String(), Comment: s.Comment, Interval: s.Interval, Dynamic: s.Dynamic, Size: s.Size, Elements: []elementJSON{}}
	switch {
	case s.Verdicts:
		out.Data = "verdict"
	case s.Data != nil:
		out.Data = s.Data.String()
	}
	for _, e := range s.Elements() {
		j := elementJSON{Key: s.formatKey(e), Comment: e.Comment}
		switch {
		case s.Verdicts:
			j.Value = e.Verdict.String()
		case s.Data != nil:
			j.Value = s.Data.Format(e.Value)
		}
		out.Elements = append(out.Elements, j)
	}
	return out
}

func (c *Chain) json() chainJSON {
	out := chainJSON{Name: c.Name, Comment: c.Comment, Type: string(c.Type), Hook: string(c.Hook), Rules: []ruleJSON{}}
	if c.Hook != "" {
		out.Priority = &c.Priority
	}
	for _, r := range c.Rules {
		comment := r.Comment
		r.Comment = ""
		out.Rules = append(out.Rules, ruleJSON{Rule: r.String(), Comment: comment})
	}
	return out
}
