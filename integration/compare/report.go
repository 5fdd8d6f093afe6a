package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// report collects results and prints them.
type report struct {
	machine, versions, load string
	patience                time.Duration
	sizes                   []size
	results                 map[size][]result
}

func newReport(o options) (*report, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, err
	}
	r := &report{
		machine:  fmt.Sprintf("Linux %s, %d processors", unix.ByteSliceToString(uts.Release[:]), runtime.NumCPU()),
		load:     loadAverage(),
		patience: o.patience,
		results:  map[size][]result{},
	}
	for _, p := range contenders(o) {
		out, err := exec.Command(p.path, "--version").Output()
		if err != nil {
			return nil, fmt.Errorf("%s --version: %w", p.path, err)
		}
		r.versions += fmt.Sprintf("; %s is %s", p.name, strings.TrimSpace(string(out)))
	}
	return r, nil
}

func (r *report) add(s size, res result) {
	if len(r.results[s]) == 0 {
		r.sizes = append(r.sizes, s)
	}
	r.results[s] = append(r.results[s], res)
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s%s. Load average before %s, after %s. Processor time in parentheses.\n", r.machine, r.versions, r.load, loadAverage())
	for _, s := range r.sizes {
		all := r.results[s]
		fmt.Fprintf(w, "\n| %s Services × endpoints |", s)
		for _, res := range all {
			fmt.Fprintf(w, " %s |", res.name)
		}
		fmt.Fprint(w, " ratio |\n|---|", strings.Repeat("---|", len(all)+1), "\n")
		for _, row := range []struct {
			name string
			of   func(result) span
		}{
			{"start, no tables: until all Services work", func(r result) span { return r.cold }},
			{"one more Service: until it works, median", func(r result) span { return r.change }},
			{"restart over existing tables: until what changed meanwhile works", func(r result) span { return r.restart }},
			{"after `nft flush ruleset`: until Services work again", func(r result) span { return r.flush }},
			{"after `nft delete table`: until Services work again", func(r result) span { return r.table }},
		} {
			fmt.Fprintf(w, "| %s |", row.name)
			for _, res := range all {
				fmt.Fprintf(w, " %s |", r.cell(row.of(res)))
			}
			fmt.Fprintf(w, " %s |\n", ratio(row.of(all[0]), row.of(all[1])))
		}
		fmt.Fprint(w, "| peak memory, with the programs that it runs |")
		for _, res := range all {
			fmt.Fprintf(w, " %d MB |", res.peak>>20)
		}
		fmt.Fprintf(w, " %.1f |\n", float64(all[0].peak)/float64(all[1].peak))
	}
}

func (r *report) cell(s span) string {
	if s.over {
		return fmt.Sprintf("not within %s, until a Service changes", r.patience)
	}
	return fmt.Sprintf("%s (%.2f s)", duration(s.took), s.cpu.Seconds())
}

func duration(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

func ratio(theirs, ours span) string {
	sign := ""
	if theirs.over {
		sign = "> "
	}
	return fmt.Sprintf("%s%.1f", sign, float64(theirs.took)/float64(ours.took))
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:1], " ")
}
