package flows

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

// Promise says what a proxy promises of the corpus, and in what it is known to differ. The files expect.PROXY.yaml of
// the corpus are promises. The zero value promises everything.
type Promise struct {
	// Cases, if set, are the only cases that the proxy claims.
	Cases []string `json:"cases"`
	// Lacks are cases about something that the proxy does not have, each with the reason. They are not run.
	Lacks map[string]string `json:"lacks"`
	// Differences are known.
	Differences []Difference `json:"differences"`
}

// Difference is a known difference. It is about the flows that match all of its selectors; a selector that is empty
// matches every flow.
type Difference struct {
	// Reason says why the proxy differs.
	Reason string `json:"reason"`
	// When is what the objects of the cluster have to do with the flow: a name of situations.
	When string `json:"when"`
	// Case and Flow are regular expressions for whole names.
	Case string `json:"case"`
	Flow string `json:"flow"`
	// From, Protocol, Result and Source are values as in flows.yaml; the last two those that the corpus expects.
	From     string `json:"from"`
	Protocol string `json:"protocol"`
	Result   string `json:"result"`
	Source   string `json:"source"`
	// Family is 4 or 6.
	Family int `json:"family"`
	// Expect is the proxy's own result, as in flows.yaml. The endpoints are those of the corpus unless it names
	// others. Without it any result is known.
	Expect *wanted `json:"expect"`
}

// ReadPromise reads a promise about cases. It is strict.
func ReadPromise(data []byte, cases []Case) (p Promise, err error) {
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		return p, err
	}
	exists := func(name string) bool { return slices.ContainsFunc(cases, func(c Case) bool { return c.Name == name }) }
	for _, name := range slices.Concat(p.Cases, slices.Sorted(maps.Keys(p.Lacks))) {
		if !exists(name) {
			return p, fmt.Errorf("there is no case %s", name)
		}
	}
	for i, d := range p.Differences {
		if err := d.check(); err != nil {
			return p, fmt.Errorf("differences[%d]: %w", i, err)
		}
		if !slices.ContainsFunc(cases, func(c Case) bool {
			return slices.ContainsFunc(c.allFlows(), func(f Flow) bool { return d.About(c, f) })
		}) {
			return p, fmt.Errorf("differences[%d] is about no flow", i)
		}
	}
	return p, nil
}

// Claims reports whether the proxy claims the case.
func (p Promise) Claims(c Case) bool { return len(p.Cases) == 0 || slices.Contains(p.Cases, c.Name) }

func (d Difference) check() error {
	if d.Reason == "" {
		return errors.New("reason: missing")
	}
	if d.When != "" && situations[d.When] == nil {
		return fmt.Errorf("when: %q is none of %v", d.When, situationNames())
	}
	for _, pattern := range []string{d.Case, d.Flow} {
		if _, err := regexp.Compile(pattern); err != nil {
			return err
		}
	}
	return nil
}

// About reports whether the difference is about a flow of a case.
func (d Difference) About(c Case, f Flow) bool {
	family := 4
	if f.To.Addr().Is6() {
		family = 6
	}
	return whole(d.Case, c.Name) && whole(d.Flow, f.Name) &&
		(d.From == "" || d.From == string(f.From)) && (d.Protocol == "" || d.Protocol == string(f.Protocol)) &&
		(d.Result == "" || d.Result == string(f.Expect.Result)) && (d.Source == "" || d.Source == string(f.Expect.Source)) &&
		(d.Family == 0 || d.Family == family) && (d.When == "" || situations[d.When](c.objects(), f))
}

func whole(pattern, text string) bool {
	matched, err := regexp.MatchString("^(?:"+pattern+")$", text)
	return err == nil && (pattern == "" || matched)
}

// Instead returns the flow as the proxy is known to treat it. If any result is known, ok is false.
func (d Difference) Instead(f Flow) (instead Flow, ok bool, err error) {
	if d.Expect == nil {
		return f, false, nil
	}
	w := *d.Expect
	if w.Result == "" && len(w.Endpoints) == 0 {
		w.Endpoints, w.Sticky = texts(f.Expect.Endpoints), f.Expect.Sticky
	}
	instead = f
	instead.Expect, err = w.parse(f.To.Addr(), f.Protocol)
	if err != nil {
		return f, false, fmt.Errorf("expect%w", err)
	}
	return instead, true, nil
}

func texts(addrs []netip.AddrPort) (out []string) {
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// String says in words what is expected.
func (e Expectation) String() string {
	if e.Result != "" {
		return string(e.Result)
	}
	text := fmt.Sprintf("each of %v", e.Endpoints)
	if e.Sticky {
		text = fmt.Sprintf("always the same of %v", e.Endpoints)
	}
	if e.Source != "" {
		text += ", source " + string(e.Source)
	}
	return text
}
