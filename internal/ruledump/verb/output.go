package verb

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// outputFormat is the value of -o.
type outputFormat struct {
	value   string
	choices []string
}

// newFormat returns a flag with those choices, of which the first is the default.
func newFormat(choices ...string) *outputFormat { return &outputFormat{choices[0], choices} }

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

func (f *outputFormat) list() string {
	last := len(f.choices) - 1
	return strings.Join(f.choices[:last], ", ") + " or " + f.choices[last]
}

func (f *outputFormat) addTo(cmd *cobra.Command) {
	cmd.Flags().VarP(f, "output", "o", f.list())
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(f.choices, cobra.ShellCompDirectiveNoFileComp))
}

// document is the beginning of all JSON that the commands write.
type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func documentOf(kind string) document { return document{ruledump.APIVersion, kind} }

// nodeDocument is the beginning of a document about one node. NodeSource says where the name of a kernel's node comes
// from: "proxy" or "host-name".
type nodeDocument struct {
	document
	Node       string `json:"node,omitempty"`
	NodeSource string `json:"nodeSource,omitempty"`
}

func aboutNode(kind string, s *ruledump.Snapshot) nodeDocument {
	return nodeDocument{documentOf(kind), s.Node, s.NodeSource}
}

// write writes a document as JSON or YAML, or in another format by text.
func (f *outputFormat) write(w io.Writer, document any, text func() error) error {
	switch f.value {
	default:
		return text()
	case "yaml":
		data, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(document)
	}
}

// writeRuleset writes tables as nft does, or a dump.
func writeRuleset(w io.Writer, format *outputFormat, s *ruledump.Snapshot) error {
	if format.value == "json" {
		return s.Write(w)
	}
	for _, t := range s.Tables {
		if _, err := io.WriteString(w, t.String()); err != nil {
			return err
		}
	}
	return nil
}

// Colours marks text. The zero value leaves it as it is.
type Colours struct{ on bool }

// coloursFor returns the scheme for a writer: colours if it is a terminal, TERM is not "dumb" and NO_COLOR is not set
// (https://no-color.org).
func coloursFor(w io.Writer) Colours {
	file, isFile := w.(*os.File)
	return Colours{isFile && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))}
}

func (s Colours) mark(code, text string) string {
	if !s.on {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Bold is for headings.
func (s Colours) Bold(text string) string { return s.mark("1", text) }

// Bad is for frontends that serve nobody, and for unwanted parts.
func (s Colours) Bad(text string) string { return s.mark("31", text) }

// Good is for wanted parts that are missing.
func (s Colours) Good(text string) string { return s.mark("32", text) }
