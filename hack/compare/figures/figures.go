// Package figures has what a run of hack/compare measured, for the chart of hack/performance.
package figures

import (
	"encoding/json"
	"os"
	"time"
)

// Run is one run.
type Run struct {
	// Versions has what each contender prints of its version, by its name.
	Versions map[string]string
	Points   []Point
}

// Point is one contender with one size of cluster.
type Point struct {
	Contender           string
	Services, Endpoints int
	// FirstSync and OneChange are the times of the Syncs at the start and with one more Service, by the contender's metric.
	FirstSync, OneChange Limited
	// Peak is the most memory at a time, in bytes, of the process and the programs that it ran.
	Peak int64
}

// Limited is a time. Over says that it is a limit at which measuring ended, so that the contender takes longer.
type Limited struct {
	Time time.Duration
	Over bool
}

// Write writes a run to a file.
func (r Run) Write(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Read reads what Write wrote.
func Read(path string) (r Run, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}
