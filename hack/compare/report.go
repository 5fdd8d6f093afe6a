package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/hack/compare/figures"
	"github.com/nftproxy/nftproxy/internal/testkit/marked"
	"golang.org/x/sys/unix"
)

// report collects results and prints them.
type report struct {
	machine, load, commit string
	// versions has what each contender prints of its version.
	versions map[string]string
	sizes    []size
	results  map[size][]result
}

func newReport(o options) (*report, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, err
	}
	r := &report{
		machine:  fmt.Sprintf("Linux %s, %d processors", unix.ByteSliceToString(uts.Release[:]), runtime.NumCPU()),
		load:     loadAverage(),
		commit:   commit(),
		versions: map[string]string{},
		results:  map[size][]result{},
	}
	for _, p := range contenders(o) {
		out, err := exec.Command(p.path, "--version").Output()
		if err != nil {
			return nil, fmt.Errorf("%s --version: %w", p.path, err)
		}
		r.versions[p.name] = strings.TrimSpace(string(out))
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
	var versions []string
	for _, res := range r.results[r.sizes[0]] {
		versions = append(versions, fmt.Sprintf("%s is `%s`", res.name, r.versions[res.name]))
	}
	fmt.Fprintf(w, "%s, commit %s, %s.\n%s.\nLoad average before %s, after %s. In parentheses: Syncs as the proxy's metric says; processor time.\n",
		r.machine, r.commit, time.Now().Format(time.DateOnly), strings.Join(versions, "; "), r.load, loadAverage())
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
	const longer, unnoticed = "longer than %s", "not within %s, until a Service changes"
	for _, row := range []struct {
		name, over string
		of         func(result) span
	}{
		{"start, no tables", longer, func(r result) span { return r.cold }},
		{"one more Service, median", longer, func(r result) span { return r.change }},
		{"restart over existing tables", longer, func(r result) span { return r.restart }},
		{"after `nft flush ruleset`", unnoticed, func(r result) span { return r.flush }},
		{"after `nft delete table`", unnoticed, func(r result) span { return r.table }},
	} {
		if !slices.ContainsFunc(all, func(res result) bool { return !row.of(res).none }) {
			continue
		}
		r.printRow(w, row.name, all, func(res result) string { return cell(row.of(res), row.over) },
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

func cell(s span, over string) string {
	if s.none {
		return "–"
	}
	if s.over {
		return fmt.Sprintf(over, s.took)
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

// commit is that of the working tree.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// figures returns what the chart shows.
func (r *report) figures() figures.Run {
	run := figures.Run{Versions: r.versions}
	for _, s := range r.sizes {
		for _, res := range r.results[s] {
			run.Points = append(run.Points, figures.Point{
				Contender: res.name, Services: s.services, Endpoints: s.endpoints,
				FirstSync: res.cold.limited(), OneChange: res.change.limited(), Peak: res.peak,
			})
		}
	}
	return run
}

// limited is the time of the Syncs, or the limit that was reached.
func (s span) limited() figures.Limited {
	if s.over {
		return figures.Limited{Time: s.took, Over: true}
	}
	return figures.Limited{Time: s.sync}
}

// Between these the page is generated.
const (
	beginMark = "<!-- generated by make compare -->\n"
	endMark   = "<!-- end of what is generated -->\n"
)

// writeInto replaces the tables in a page.
func (r *report) writeInto(page string) error {
	before, _, after, err := marked.Cut(page, beginMark, endMark)
	if err != nil {
		return err
	}
	var tables strings.Builder
	r.print(&tables)
	return os.WriteFile(page, []byte(before+"\n"+tables.String()+after), 0o644)
}
