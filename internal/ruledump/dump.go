package ruledump

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/version"
	"github.com/nftproxy/nftproxy/nft"
)

// APIVersion is the version of all JSON that ruledump writes. A change that a reader can ignore, such as one more
// field, does not change it.
const APIVersion = "ruledump.nftproxy/v1"

// kind is the kind of a document.
const kind = "Ruleset"

// Dump is the document that "ruledump live -o json" writes and "--dump FILE" reads.
type Dump = document[tableText, otherText]

// document is a dump. It has each table twice: as a recording, which is all that is read, and in nft's words for
// people and jq.
type document[Table, Other any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Writer     string `json:"writer,omitempty"`
	Header
	Tables []Table        `json:"tables"`
	Others *others[Other] `json:"others,omitempty"` // absent if the tables of other programs were not read
}

type tableText struct {
	Family    string      `json:"family" jsonschema:"enum=ip,enum=ip6"`
	Name      string      `json:"name"`
	Comment   string      `json:"comment,omitempty"`
	Flags     []string    `json:"flags,omitempty" jsonschema:"enum=dormant,enum=owner,enum=persist"`
	OwnerPort uint32      `json:"ownerPort,omitempty"`
	Objects   []string    `json:"objects,omitempty"`
	Sets      []setText   `json:"sets"`
	Maps      []setText   `json:"maps"`
	Chains    []chainText `json:"chains"`
	// Netlink: the netlink messages that describe the table; the other fields repeat them as text
	Netlink nft.Recording `json:"netlink"`
}

// tableBytes is the part of a tableText that is read.
type tableBytes struct {
	Family, Name string
	Netlink      nft.Recording
}

type setText struct {
	Name     string        `json:"name"`
	Key      string        `json:"key"`            // nft's typeof
	Data     string        `json:"data,omitempty"` // nft's typeof of a map's values; "verdict" in a verdict map
	Comment  string        `json:"comment,omitempty"`
	Interval bool          `json:"interval,omitempty"`
	Dynamic  bool          `json:"dynamic,omitempty"`
	Size     uint32        `json:"size,omitempty"`
	Counter  bool          `json:"counter,omitempty"` // the elements count packets and bytes
	Elements []elementText `json:"elements"`
}

type elementText struct {
	Key     string  `json:"key"`
	Value   string  `json:"value,omitempty"`
	Comment string  `json:"comment,omitempty"` // the Service port, such as shop/web:http
	Timeout string  `json:"timeout,omitempty"`
	Expires string  `json:"expires,omitempty"`
	Packets *uint64 `json:"packets,omitempty"` // what the element of a set with counter has counted
	Bytes   *uint64 `json:"bytes,omitempty"`
}

type chainText struct {
	Name     string     `json:"name"`
	Comment  string     `json:"comment,omitempty"`
	Type     string     `json:"type,omitempty" jsonschema:"enum=filter,enum=nat,enum=route"`
	Hook     string     `json:"hook,omitempty" jsonschema:"enum=prerouting,enum=input,enum=forward,enum=output,enum=postrouting,enum=ingress,enum=egress"`
	Priority *int32     `json:"priority,omitempty"`
	Policy   string     `json:"policy,omitempty" jsonschema:"enum=drop"`
	Rules    []ruleText `json:"rules"`
}

type ruleText struct {
	Rule    string `json:"rule"`
	Comment string `json:"comment,omitempty"`
}

// Write writes the snapshot as a dump.
func (s *Snapshot) Write(w io.Writer) error {
	d := Dump{
		APIVersion: APIVersion, Kind: kind, Writer: "ruledump " + version.Own(), Header: s.Header, Tables: []tableText{},
	}
	for i, t := range s.Tables {
		text := fromTable(t, s.Counts)
		if s.recordings != nil {
			text.Netlink = s.recordings[i]
		} else if recording, err := t.Record(); err != nil {
			return err
		} else {
			text.Netlink = recording
		}
		d.Tables = append(d.Tables, text)
	}
	d.Others = s.othersText()
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(d)
}

func fromTable(t *nft.Table, counts Counts) tableText {
	out := tableText{
		Family: t.Family.String(), Name: t.Name, Comment: t.Comment,
		Sets: []setText{}, Maps: []setText{}, Chains: []chainText{},
	}
	for i, set := range [...]bool{t.Dormant, t.Owner, t.Persist} {
		if set {
			out.Flags = append(out.Flags, [...]string{"dormant", "owner", "persist"}[i])
		}
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

func fromSet(s *nft.Set, counts map[nft.Data]nft.Count) setText {
	out := setText{
		Name: s.Name, Key: s.Key.String(), Comment: s.Comment, Interval: s.Interval,
		Dynamic: s.Dynamic, Size: s.Size, Counter: s.Counter, Elements: []elementText{},
	}
	switch {
	case s.Verdicts:
		out.Data = "verdict"
	case s.Data != nil:
		out.Data = s.Data.String()
	}
	keys := nft.Set{Key: s.Key} // prints keys alone
	for _, e := range s.Elements() {
		j := elementText{Key: keys.FormatElement(nft.Element{Key: e.Key, KeyEnd: e.KeyEnd}), Comment: e.Comment}
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

func fromChain(c *nft.Chain) chainText {
	out := chainText{Name: c.Name, Comment: c.Comment, Type: string(c.Type), Hook: string(c.Hook), Rules: []ruleText{}}
	if c.Hook != "" {
		out.Priority = &c.Priority
	}
	if c.DropPolicy {
		out.Policy = "drop"
	}
	for _, r := range c.Rules {
		out.Rules = append(out.Rules, ruleText{Rule: nft.Rule{Statements: r.Statements}.String(), Comment: r.Comment})
	}
	return out
}

// maxSize bounds the bytes of a dump that are read. A dump of 10,000 Services with 10 endpoints each has some 30 MB.
const maxSize = 1 << 30

var errTruncated = errors.New("the dump is truncated: it ends in the middle")

// FromDump reads a dump, or the dump in a report. An error names the fault and its place: a truncated dump, JSON
// that is no dump, a dump of another version.
func FromDump(r io.Reader) (*Snapshot, error) {
	buffered := bufio.NewReader(r)
	if beginning, _ := buffered.Peek(2); isReport(beginning) {
		return fromReport(buffered)
	}
	return fromDocument(buffered)
}

func fromDocument(r io.Reader) (*Snapshot, error) {
	limited := &io.LimitedReader{R: r, N: maxSize + 1}
	var d document[tableBytes, otherBytes]
	switch err := decode(limited, &d); {
	case limited.N <= 0:
		return nil, fmt.Errorf("the dump has more than %d bytes", maxSize)
	case err != nil:
		return nil, err
	}
	s := &Snapshot{Header: d.Header}
	for i := range d.Tables {
		text := &d.Tables[i]
		if len(text.Netlink) == 0 {
			return nil, fmt.Errorf("table %s %s: the dump has no netlink messages of it, so this ruledump cannot read it; the one that wrote it can (%q)", text.Family, text.Name, d.Writer)
		}
		t, err := text.Netlink.Table()
		switch {
		case err != nil:
			return nil, fmt.Errorf("table %s %s: %w", text.Family, text.Name, err)
		case t.Name != compiler.TableName && !strings.HasPrefix(t.Name, compiler.TableName+"."):
			return nil, fmt.Errorf("the dump has a table %s %s, and the proxy's are called %s",
				t.Family, t.Name, compiler.TableName)
		}
		if err := s.add(t, text.Netlink); err != nil {
			return nil, fmt.Errorf("table %s %s: %w", text.Family, text.Name, err)
		}
	}
	if len(s.Tables) == 0 {
		return nil, fmt.Errorf("the dump has no table ip %s or ip6 %[1]s", compiler.TableName)
	}
	if d.Others != nil {
		if err := s.addRecorded(d.Others); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func decode(r io.Reader, d *document[tableBytes, otherBytes]) error {
	dec := json.NewDecoder(r)
	err := dec.Decode(d)
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the dump is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errTruncated
	case errors.As(err, &syntax):
		return fmt.Errorf("this is no dump: at byte %d: %w", syntax.Offset, err)
	}
	// The version comes first: a newer version may be the reason why the rest does not decode.
	switch {
	case d.APIVersion == "" && d.Kind == "":
		return fmt.Errorf("this is no dump of ruledump's: it has no apiVersion; %s %s is wanted, as `ruledump live -o json` writes it", APIVersion, kind)
	case d.APIVersion != APIVersion:
		return fmt.Errorf("the dump has apiVersion %q, and this ruledump reads %s: use the ruledump of the version that wrote it", d.APIVersion, APIVersion)
	case d.Kind != kind:
		return fmt.Errorf("the document is of kind %q, and a dump is of kind %s, as `ruledump live -o json` writes it",
			d.Kind, kind)
	case err != nil:
		return fmt.Errorf("the dump cannot be read: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the end of the dump")
	}
	return nil
}
