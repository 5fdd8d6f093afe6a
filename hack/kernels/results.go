package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A result is what one suite came to on one kernel. It is kept in the cache, so that a report can be made of several runs.
type result struct {
	Release         string        // of the kernel, as uname -r says
	Commit          string        // of the source, as git describe says
	Boot            time.Duration // until the first process had loaded the modules
	Status          string        // of the test binary: ok, or what it ended with
	Took            time.Duration // by the tests
	Passed          int           // tests, without their subtests
	Skipped, Failed []string      // tests and subtests
}

func resultFile(cache, version string, s suite) string {
	return filepath.Join(cache, version+" "+s.name+".json")
}

func (r result) keep(file string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// results are by kernel and suite.
type results map[string]map[string]result

// keptResults reads the results of all suites. One that was never run is missing.
func keptResults(cache string, versions []string) (results, error) {
	all := results{}
	for _, version := range versions {
		all[version] = map[string]result{}
		for _, s := range suites {
			data, err := os.ReadFile(resultFile(cache, version, s))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			var r result
			if err := errors.Join(err, json.Unmarshal(data, &r)); err != nil {
				return nil, fmt.Errorf("result of an earlier run: %w", err)
			}
			all[version][s.name] = r
		}
	}
	return all, nil
}

func (r result) print(s suite) {
	fmt.Printf("  %-14s %s, %d passed, %d skipped, %d failed, %v and %v to boot\n", s.name, r.Status, r.Passed, len(r.Skipped), len(r.Failed), r.Took.Round(time.Second), r.Boot.Round(time.Second))
	for _, name := range r.Failed {
		fmt.Println("    failed:", name)
	}
}

// err is what failed, if anything did.
func (r result) err() error {
	if r.Status == "ok" {
		return nil
	}
	return fmt.Errorf("%s: %s", r.Status, strings.Join(r.Failed, ", "))
}
