package integration

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/integration/flows"
	"github.com/nftproxy/nftproxy/integration/netns"
	"github.com/nftproxy/nftproxy/internal/ruledump/colour"
	"github.com/nftproxy/nftproxy/internal/ruledump/explain"
	"github.com/nftproxy/nftproxy/internal/ruledump/services"
	"github.com/nftproxy/nftproxy/internal/ruledump/snapshot"
	"github.com/nftproxy/nftproxy/nft"
)

// TestRuledumpSources asks the same of the rules as compiled from manifests, as a kernel holds them, and as a dump of that
// kernel has them, for every golden case: services and explain answer alike.
func TestRuledumpSources(t *testing.T) {
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
	for _, g := range cases(t) {
		t.Run(g.name, func(t *testing.T) {
			compiled := &snapshot.Snapshot{Node: "node-1", Tables: g.compile(t)}
			replace(t, conn, compiled.Tables)
			live, err := snapshot.FromKernel(t.Context(), conn)
			if err != nil {
				t.Fatal(err)
			}
			live.Node = "node-1"
			var b bytes.Buffer
			if err := live.Write(&b); err != nil {
				t.Fatal(err)
			}
			dumped, err := snapshot.FromDump(&b)
			if err != nil {
				t.Fatal(err)
			}
			list, err := flows.Load(g.path("flows.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			want := answers(t, g, compiled, list)
			for _, s := range []struct {
				name     string
				snapshot *snapshot.Snapshot
			}{{"live", live}, {"dump", dumped}} {
				t.Run(s.name, func(t *testing.T) {
					if diff := cmp.Diff(want, answers(t, g, s.snapshot, list)); diff != "" {
						t.Errorf("-manifests +%s:\n%s", s.name, diff)
					}
				})
			}
		})
	}
}

// answers returns what services and explain say.
func answers(t *testing.T, g goldenCase, s *snapshot.Snapshot, list []flows.Flow) []string {
	t.Helper()
	s.Addresses = append([]netip.Addr(nil), nodeOnPaper.Addresses...)
	var b bytes.Buffer
	l, err := services.Of(s, services.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Table(&b, true, colour.Scheme{}); err != nil {
		t.Fatal(err)
	}
	out := []string{b.String()}
	for _, f := range list {
		e, err := explain.Explain(s, packetOf(f, g.podLink(t)))
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
