package flows

import (
	"errors"
	"fmt"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"sigs.k8s.io/yaml"
)

// Step is a part of a case that one state cannot show. Steps come after the case's flows; exactly one field is set.
type Step struct {
	// Apply creates or replaces the objects of a file of the archive, and Delete deletes those of one.
	Apply  string `json:"apply"`
	Delete string `json:"delete"`
	// Restart ends the proxy and starts it again, and Flush removes all nftables rules.
	Restart bool `json:"restart"`
	Flush   bool `json:"flush"`
	// Wait waits, for what takes its time in the kernel.
	Wait string `json:"wait"`
	// Entries are flows as in flows.yaml.
	Entries []entry `json:"flows"`

	// Objects are those of Apply or Delete, Flows those of Entries, and Pause is the time of Wait.
	Objects []apiservertest.Object `json:"-"`
	Flows   []Flow                 `json:"-"`
	Pause   time.Duration          `json:"-"`
}

const stepsFile = "steps.yaml"

// Steps returns the steps of the case, nil for none. Each call decodes the objects anew.
func (c Case) Steps() (steps []Step, err error) {
	var file struct {
		Steps []Step `json:"steps"`
	}
	if err := yaml.UnmarshalStrict(c.file(stepsFile), &file); err != nil {
		return nil, fmt.Errorf("%s: %w", stepsFile, err)
	}
	for i := range file.Steps {
		if err := file.Steps[i].parse(c); err != nil {
			return nil, fmt.Errorf("%s: steps[%d]: %w", stepsFile, i, err)
		}
	}
	return file.Steps, nil
}

func (s *Step) parse(c Case) (err error) {
	set := 0
	for _, is := range []bool{s.Apply != "", s.Delete != "", s.Restart, s.Flush, s.Wait != "", s.Entries != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return errors.New("needs exactly one of apply, delete, restart, flush, wait and flows")
	}
	if name := s.Apply + s.Delete; name != "" {
		if c.file(name) == nil {
			return fmt.Errorf("the archive has no file %s", name)
		}
		s.Objects, err = Objects(c.file(name))
		return err
	}
	if s.Wait != "" {
		s.Pause, err = time.ParseDuration(s.Wait)
		return err
	}
	if s.Entries != nil {
		s.Flows, err = parseFlows(s.Entries)
	}
	return err
}

// String names the step.
func (s Step) String() string {
	switch {
	case s.Apply != "":
		return "apply " + s.Apply
	case s.Delete != "":
		return "delete " + s.Delete
	case s.Restart:
		return "restart"
	case s.Flush:
		return "flush"
	case s.Wait != "":
		return "wait " + s.Wait
	}
	return "flows"
}
