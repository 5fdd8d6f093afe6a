package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/nftproxy/nftproxy/nft"
)

// outputFormat is the value of -o.
type outputFormat string

const (
	formatNft  outputFormat = "nft"
	formatJSON outputFormat = "json"
)

// String, Set and Type implement pflag.Value.
func (f *outputFormat) String() string { return string(*f) }

func (f *outputFormat) Set(s string) error {
	switch v := outputFormat(s); v {
	case formatNft, formatJSON:
		*f = v
		return nil
	}
	return fmt.Errorf("unknown format %q; want nft or json", s)
}

func (f *outputFormat) Type() string { return "format" }

func (f outputFormat) write(w io.Writer, tables []*nft.Table) error {
	if f == formatJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(map[string]any{"tables": tables})
	}
	for _, t := range tables {
		if _, err := t.WriteTo(w); err != nil {
			return err
		}
	}
	return nil
}
