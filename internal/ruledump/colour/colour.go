// Package colour marks text with colours if it is written to a terminal.
package colour

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Scheme marks text. The zero value leaves it as it is.
type Scheme struct{ on bool }

// For returns the scheme for a writer: colours if it is a terminal, TERM is not "dumb" and NO_COLOR is not set
// (https://no-color.org).
func For(w io.Writer) Scheme {
	file, isFile := w.(*os.File)
	return Scheme{isFile && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))}
}

func (s Scheme) mark(code, text string) string {
	if !s.on {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Bold is for headings.
func (s Scheme) Bold(text string) string { return s.mark("1", text) }

// Bad is for frontends that serve nobody, and for unwanted parts.
func (s Scheme) Bad(text string) string { return s.mark("31", text) }

// Good is for wanted parts that are missing.
func (s Scheme) Good(text string) string { return s.mark("32", text) }
