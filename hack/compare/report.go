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
	fmt.Fprintf(w, "%s%s. Load average before %s, after %s. In parentheses: Syncs as the proxy's metric says; processor time.\n",
		r.machine, r.versions, r.load, loadAverage())
	for _, s := range r.sizes {
		r.printSize(w, s)
	}
}

// printSize prints the table of a size. The last column says how many times as long each
// of the others took as this proxy.
func (r *report) printSize(w io.Writer, s size) {
	all := r.results[s]
	ours := all[len(all)-1]
	columns := []string{fmt.Sprintf("%s Services × endpoints", s)}
	for _, res := range all {
		columns = append(columns, res.name)
	}
	if len(all) > 1 {
		columns = append(columns, "ratio")
	}
	fmt.Fprintf(w, "\n| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
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
		r.printRow(w, row.name, all, func(res result) string { return r.cell(row.of(res)) },
			func(other result) string { return ratio(row.of(other), row.of(ours)) })
	}
	r.printRow(w, "peak memory, with the programs that it runs", all,
		func(res result) string { return fmt.Sprintf("%d MB", res.peak>>20) },
		func(other result) string { return fmt.Sprintf("%.1f", float64(other.peak)/float64(ours.peak)) })
	fmt.Fprintf(w, "\nThe kernel commits the batch of nftproxy's start, encoded before, in %s.\n", duration(ours.floor))
}

// printRow prints a row; ratio says how another proxy compares with this one, the last.
func (r *report) printRow(w io.Writer, name string, all []result, cell, ratio func(result) string) {
	fmt.Fprintf(w, "| %s |", name)
	for _, res := range all {
		fmt.Fprintf(w, " %s |", cell(res))
	}
	var ratios []string
	for _, other := range all[:len(all)-1] {
		ratios = append(ratios, ratio(other))
	}
	if len(ratios) > 0 {
		fmt.Fprintf(w, " %s |", strings.Join(ratios, ", "))
	}
	fmt.Fprintln(w)
}

func (r *report) cell(s span) string {
	if s.none {
		return "no such table"
	}
	if s.over {
		return fmt.Sprintf("not within %s, until a Service changes", r.patience)
	}
	return fmt.Sprintf("%s (%s; %.2f s)", duration(s.took), duration(s.sync), s.cpu.Seconds())
}

func duration(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

func ratio(theirs, ours span) string {
	if theirs.none || ours.none {
		return ""
	}
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
