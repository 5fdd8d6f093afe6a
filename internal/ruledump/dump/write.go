package dump

import (
	"encoding/json"
	"io"

	"github.com/nftproxy/nftproxy/nft"
)

// Write writes tables, and the counts of their elements, which may be nil, with a header, whose Tables are ignored.
func Write(w io.Writer, header Document, tables []*nft.Table, counts Counts) error {
	header.APIVersion, header.Kind, header.Tables = APIVersion, Kind, []Table{}
	for _, t := range tables {
		header.Tables = append(header.Tables, fromTable(t, counts))
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(header)
}

func fromTable(t *nft.Table, counts Counts) Table {
	out := Table{
		Family: t.Family.String(), Name: t.Name, Comment: t.Comment, Flags: flags(t),
		Sets: []Set{}, Maps: []Set{}, Chains: []Chain{},
	}
	if k := t.Kernel; k != nil {
		out.OwnerPort = k.OwnerPort
		for _, o := range k.Objects {
			out.Objects = append(out.Objects, o.String())
		}
	}
	for _, s := range t.Sets {
		converted := fromSet(s, counts[CountedSet{t.Family, s.Name}])
		if s.IsMap() {
			out.Maps = append(out.Maps, converted)
		} else {
			out.Sets = append(out.Sets, converted)
		}
	}
	for _, c := range t.Chains {
		out.Chains = append(out.Chains, fromChain(c))
	}
	return out
}

func fromSet(s *nft.Set, counts map[nft.Data]nft.Count) Set {
	out := Set{Name: s.Name, Key: s.Key.String(), Comment: s.Comment, Interval: s.Interval, Dynamic: s.Dynamic, Size: s.Size, Counter: s.Counter, Elements: []Element{}}
	switch {
	case s.Verdicts:
		out.Data = verdictData
	case s.Data != nil:
		out.Data = s.Data.String()
	}
	keys := nft.Set{Key: s.Key} // prints keys alone
	for _, e := range s.Elements() {
		j := Element{Key: keys.FormatElement(nft.Element{Key: e.Key, KeyEnd: e.KeyEnd}), Comment: e.Comment}
		switch {
		case s.Verdicts:
			j.Value = e.Verdict.String()
		case s.Data != nil:
			j.Value = s.Data.Format(e.Value)
		}
		if e.Timeout > 0 {
			j.Timeout, j.Expires = e.Timeout.String(), e.Expires.String()
		}
		if n, counted := counts[e.Key]; counted {
			j.Packets, j.Bytes = &n.Packets, &n.Bytes
		}
		out.Elements = append(out.Elements, j)
	}
	return out
}

func fromChain(c *nft.Chain) Chain {
	out := Chain{Name: c.Name, Comment: c.Comment, Type: string(c.Type), Hook: string(c.Hook), Rules: []Rule{}}
	if c.Hook != "" {
		out.Priority = &c.Priority
	}
	if c.DropPolicy {
		out.Policy = "drop"
	}
	for _, r := range c.Rules {
		out.Rules = append(out.Rules, Rule{Rule: nft.Rule{Statements: r.Statements}.String(), Comment: r.Comment})
	}
	return out
}
