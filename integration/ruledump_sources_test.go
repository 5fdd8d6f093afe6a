package integration

import (
	"bytes"
	"encoding/json"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nft"
)

// testRuledumpSources asks the same of the rules as compiled from manifests, as a kernel holds them, and as a dump of that
// kernel has them, for every golden case: services, explain, diff, stats and graph answer alike.
func testRuledumpSources(t *testing.T) {
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	conn, err := nft.Dial(nft.Config{NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other := &ruledump.Snapshot{} // the case before, so that diff has something to say
	for _, g := range flows.Cases(t) {
		t.Run(g.Name, func(t *testing.T) {
			compiled := &ruledump.Snapshot{Node: "node-1", Tables: g.Compile(t)}
			replace(t, conn, compiled.Tables)
			live, err := ruledump.FromKernel(t.Context(), conn, "")
			if err != nil {
				t.Fatal(err)
			}
			live.Node, live.NodeSource = "node-1", ""
			var b bytes.Buffer
			if err := live.Write(&b); err != nil {
				t.Fatal(err)
			}
			dumped, err := ruledump.FromDump(&b)
			if err != nil {
				t.Fatal(err)
			}
			list := g.Flows(t)
			want := answers(t, g, compiled, list, other)
			if diff := cmp.Diff(statisticsOf(t, live), statisticsOf(t, dumped)); diff != "" {
				t.Errorf("statistics with generation, time and owner: -live +dump:\n%s", diff)
			}
			for _, s := range []struct {
				name     string
				snapshot *ruledump.Snapshot
			}{{"live", live}, {"dump", dumped}} {
				t.Run(s.name, func(t *testing.T) {
					if diff := cmp.Diff(want, answers(t, g, s.snapshot, list, other)); diff != "" {
						t.Errorf("-manifests +%s:\n%s", s.name, diff)
					}
					if text := differences(t, compiled, s.snapshot); !strings.Contains(text, `"equal": true`) {
						t.Errorf("differs from the manifests:\n%s", text)
					}
				})
			}
			other = compiled
		})
	}
}

// answers returns what all verbs say. diff compares with the rules of another case.
func answers(t *testing.T, g flows.Case, s *ruledump.Snapshot, list []flows.Flow, other *ruledump.Snapshot) []string {
	t.Helper()
	s.Addresses = append([]netip.Addr(nil), nodeOnPaper.Addresses...)
	out := append(servicesAndFlows(t, g, s, list), graphs(t, s)...)
	// A kernel knows more of its tables than a compiler.
	tablesAlone := &ruledump.Snapshot{Node: s.Node, Tables: ownerless(s.Tables)}
	return append(out, differences(t, other, s), statisticsOf(t, tablesAlone))
}

// ownerless returns the tables without the process that owns them.
func ownerless(tables []*nft.Table) (out []*nft.Table) {
	for _, t := range tables {
		alone := *t
		alone.Kernel = nil
		out = append(out, &alone)
	}
	return out
}

// differences returns what diff says, as JSON.
func differences(t *testing.T, wanted, actual *ruledump.Snapshot) string {
	t.Helper()
	d, err := verb.Diff(wanted, actual)
	if err != nil {
		t.Fatal(err)
	}
	return indented(t, d)
}

// statisticsOf returns what stats says, as JSON and as metrics.
func statisticsOf(t *testing.T, s *ruledump.Snapshot) string {
	t.Helper()
	counted, err := verb.Stats(s)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := counted.Metrics(&b); err != nil {
		t.Fatal(err)
	}
	return indented(t, counted) + b.String()
}

func indented(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// graphs returns the drawings of all Services.
func graphs(t *testing.T, s *ruledump.Snapshot) (out []string) {
	t.Helper()
	l, err := verb.ListServices(s, verb.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.Frontends {
		g, err := verb.Draw(s, verb.Filter{Namespace: l.Frontends[i].Namespace, Name: l.Frontends[i].Service})
		if err != nil {
			t.Fatal(err)
		}
		for _, write := range []func(io.Writer) error{g.SVG, g.DOT} {
			var b strings.Builder
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			out = append(out, b.String())
		}
	}
	return out
}

func servicesAndFlows(t *testing.T, g flows.Case, s *ruledump.Snapshot, list []flows.Flow) []string {
	t.Helper()
	var b bytes.Buffer
	l, err := verb.ListServices(s, verb.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Table(&b, true, verb.Colours{}); err != nil {
		t.Fatal(err)
	}
	out := []string{b.String()}
	for _, f := range list {
		e, err := verb.Explain(s, packetOf(f, podLink(t, g)))
		if err != nil {
			t.Fatal(err)
		}
		b.Reset()
		if _, err := e.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		out = append(out, b.String())
	}
	return out
}
