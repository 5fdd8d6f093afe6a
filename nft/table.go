package nft

import (
	"fmt"
	"io"
	"strings"
)

// Table is a table with all it holds. Chains and Sets keep the order in which they print.
type Table struct {
	Family Family
	Name   string
	Chains []*Chain
	Sets   []*Set
	// Objects are what somebody else put into a table of the kernel's besides chains and sets.
	Objects []Object
	// Dormant switches all base chains of the table off.
	Dormant bool
	// Comment is shown by nft; at most 127 bytes. Kernel 5.10 and later.
	Comment string
	// Owner makes the table belong to the Conn that commits it: as long as that Conn is open, the kernel refuses what
	// anybody else wants to change in the table (ErrTableOwned), and `nft flush ruleset` skips it. Kernel 5.12 and later.
	Owner bool
	// Persist has the kernel keep the table when its owner goes. Then the table has no owner, anybody can
	// change it, and whoever commits it with Owner and Persist takes it over. Without Persist, the table goes with its
	// owner. Kernel 6.9 and later: see ProbePersist. nft 1.0.6 lists `flags owner` for both, and nothing for an orphan.
	Persist bool
	// OwnerPort is the netlink port id of a table's owner, as read from the kernel; 0 for none. By convention it
	// is the process id of the owner, if the owner has one netlink socket only.
	OwnerPort uint32
}

// Flags of a table (NFT_TABLE_F_…).
const (
	tableDormant = 1
	tableOwner   = 2
	tablePersist = 4
)

// flags returns the kernel's flags.
func (t *Table) flags() (flags uint32) {
	for _, f := range []struct {
		set  bool
		flag uint32
	}{{t.Dormant, tableDormant}, {t.Owner, tableOwner}, {t.Persist, tablePersist}} {
		if f.set {
			flags |= f.flag
		}
	}
	return flags
}

func (t *Table) setFlags(flags uint32) {
	t.Dormant, t.Owner, t.Persist = flags&tableDormant != 0, flags&tableOwner != 0, flags&tablePersist != 0
}

// flagsText returns the flags as nft lists them; empty for none.
func (t *Table) flagsText() string {
	var words []string
	for _, f := range []struct {
		set  bool
		word string
	}{{t.Dormant, "dormant"}, {t.Owner, "owner"}, {t.Persist, "persist"}} {
		if f.set {
			words = append(words, f.word)
		}
	}
	return strings.Join(words, ", ")
}

// orphan reports whether the table has lost its owner and can be taken over.
func (t *Table) orphan() bool { return t.Persist && !t.Owner }

// identity is what tells one table from another.
type identity struct {
	family Family
	name   string
}

func (t *Table) identity() identity { return identity{t.Family, t.Name} }

// Chain returns the chain of that name, or nil.
func (t *Table) Chain(name string) *Chain {
	for _, c := range t.Chains {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Set returns the set or map of that name, or nil.
func (t *Table) Set(name string) *Set {
	for _, s := range t.Sets {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// String prints the table as nft lists it and can load it, except that elements stand one
// a line in the order of their keys.
func (t *Table) String() string {
	var b strings.Builder
	t.appendText(&b)
	return b.String()
}

// WriteTo writes String to w.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, t.String())
	return int64(n), err
}

func (t *Table) appendText(b *strings.Builder) {
	fmt.Fprintf(b, "table %s %s {\n", t.Family, t.Name)
	blank := false
	if flags := t.flagsText(); flags != "" {
		fmt.Fprintf(b, "\tflags %s\n", flags)
		blank = true
	}
	if t.Comment != "" {
		fmt.Fprintf(b, "\tcomment %s\n", quote(t.Comment))
		blank = true
	}
	for _, o := range t.Objects {
		fmt.Fprintf(b, "\t%s {\n\t}\n", o)
		blank = true
	}
	for _, s := range t.Sets {
		if blank {
			b.WriteByte('\n')
		}
		s.appendText(b)
		blank = true
	}
	for _, c := range t.Chains {
		if blank {
			b.WriteByte('\n')
		}
		c.appendText(b)
		blank = true
	}
	b.WriteString("}\n")
}

func (s *Set) appendText(b *strings.Builder) {
	fmt.Fprintf(b, "\t%s %s {\n\t\t%s\n", s.Kind(), s.Name, s.typeText())
	if s.Size > 0 {
		fmt.Fprintf(b, "\t\tsize %d\n", s.Size)
	}
	if f := s.flagsText(); f != "" {
		fmt.Fprintf(b, "\t\tflags %s\n", f)
	}
	if s.Comment != "" {
		fmt.Fprintf(b, "\t\tcomment %s\n", quote(s.Comment))
	}
	if s.Len() > 0 {
		b.WriteString("\t\telements = {\n")
		for _, e := range s.Elements() {
			b.WriteString("\t\t\t")
			s.appendElement(b, e)
			b.WriteString(",\n")
		}
		b.WriteString("\t\t}\n")
	}
	b.WriteString("\t}\n")
}

func (s *Set) typeText() string {
	switch {
	case s.Verdicts:
		return "typeof " + s.Key.String() + " : verdict"
	case s.Data != nil:
		return "typeof " + s.Key.String() + " : " + s.Data.String()
	}
	return "typeof " + s.Key.String()
}

func (c *Chain) appendText(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if c.Comment != "" {
		fmt.Fprintf(b, "\t\tcomment %s\n", quote(c.Comment))
	}
	if h := c.header(); h != "" {
		fmt.Fprintf(b, "\t\t%s\n", h)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(b, "\t\t%s\n", r)
	}
	b.WriteString("\t}\n")
}
