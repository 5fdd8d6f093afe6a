// Package testdata holds the golden cases, for programs that carry them along.
package testdata

import "embed"

// Corpus holds the cases and the files that they share.
//
//go:embed *.txtar *.yaml
var Corpus embed.FS
