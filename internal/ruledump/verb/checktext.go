package verb

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Text prints the verdict, and a line for each finding. The format "wide" adds why.
func (c *Check) Text(p *Page) {
	p.printf("%s: %s\n", c.nodeText(), c.summary(p))
	if len(c.Findings) > 0 {
		rows := &Page{marker: p.marker, noHeaders: true} // each row says what it is, and the first counts
		table(rows, nil, c.Findings, func(f CheckFinding) []any {
			return []any{f.Level, f.Cause, f.hits(), f.from(), f.More}
		}, func(f CheckFinding) bool { return f.Level == levelBroken })
		p.WriteString(rows.Builder.String())
	}
	if p.Format == "wide" {
		for _, f := range c.Findings {
			if f.Why != "" {
				p.printf("\n%s:\n  %s\n", f.Cause, f.Why)
			}
		}
	}
	if t := c.Conntrack; t != nil {
		p.printf("conntrack: entries: %d of %d, insert_failed: %d, drop: %d, early_drop: %d\n", t.Entries, t.Limit, t.InsertFailed, t.Drop, t.EarlyDrop)
	}
	if c.Proxy.State != proxyUnknown {
		p.printf("proxy: %s%s%s%s\n", c.Proxy.State, c.Proxy.since(), c.Proxy.said(), c.Proxy.repaired())
	}
	for i, name := range c.NotLookedAt {
		if i == 0 {
			p.printf("\nnot looked at:\n")
		}
		p.printf("  %s\n", name)
	}
}

// summary is the verdict with numbers.
func (c *Check) summary(p *Page) string {
	broken := 0
	services := map[string]bool{}
	for _, s := range c.Services {
		if slices.ContainsFunc(s.Cells, func(cell int) bool { return cell >= 0 && c.Findings[cell].Level == levelBroken }) {
			services[s.ServicePort] = true
		}
	}
	for _, f := range c.Findings {
		if f.Level == levelBroken {
			broken++
		}
	}
	switch c.Verdict {
	case verdictBroken:
		return p.bad("broken") + fmt.Sprintf(": causes: %d, Service ports that do not serve everybody: %d", broken, len(services))
	case verdictUnknown:
		return p.bold("not known") + ", see below"
	}
	return p.good("works") + fmt.Sprintf(": addresses of Services: %d, kinds of clients: %d", len(c.Services), len(c.Clients))
}

// since says when the last sync was.
func (p *CheckProxy) since() string {
	if p.LastSync.IsZero() {
		return ""
	}
	return ", last sync at " + p.LastSync.UTC().Format(time.RFC3339)
}

// said names what told the state.
func (p *CheckProxy) said() string {
	if p.Source == "" {
		return ""
	}
	return ", says " + p.Source
}

// repaired says how often the proxy has repaired its tables.
func (p *CheckProxy) repaired() string {
	if p.Repairs == 0 {
		return ""
	}
	return fmt.Sprintf(", repairs of its tables: %d (ruledump watch names who changes them)", p.Repairs)
}

// from names the kinds of clients.
func (f *CheckFinding) from() string {
	if len(f.Clients) == 0 {
		return "-"
	}
	return "from " + strings.Join(f.Clients, ", ")
}

// hits names what a finding hits: "shop/web:http and 3 more", or the first endpoints.
func (f *CheckFinding) hits() string {
	var parts []string
	if len(f.Services) > 0 {
		parts = append(parts, andMore(f.Services[0], f.ServicesTotal))
	}
	if len(f.Endpoints) > 0 {
		parts = append(parts, andMore(f.Endpoints[0].String(), f.EndpointsTotal))
	}
	return orDash(strings.Join(parts, ", "))
}

func andMore(first string, total int) string {
	if total > 1 {
		return fmt.Sprintf("%s and %d more", first, total-1)
	}
	return first
}
