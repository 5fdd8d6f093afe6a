package proxytest

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
)

// Verdict is the result of a case.
type Verdict string

// The verdicts.
const (
	// Same means that every flow ended as the corpus expects.
	Same Verdict = "same"
	// Known means that some flows ended otherwise, as they are known to.
	Known Verdict = "known"
	// New means that some flows ended otherwise, or that the proxy failed.
	New Verdict = "new"
)

// Report is the result of a run.
type Report struct {
	Proxy   string    `json:"proxy"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Results []Result  `json:"results"`
}

// Result is the result of a case.
type Result struct {
	Case    string  `json:"case"`
	Verdict Verdict `json:"verdict"`
	// Flows counts the flows of the case.
	Flows   int     `json:"flows"`
	Seconds float64 `json:"seconds"`
	// Lacks says why the case was not run: it is about something that the proxy does not have.
	Lacks string `json:"lacks,omitempty"`
	// Failure says how the proxy failed: it ended, or did not settle. Output is the end of its output.
	Failure     string       `json:"failure,omitempty"`
	Output      string       `json:"output,omitempty"`
	Differences []Difference `json:"differences,omitempty"`
	// Manifests and Ruleset are there if the verdict is not Same: the objects of the case and the rules at that moment.
	Manifests string `json:"manifests,omitempty"`
	Ruleset   string `json:"ruleset,omitempty"`
}

// Difference is a flow that ended otherwise than the corpus expects.
type Difference struct {
	// Step names the step of the case; it is empty for the flows before the first one.
	Step     string `json:"step,omitempty"`
	Flow     string `json:"flow"`
	Protocol string `json:"protocol"`
	From     string `json:"from"`
	To       string `json:"to"`
	Expected string `json:"expected"`
	Seen     string `json:"seen"`
	// Known is the reason of a known difference.
	Known string `json:"known,omitempty"`
}

func newDifference(f *flows.Failure) Difference {
	d := Difference{Flow: f.Flow.Name, Protocol: string(f.Flow.Protocol), From: string(f.Flow.From), To: f.Flow.To.String(),
		Expected: f.Flow.Expect.String(), Seen: f.Seen}
	if f.Want != "" {
		d.Seen += ", " + f.Want
	}
	return d
}

// decide sets the verdict.
func (r *Result) decide() {
	r.Verdict = Same
	if r.Lacks != "" {
		r.Verdict = Known
	}
	for _, d := range r.Differences {
		if d.Known == "" {
			r.Verdict = New
			return
		}
		r.Verdict = Known
	}
	if r.Failure != "" {
		r.Verdict = New
	}
}

// Count counts the cases with a verdict.
func (r *Report) Count(v Verdict) (n int) {
	for _, result := range r.Results {
		if result.Verdict == v {
			n++
		}
	}
	return n
}

// Formats are the values of -o.
var Formats = map[string]func(*Report, io.Writer) error{
	"text": (*Report).text, "json": (*Report).json, "junit": (*Report).junit, "markdown": (*Report).markdown,
}

func (r *Report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

func (r *Report) summary() string {
	return fmt.Sprintf("%d cases in %.0f s: %d same, %d known, %d new", len(r.Results), r.Seconds, r.Count(Same), r.Count(Known), r.Count(New))
}

func (r *Report) text(w io.Writer) error {
	var out strings.Builder
	for _, result := range r.Results {
		if result.Verdict != Same {
			out.WriteString(result.text())
		}
	}
	fmt.Fprintln(&out, r.summary())
	_, err := io.WriteString(w, out.String())
	return err
}

// text says in which way a case is not the same. What is new comes with the objects and the rules.
func (r *Result) text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %s\n", r.Verdict, r.Case)
	if r.Failure != "" {
		fmt.Fprintf(&out, "  %s\n", r.Failure)
	}
	if r.Lacks != "" {
		fmt.Fprintf(&out, "  not run: %s\n", r.Lacks)
	}
	for _, d := range r.Differences {
		if d.Step != "" {
			fmt.Fprintf(&out, "  %s:\n", d.Step)
		}
		fmt.Fprintf(&out, "  %s\n    %s %s → %s\n    expected: %s\n    seen:     %s\n", d.Flow, d.Protocol, d.From, d.To, d.Expected, d.Seen)
		if d.Known != "" {
			fmt.Fprintf(&out, "    known:    %s\n", d.Known)
		}
	}
	if r.Verdict == New {
		for _, part := range []struct{ name, text string }{{"manifests", r.Manifests}, {"ruleset", r.Ruleset}, {"output of the proxy", r.Output}} {
			if part.text != "" {
				fmt.Fprintf(&out, "  %s:\n%s\n", part.name, indent(part.text))
			}
		}
	}
	return out.String()
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}

// junit is the format that CI systems read: a known difference is a skipped test.
func (r *Report) junit(w io.Writer) error {
	type message struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",cdata"`
	}
	type testcase struct {
		Class   string   `xml:"classname,attr"`
		Name    string   `xml:"name,attr"`
		Time    string   `xml:"time,attr"`
		Failure *message `xml:"failure"`
		Skipped *message `xml:"skipped"`
	}
	type testsuite struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Time     string     `xml:"time,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	suite := testsuite{Name: r.Proxy, Tests: len(r.Results), Failures: r.Count(New), Skipped: r.Count(Known), Time: fmt.Sprintf("%.3f", r.Seconds)}
	for _, result := range r.Results {
		c := testcase{Class: "proxytest", Name: result.Case, Time: fmt.Sprintf("%.3f", result.Seconds)}
		switch result.Verdict {
		case New:
			c.Failure = &message{result.brief(), result.text()}
		case Known:
			c.Skipped = &message{result.brief(), result.text()}
		}
		suite.Cases = append(suite.Cases, c)
	}
	data, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, data)
	return err
}

// brief is a line about the differences.
func (r *Result) brief() string {
	if r.Failure != "" {
		return strings.ReplaceAll(r.Failure, "\n", "; ")
	}
	if r.Lacks != "" {
		return "not run: " + r.Lacks
	}
	if len(r.Differences) == 0 {
		return ""
	}
	d := r.Differences[0]
	text := fmt.Sprintf("%s: %s", d.Flow, d.Seen)
	if more := len(r.Differences) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

func (r *Report) markdown(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "`%s`: %s\n\n| case | verdict | differences |\n|---|---|---|\n", r.Proxy, r.summary())
	for _, result := range r.Results {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", result.Case, result.Verdict, strings.ReplaceAll(result.brief(), "|", `\|`))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Matrix writes a table of cases and proxies. The names are those of the reports.
func Matrix(w io.Writer, names []string, reports []*Report) error {
	var out strings.Builder
	fmt.Fprintf(&out, "| case | %s |\n|---%s|\n", strings.Join(names, " | "), strings.Repeat("|---", len(names)))
	verdicts := make([]map[string]Verdict, len(reports))
	cases := map[string]bool{}
	for i, r := range reports {
		verdicts[i] = map[string]Verdict{}
		for _, result := range r.Results {
			verdicts[i][result.Case] = result.Verdict
			if result.Lacks != "" {
				verdicts[i][result.Case] = ""
			}
			cases[result.Case] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		fmt.Fprintf(&out, "| `%s` |", name)
		for _, of := range verdicts {
			fmt.Fprintf(&out, " %s |", cmp.Or(of[name], "–"))
		}
		out.WriteString("\n")
	}
	out.WriteString("\n| proxy | known difference | cases |\n|---|---|---|\n")
	for i, r := range reports {
		for _, reason := range r.reasons() {
			fmt.Fprintf(&out, "| %s | %s |\n", names[i], reason)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// reasons returns two cells for each reason of known differences: the reason, and the cases.
func (r *Report) reasons() (all []string) {
	cases := map[string][]string{}
	for _, result := range r.Results {
		reasons := []string{result.Lacks}
		for _, d := range result.Differences {
			reasons = append(reasons, d.Known)
		}
		slices.Sort(reasons)
		for _, reason := range slices.Compact(reasons) {
			if reason != "" {
				cases[reason] = append(cases[reason], result.Case)
			}
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(cases)) {
		where := fmt.Sprintf("%d cases", len(cases[reason]))
		if len(cases[reason]) <= 3 {
			where = "`" + strings.Join(cases[reason], "`, `") + "`"
		}
		all = append(all, reason+" | "+where)
	}
	return all
}
