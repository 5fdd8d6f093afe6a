package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/ruledump/snapshot"
	"github.com/spf13/cobra"
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

// writeValue writes a document as JSON or YAML.
func writeValue(w io.Writer, format string, document any) error {
	if format == "yaml" {
		data, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(document)
}

// writeRuleset writes tables as nft does, or a dump.
func writeRuleset(w io.Writer, format *outputFormat, s *snapshot.Snapshot) error {
	if format.value == "json" {
		return s.Write(w)
	}
	for _, t := range s.Tables {
		if _, err := t.WriteTo(w); err != nil {
			return err
		}
	}
	return nil
}
