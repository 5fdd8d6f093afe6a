package verb

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// View is the answer of a command. It is a document for JSON and YAML, and prints itself for people.
type View interface {
	Text(p *Page)
}

// outputFormat is the value of -o.
type outputFormat struct {
	value   string
	choices []string
	// noHeaders leaves out the headings of tables.
	noHeaders bool
}

// newFormat returns a flag with those choices, of which the first is the default. What has JSON has YAML.
func newFormat(choices ...string) *outputFormat {
	if at := slices.Index(choices, "json"); at >= 0 {
		choices = slices.Insert(choices, at+1, "yaml")
	}
	return &outputFormat{value: choices[0], choices: choices}
}

// String, Set and Type implement pflag.Value.
func (f *outputFormat) String() string { return f.value }

func (f *outputFormat) Set(s string) error {
	if !slices.Contains(f.choices, s) {
		return fmt.Errorf("unknown format %q; want %s", s, f.list())
	}
	f.value = s
	return nil
}

func (f *outputFormat) Type() string { return "format" }

// isDocument reports whether the format is for programs, and has all that is known.
func (f *outputFormat) isDocument() bool { return f.value == "json" || f.value == "yaml" }

func (f *outputFormat) list() string {
	last := len(f.choices) - 1
	return strings.Join(f.choices[:last], ", ") + " or " + f.choices[last]
}

func (f *outputFormat) addTo(cmd *cobra.Command) {
	cmd.Flags().VarP(f, "output", "o", f.list())
	if f.choices[0] == "table" {
		cmd.Flags().BoolVar(&f.noHeaders, "no-headers", false, "print tables without headings")
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(f.choices, cobra.ShellCompDirectiveNoFileComp))
}

// show writes a view in the format, for people a screen at a time.
func (f *outputFormat) show(w io.Writer, v View) error {
	switch f.value {
	case "json":
		return writeJSON(w, v)
	case "yaml":
		var b bytes.Buffer
		if err := writeJSON(&b, v); err != nil {
			return err
		}
		data, err := yaml.JSONToYAML(b.Bytes())
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	case "html":
		page, ok := v.(interface{ HTML() string })
		if !ok {
			return errors.New("-o html is for one node alone")
		}
		_, err := io.WriteString(w, page.HTML())
		return err
	}
	return writePages(w, f.text(w, v))
}

// text returns what a view prints for people.
func (f *outputFormat) text(w io.Writer, v View) string {
	p := newPage(coloursFor(w))
	p.Format, p.noHeaders = f.value, f.noHeaders
	v.Text(p)
	return p.String()
}

func writeJSON(w io.Writer, v View) error {
	if r, isRuleset := v.(ruleset); isRuleset {
		return r.Write(w)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// stream writes one view of many: as JSON on a line of its own, as YAML a document, else as show does.
func (f *outputFormat) stream(w io.Writer, v View) error {
	switch f.value {
	case "json":
		return json.NewEncoder(w).Encode(v)
	case "yaml":
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
		return f.show(w, v)
	}
	_, err := io.WriteString(w, f.text(w, v))
	return err
}

// TextOf returns a view as it prints without colours, in a format for people such as "wide".
func TextOf(v View, format string) string {
	p := &Page{Format: format}
	v.Text(p)
	return p.String()
}

// document is the beginning of all JSON that the commands write. `make golden` writes schema.json from the structs
// that are written as JSON: doc comments become descriptions, and the tag jsonschema has the values of a string
// (enum=…) or allows null (nullable).
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func documentOf(kind string) document { return document{ruledump.APIVersion, kind} }

// nodeDocument is the beginning of a document about one node.
type nodeDocument struct {
	document
	Node string `json:"node,omitempty"`
	// NodeSource: where the name of a kernel's node comes from; absent if --node gave it
	NodeSource string `json:"nodeSource,omitempty" jsonschema:"enum=proxy,enum=host-name"`
}

func aboutNode(kind string, s *ruledump.Snapshot) nodeDocument {
	return nodeDocument{documentOf(kind), s.Node, s.NodeSource}
}

// nodeText names the node for people, and says where the name may be wrong.
func (d nodeDocument) nodeText() string {
	if d.NodeSource == ruledump.NodeFromHost {
		return d.Node + " (host name)"
	}
	return d.Node
}

// ruleset prints tables as nft does. As JSON it is a dump.
type ruleset struct{ *ruledump.Snapshot }

// Text implements View.
func (r ruleset) Text(p *Page) {
	for _, t := range r.Tables {
		p.WriteString(t.String())
	}
}

// Page collects the text of a View.
type Page struct {
	strings.Builder
	// Format is the value of -o, such as "wide".
	Format    string
	noHeaders bool
	// marker begins each mark in the text. It is random, so that no name or comment can have one. Empty marks nothing.
	marker string
}

func newPage(colours bool) *Page {
	if !colours {
		return &Page{}
	}
	return &Page{marker: "\x1b" + rand.Text()}
}

// String returns the text for a terminal. Names and comments of other programs may have
// any characters, and so may a dump.
func (p *Page) String() string {
	text := p.Builder.String()
	if p.marker == "" {
		return harmless(text)
	}
	parts := strings.Split(text, p.marker)
	for i, part := range parts {
		parts[i] = harmless(part)
	}
	return strings.Join(parts, "\x1b[")
}

// controls are characters that a terminal obeys, and those that cannot be seen or turn the text beside them around.
var controls = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f-\x{9f}\p{Cf}\p{Zl}\p{Zp}]`)

// harmless spells out the controls of a text.
func harmless(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && (r < ' ' || r > '~') && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
	}) {
		return text
	}
	return controls.ReplaceAllStringFunc(text, func(found string) string { return strings.Trim(strconv.QuoteToASCII(found), `"`) })
}

func (p *Page) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// more says how many parts of a list are not printed, if any.
func (p *Page) more(n int, format string) {
	if n > 0 {
		p.printf(format, n)
	}
}

// names prints each name once, in their order.
func (p *Page) names(names []string) {
	printed := map[string]bool{}
	for _, name := range names {
		if !printed[name] {
			p.printf("%s\n", name)
		}
		printed[name] = true
	}
}

// table prints a row for each value of a list in columns, below a heading. bad, if set, chooses values to mark.
func table[T any](p *Page, head []string, list []T, row func(T) []any, bad func(T) bool) {
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, strings.Join(head, "\t"))
	for _, value := range list {
		for _, cell := range row(value) {
			fmt.Fprintf(tab, "%v\t", cell)
		}
		fmt.Fprintln(tab)
	}
	_ = tab.Flush() // a strings.Builder takes everything
	for i, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		line = strings.TrimRight(line, " ")
		switch {
		case i == 0 && p.noHeaders:
			continue
		case i == 0:
			line = p.bold(line)
		case bad != nil && bad(list[i-1]):
			line = p.bad(line)
		}
		p.printf("%s\n", line)
	}
}

// coloursFor reports whether text for a writer is coloured: if it is a terminal, TERM is not "dumb" and NO_COLOR is not
// set (https://no-color.org).
func coloursFor(w io.Writer) bool {
	file, isFile := w.(*os.File)
	return isFile && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

func (p *Page) mark(code, text string) string {
	if p.marker == "" {
		return text
	}
	return p.marker + code + "m" + text + p.marker + "0m"
}

// bold is for headings, bad for what serves nobody or is missing, good for what is too much.
func (p *Page) bold(text string) string { return p.mark("1", text) }
func (p *Page) bad(text string) string  { return p.mark("31", text) }
func (p *Page) good(text string) string { return p.mark("32", text) }

// headOf is the first line of an outcome, marked if no endpoint gets the packet.
func (p *Page) headOf(o *Outcome) string {
	if o.Result == "dropped" || o.Result == "refused" {
		return p.bad(o.head)
	}
	return o.head
}

func orDash(text string) string { return cmp.Or(text, "-") }
