package verb

import (
	"strings"
	"testing"
)

func TestEqualFates(t *testing.T) {
	limit := func(verdict string) []step {
		return []step{{Table: "inet fw", Chain: "f", Rule: "limit rate 1/hour accept", Verdict: verdict}}
	}
	e := Explanation{Packet: "tcp 10.0.0.1 to 10.0.0.2:80", Outcomes: []Outcome{
		{head: "dropped", Why: "by a policy", DependsOn: limit("if this does not match")},
		{head: "to 10.0.0.3:80", Why: "sent"},
		{head: "dropped", Why: "by a policy", DependsOn: limit("if this matches")},
		{head: "dropped", Why: "by another rule"},
	}}
	var b strings.Builder
	p := &Page{Format: "text"}
	e.Text(p)
	b.WriteString(p.String())
	text := b.String()
	if strings.Count(text, "by a policy") != 1 || !strings.Contains(text, "3 possible fates") ||
		!strings.Contains(text, "accept (if this does not match)\n  or\n  depends on inet fw, chain f: limit rate 1/hour accept (if this matches)\n") {
		t.Errorf("equal fates print as\n%s", text)
	}
}

func TestExplainNodePortOnLoopback(t *testing.T) {
	for to, want := range map[string]string{
		"127.0.0.1:30080": "  why: left alone by the rules: at loopback addresses the proxy's own forwarder serves node ports, if nodePortAddresses names localhost: shop/web:http\n",
		"127.0.0.1:30081": "  why: left alone: no Service has this address and port here\n",
	} {
		got, err := explainExample("--from", "127.0.0.1", "--to", to)
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v\n%s", to, err, got)
		}
	}
}
