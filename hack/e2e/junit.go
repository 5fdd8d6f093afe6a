package main

import (
	"encoding/xml"
	"os"
	"strings"
)

// outcome is the state in which a spec ended, in ginkgo's words.
type outcome string

const (
	passed  outcome = "passed"
	skipped outcome = "skipped"
	pending outcome = "pending"
)

// spec is a spec that ran, or that skipped itself.
type spec struct {
	name    string
	outcome outcome
	seconds float64
	// message is why it failed or skipped itself.
	message string
}

// text is the spec's name without the list of labels that ginkgo writes behind it, and that its expressions do not match.
func (s spec) text() string {
	if i := strings.LastIndex(s.name, " ["); i > 0 {
		return s.name[:i]
	}
	return s.name
}

// readJUnit returns the specs of a report of ginkgo's: those that ran, and those that skipped themselves. Not those that
// the expressions leave out.
func readJUnit(path string) ([]spec, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseJUnit(text)
}

func parseJUnit(text []byte) (specs []spec, err error) {
	type message struct {
		Message string `xml:"message,attr"`
	}
	var suites struct {
		Suites []struct {
			Cases []struct {
				Name    string   `xml:"name,attr"`
				Status  string   `xml:"status,attr"`
				Time    float64  `xml:"time,attr"`
				Skipped *message `xml:"skipped"`
				Failure *message `xml:"failure"`
				Error   *message `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &suites); err != nil {
		return nil, err
	}
	for _, suite := range suites.Suites {
		for _, c := range suite.Cases {
			name, isSpec := strings.CutPrefix(c.Name, "[It] ")
			s := spec{name: name, outcome: outcome(c.Status), seconds: c.Time}
			for _, m := range []*message{c.Skipped, c.Failure, c.Error} {
				if m != nil {
					s.message = m.Message
				}
			}
			// What surrounds the specs is of interest if it failed.
			if !isSpec && s.outcome == passed || s.outcome == pending || s.outcome == skipped && (!isSpec || s.message == "skipped") {
				continue
			}
			specs = append(specs, s)
		}
	}
	return specs, nil
}
