package nft

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
)

func (s *Set) appendText(b *strings.Builder) {
	fmt.Fprintf(b, "\t%s %s {\n", s.Kind(), s.Name)
	for _, property := range s.properties() {
		fmt.Fprintf(b, "\t\t%s\n", property)
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

// flagsText returns the set's flags as nft lists them; empty for none.
func (s *Set) flagsText() string {
	switch {
	case s.Dynamic:
		return "flags dynamic,timeout"
	case s.Interval:
		return "flags interval"
	}
	return ""
}

// properties returns all but the set's name and elements, as nft lists it.
func (s *Set) properties() []string {
	size, counter := "", ""
	if s.Size > 0 {
		size = fmt.Sprintf("size %d", s.Size)
	}
	if s.Counter {
		counter = "counter"
	}
	return present(s.typeText(), size, s.flagsText(), counter, commentText(s.Comment))
}

// FormatElement prints an element of the set as nft does, such as
// `10.96.0.10 . tcp . 80 comment "default/web" : goto cluster-2`.
func (s *Set) FormatElement(e Element) string {
	var b strings.Builder
	s.appendElement(&b, e)
	return b.String()
}

func (s *Set) appendElement(b *strings.Builder, e Element) {
	s.appendKey(b, e)
	if unknown := s.kernel.unknown[e.Key]; unknown != "" {
		b.WriteString(" " + Unknown{unknown}.String())
	}
	if e.Comment != "" {
		b.WriteString(" comment ")
		b.WriteString(quote(e.Comment))
	}
	if e.Timeout > 0 {
		b.WriteString(" timeout " + formatDuration(e.Timeout) + " expires " + formatDuration(e.Expires))
	}
	switch {
	case s.Verdicts:
		b.WriteString(" : ")
		b.WriteString(e.Verdict.String())
	case s.Data != nil:
		b.WriteString(" : ")
		s.Data.appendFormat(b, e.Value)
	}
}

func (s *Set) formatKey(e Element) string {
	var b strings.Builder
	s.appendKey(&b, e)
	return b.String()
}

// appendKey prints the key of an element; of a range, the last field as a prefix if it is one.
func (s *Set) appendKey(b *strings.Builder, e Element) {
	if e.Key == CatchAll {
		b.WriteString("*")
		return
	}
	s.Key.appendFormat(b, e.Key)
	if e.KeyEnd == e.Key || len(e.KeyEnd) != len(e.Key) || len(e.Key) != s.Key.Len() {
		return
	}
	last := Concat{s.Key[len(s.Key)-1]}
	from, to := e.Key[len(e.Key)-last.Len():], e.KeyEnd[len(e.KeyEnd)-last.Len():]
	if bits, ok := prefixLength(from, to); ok {
		b.WriteString("/" + strconv.Itoa(bits))
		return
	}
	b.WriteString("-" + last.Format(to))
}

// prefixLength returns the length of the prefix whose first and last values are given.
func prefixLength(from, to Data) (bits int, ok bool) {
	for bits < 8*len(from) && bitAt(from, bits) == bitAt(to, bits) {
		bits++
	}
	for i := bits; i < 8*len(from); i++ {
		if bitAt(from, i) != 0 || bitAt(to, i) == 0 {
			return 0, false
		}
	}
	return bits, true
}

func bitAt(d Data, i int) byte { return d[i/8] >> (7 - i%8) & 1 }

// listedText prints the first elements of an anonymous set as they stand in a rule with the key.
func (s *Set) listedText(key Concat) string {
	var texts []string
	for i, e := range s.Elements() {
		if i == maxListedElement {
			texts = append(texts, "…")
			break
		}
		text := key.formatRange(e.Key, e.KeyEnd)
		if s.Verdicts {
			text += " : " + e.Verdict.String()
		} else if s.Data != nil {
			text += " : " + valueText(e.Value, s.Data.keyLen())
		}
		texts = append(texts, text)
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// valueText prints a value of a map whose type may be unknown. A value as long as an address and a port counts as these.
func valueText(value Data, length int) string {
	const port = 4 // padded
	if n := len(value) - port; n == 4 || n == 16 {
		return Constant(value[:n]).String() + " . " + formatPort(string(value[n:n+2]))
	}
	return Constant(value[:min(length, len(value))]).String()
}

// formatRange prints the keys from one to another, which may be empty.
func (c Concat) formatRange(from, to Data) string {
	var fields []string
	for _, e := range c {
		t := e.dataType()
		n, padded := t.length, netlinkattr.Padded(t.length)
		switch {
		case from == CatchAll:
			return "*"
		case padded > len(from) || n == 0:
			return Constant(from).String()
		}
		text := t.format(string(from[:n]))
		if len(to) >= padded {
			if to[:n] != from[:n] {
				text += "-" + t.format(string(to[:n]))
			}
			to = to[padded:]
		}
		fields, from = append(fields, text), from[padded:]
	}
	return strings.Join(fields, " . ")
}
