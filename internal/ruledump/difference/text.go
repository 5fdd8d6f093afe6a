package difference

import (
	"fmt"
	"io"
	"strings"

	"github.com/nftproxy/nftproxy/internal/ruledump/colour"
)

// shown is how many Services, and how many elements and rules, are printed.
const shown = 20

// Text prints the difference for people: of Services, and of the rules behind them, the first 20 each, or all.
func (d *Difference) Text(w io.Writer, all bool, c colour.Scheme) error {
	var b strings.Builder
	if d.Equal {
		b.WriteString("no difference\n")
	}
	for i := range d.Services {
		if i == shown && !all {
			fmt.Fprintf(&b, "… and %d more addresses of Services: --all prints them\n", len(d.Services)-i)
			break
		}
		d.Services[i].print(&b, c)
	}
	if len(d.Rules) > 0 {
		fmt.Fprintf(&b, "%s\n", c.Bold(fmt.Sprintf("elements and rules: %d different", len(d.Rules))))
	}
	for i, r := range d.Rules {
		if i == shown && !all {
			fmt.Fprintf(&b, "  … and %d more: --all prints them\n", len(d.Rules)-i)
			break
		}
		b.WriteString(mark(c, r.Is, fmt.Sprintf("  %s %s: %s", signs[r.Is], r.Where, r.What)) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

var signs = map[string]string{Missing: "-", Unwanted: "+", Changed: "~"}

// mark colours the line of a difference by its kind.
func mark(c colour.Scheme, is, line string) string {
	switch is {
	case Missing:
		return c.Bad(line)
	case Unwanted:
		return c.Good(line)
	}
	return line
}

func (s *Service) print(b *strings.Builder, c colour.Scheme) {
	line := fmt.Sprintf("%s %s %s/%s (%s)", signs[s.Is], s.ServicePort, s.Address, s.Protocol, s.Kind)
	switch s.Is {
	case Missing:
		line += ": wanted, and not there"
	case Unwanted:
		line += ": there, and not wanted"
	}
	b.WriteString(mark(c, s.Is, line) + "\n")
	for _, change := range s.Changes {
		fmt.Fprintf(b, "    %s: wanted %s, is %s\n", change.Property, orNone(change.Wanted), orNone(change.Actual))
	}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
