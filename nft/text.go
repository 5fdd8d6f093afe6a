package nft

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxComment is the longest comment that nft loads (NFTNL_UDATA_COMMENT_MAXLEN less its final NUL).
const maxComment = 127

// TruncateComment returns s in the form in which the kernel keeps it as a comment, nft lists and loads it, and
// ReadTable reads it back. A text of more than 127 bytes is cut and ends in "...". nft has no escapes inside of a
// string, so a quote becomes an apostrophe. A control character becomes "?" (NUL would end the comment), and so does
// each byte that is not UTF-8. Everything in this package that prints or commits a comment calls it.
func TruncateComment(s string) string {
	if len(s) <= maxComment && isPlain(s) {
		return s
	}
	s = strings.Map(plainRune, s)
	if len(s) <= maxComment {
		return s
	}
	cut := maxComment - len("...")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// isPlain reports whether s is printable ASCII without quotes, as nearly all comments are.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '"' {
			return false
		}
	}
	return true
}

func plainRune(r rune) rune {
	switch {
	case r == '"':
		return '\''
	case r == utf8.RuneError || unicode.IsControl(r):
		return '?'
	}
	return r
}

// sameComment reports whether two comments are the same to the kernel.
func sameComment(a, b string) bool { return a == b || TruncateComment(a) == TruncateComment(b) }

func quote(s string) string { return `"` + TruncateComment(s) + `"` }

// commentText returns a comment as nft lists it; empty for none.
func commentText(comment string) string {
	if comment == "" {
		return ""
	}
	return "comment " + quote(comment)
}

func present(texts ...string) []string {
	return slices.DeleteFunc(texts, func(text string) bool { return text == "" })
}

// maxName is the longest name of a table, chain or set (NFT_NAME_MAXLEN less its final NUL).
const maxName = 255

// checkText refuses a name that the kernel would refuse or change.
func checkText(what, name string, longest int) error {
	switch {
	case name == "":
		return fmt.Errorf("nft: %s without a name", what)
	case strings.Contains(name, "\x00"):
		return fmt.Errorf("nft: name of %s %q has a NUL in it", what, name)
	case len(name) > longest:
		return fmt.Errorf("nft: name of %s %q has %d bytes, at most %d are allowed", what, name, len(name), longest)
	}
	return nil
}

// checkNames refuses a step with a name that the kernel would refuse.
func (s Step) checkNames() error {
	err := checkText("table", s.Table.Name, maxName)
	switch {
	case err != nil:
		return err
	case s.Set != nil:
		return checkText(s.Set.Kind(), s.Set.Name, maxName)
	case s.Chain != nil:
		return checkText("chain", s.Chain.Name, maxName)
	}
	return nil
}
