package ruledump

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// verdictData is the Data of a verdict map.
const verdictData = "verdict"

// maxSize is how many bytes of a dump are read. A dump of 10,000 Services with 10 endpoints each has some 10 MB.
const maxSize = 1 << 30

// ErrTruncated says that a dump ends in the middle.
var ErrTruncated = errors.New("the dump is truncated: it ends in the middle")

// readDump reads a dump of writeDump. It returns the tables as rulesets, the document without them, and the counts, which are
// empty for a dump without any. An error names the fault and its place: a truncated dump, JSON that is no dump, a dump
// of a newer version, a rule that cannot be read.
func readDump(r io.Reader) (*document, []*nft.Table, Counts, error) {
	limited := &io.LimitedReader{R: r, N: maxSize + 1}
	var d document
	switch err := decode(limited, &d); {
	case limited.N <= 0:
		return nil, nil, nil, fmt.Errorf("the dump has more than %d bytes", maxSize)
	case err != nil:
		return nil, nil, nil, err
	}
	tables, counts := make([]*nft.Table, 0, len(d.Tables)), Counts{}
	for i := range d.Tables {
		t, err := d.Tables[i].table(counts)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("table %s %s: %w", d.Tables[i].Family, d.Tables[i].Name, err)
		}
		tables = append(tables, t)
	}
	d.Tables = nil
	return &d, tables, counts, nil
}

func decode(r io.Reader, d *document) error {
	dec := json.NewDecoder(r)
	err := dec.Decode(d)
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the dump is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return ErrTruncated
	case errors.As(err, &syntax):
		return fmt.Errorf("this is no dump: at byte %d: %w", syntax.Offset, err)
	}
	// The version comes first: a newer version may be the reason why the rest does not decode.
	switch {
	case d.APIVersion == "" && d.Kind == "":
		return fmt.Errorf("this is no dump of ruledump's: it has no apiVersion; %s %s is wanted, as `ruledump live -o json` writes it", APIVersion, Kind)
	case d.APIVersion != APIVersion:
		return fmt.Errorf("the dump has apiVersion %q, and this ruledump reads %s: use the ruledump of the version that wrote it", d.APIVersion, APIVersion)
	case d.Kind != Kind:
		return fmt.Errorf("the document is of kind %q, and a dump is of kind %s, as `ruledump live -o json` writes it", d.Kind, Kind)
	case err != nil:
		return fmt.Errorf("the dump cannot be read: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the end of the dump")
	}
	return nil
}

func (t *tableText) table(counts Counts) (*nft.Table, error) {
	out := &nft.Table{Name: t.Name, Comment: t.Comment, Kernel: &nft.KernelTable{OwnerPort: t.OwnerPort}}
	for _, f := range nft.Families {
		if f.String() == t.Family {
			out.Family = f
		}
	}
	if out.Family == 0 {
		return nil, errors.New("the family is not ip or ip6")
	}
	for _, f := range t.Flags {
		switch f {
		case "dormant":
			out.Dormant = true
		case "owner":
			out.Owner = true
		case "persist":
			out.Persist = true
		}
	}
	for _, text := range t.Objects {
		out.Kernel.Objects = append(out.Kernel.Objects, parseObject(text))
	}
	for _, sets := range [][]setText{t.Maps, t.Sets} {
		for i := range sets {
			s, err := sets[i].set()
			if err != nil {
				return nil, fmt.Errorf("set %s: %w", sets[i].Name, err)
			}
			sets[i].addCounts(s, CountedSet{out.Family, s.Name}, counts)
			out.Sets = append(out.Sets, s)
		}
	}
	for i := range t.Chains {
		c, err := t.Chains[i].chain(out.Family)
		if err != nil {
			return nil, fmt.Errorf("chain %s: %w", t.Chains[i].Name, err)
		}
		out.Chains = append(out.Chains, c)
	}
	return out, nil
}

// parseObject is the inverse of nft.Object.String. A kind can be two words, a name is one.
func parseObject(text string) nft.Object {
	at := strings.LastIndexByte(text, ' ')
	if at < 0 {
		return nft.Object{Kind: text}
	}
	return nft.Object{Kind: text[:at], Name: text[at+1:]}
}

func (s *setText) set() (*nft.Set, error) {
	out := &nft.Set{Name: s.Name, Comment: s.Comment, Interval: s.Interval, Dynamic: s.Dynamic, Size: s.Size, Counter: s.Counter, Verdicts: s.Data == verdictData}
	var err error
	if out.Key, err = parseType(s.Key); err != nil {
		return nil, fmt.Errorf("key %q: %w", s.Key, err)
	}
	if s.Data != "" && !out.Verdicts {
		if out.Data, err = parseType(s.Data); err != nil {
			return nil, fmt.Errorf("data %q: %w", s.Data, err)
		}
	}
	for i := range s.Elements {
		e, err := s.Elements[i].element(out)
		if err != nil {
			return nil, fmt.Errorf("element %q: %w", s.Elements[i].Key, err)
		}
		out.Put(e)
	}
	return out, nil
}

// addCounts adds what the elements have counted. Their keys were read before.
func (s *setText) addCounts(set *nft.Set, id CountedSet, counts Counts) {
	for i := range s.Elements {
		if e := &s.Elements[i]; s.Counter && e.Packets != nil && e.Bytes != nil {
			if key, _, err := parseKey(set, e.Key); err == nil {
				counts.Put(id, key, nft.Count{Packets: *e.Packets, Bytes: *e.Bytes})
			}
		}
	}
}

func (e *elementText) element(set *nft.Set) (out nft.Element, err error) {
	out.Comment = e.Comment
	if out.Key, out.KeyEnd, err = parseKey(set, e.Key); err != nil {
		return out, err
	}
	switch {
	case set.Verdicts:
		if out.Verdict, err = parseVerdict(e.Value); err != nil {
			return out, err
		}
	case set.Data != nil:
		if out.Value, err = parseData(set.Data, e.Value); err != nil {
			return out, err
		}
	}
	if e.Timeout != "" {
		if out.Timeout, err = time.ParseDuration(e.Timeout); err == nil {
			out.Expires, err = time.ParseDuration(e.Expires)
		}
	}
	return out, err
}

func (c *chainText) chain(family nft.Family) (*nft.Chain, error) {
	out := &nft.Chain{Name: c.Name, Comment: c.Comment, Type: nft.ChainType(c.Type), Hook: nft.Hook(c.Hook), DropPolicy: c.Policy == "drop"}
	if c.Priority != nil {
		out.Priority = *c.Priority
	}
	for _, r := range c.Rules {
		statements, err := parseRule(family, strings.TrimSpace(r.Rule))
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.Rule, err)
		}
		out.Rules = append(out.Rules, nft.Rule{Statements: statements, Comment: r.Comment})
	}
	return out, nil
}
