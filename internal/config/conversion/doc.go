// Package conversion turns the versions of a KubeProxyConfiguration into each other. Nothing
// that the other version can express is lost; what it cannot express is listed.
//
// Both directions take documents as they were written, without defaults filled in. Where the
// versions' defaults differ, the result says aloud what the input left to its default.
package conversion

import "fmt"

// Loss is a setting that the other version cannot express.
type Loss struct {
	// Field is the path of the setting in the version that was converted.
	Field string
	// Reason says why it is lost, and what holds instead.
	Reason string
}

// String returns the loss as one line.
func (l Loss) String() string { return fmt.Sprintf("%s: %s", l.Field, l.Reason) }

type losses []Loss

func (l *losses) add(field, format string, args ...any) {
	*l = append(*l, Loss{Field: field, Reason: fmt.Sprintf(format, args...)})
}
