package manifests

import (
	"bytes"
	"iter"
)

// document is one YAML or JSON document of a file.
type document struct {
	// number counts from 1, line is where the document starts in its file, from 1.
	number, line int
	text         []byte
}

// documents splits a file at lines that begin with "---", which YAML forbids inside any
// document, even in a block of text. Documents without any content are passed over, but
// counted, so that the number is the one that a person counts.
func documents(file []byte) iter.Seq[document] {
	return func(yield func(document) bool) {
		file = bytes.TrimPrefix(file, []byte("\ufeff"))
		current := document{number: 1, line: 1}
		start, line := 0, 1
		for pos := 0; pos < len(file); line++ {
			end := len(file)
			if i := bytes.IndexByte(file[pos:], '\n'); i >= 0 {
				end = pos + i + 1
			}
			if isSeparator(file[pos:end]) {
				current.text = file[start:pos]
				if hasContent(current.text) {
					if !yield(current) {
						return
					}
					current.number++
				} else if start > 0 {
					current.number++
				}
				// What stands behind the dashes belongs to the document ("--- {a: 1}").
				start = pos + len("---")
				current.line = line
			}
			pos = end
		}
		current.text = file[start:]
		if hasContent(current.text) {
			yield(current)
		}
	}
}

func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r' || rest[0] == '\n')
}

// hasContent reports whether a document holds more than blank lines and comments.
func hasContent(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("...")) {
			return true
		}
	}
	return false
}
