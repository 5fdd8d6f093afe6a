package flows

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/evaluator"
)

// TestGoldenFlowsOnPaper walks every flow of every golden case through the compiled ruleset in
// memory. Each possible fate must be as the case says.
func TestGoldenFlowsOnPaper(t *testing.T) {
	t.Parallel()
	for _, g := range Cases(t) {
		t.Run(g.Name, func(t *testing.T) {
			list := g.Flows()
			e, podLink := evaluator.New(g.Compile(t), NodeUnderTest), g.PodLink(t)
			for _, f := range list {
				t.Run(f.Name, func(t *testing.T) { judgeOnPaper(t, e, f, f.Packet(podLink), g) })
			}
		})
	}
}

func judgeOnPaper(t *testing.T, e *evaluator.Evaluator, f Flow, packet evaluator.Packet, g Case) {
	t.Helper()
	fates, err := e.Fates(packet)
	if err != nil || len(fates) == 0 {
		t.Fatalf("%d fates, error %v", len(fates), err)
	}
	for i := range fates {
		if reason := judgeFate(f, &fates[i]); reason != "" {
			t.Errorf("%s, want %s\n%s", fates[i].String(), reason, fates[i].Path)
		}
	}
	if f.Expect.Sticky {
		judgeStickiness(t, e, packet, fates)
	}
	if f.Expect.Sticky && g.Config(t).AffinityHash {
		judgeHash(t, f, fates)
		return
	}
	if diff := cmp.Diff(sortedTexts(f.Expect.Endpoints), sortedTexts(fates.Destinations())); f.Expect.Result == "" && diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

// judgeHash checks that the first connection of a client has one fate, by the hash of its address.
func judgeHash(t *testing.T, f Flow, fates evaluator.Fates) {
	t.Helper()
	got := fates.Destinations()
	if len(got) != 1 || !slices.Contains(f.Expect.Endpoints, got[0]) {
		t.Errorf("endpoints %v, want one of %v", got, f.Expect.Endpoints)
	}
}

// judgeStickiness checks that whatever endpoint a connection draws, the next one gets it too.
func judgeStickiness(t *testing.T, e *evaluator.Evaluator, p evaluator.Packet, fates evaluator.Fates) {
	t.Helper()
	for i := range fates {
		later, err := e.Fates(p, fates[i].Added...)
		if err != nil {
			t.Fatal(err)
		}
		want := []netip.AddrPort{fates[i].Destination}
		if diff := cmp.Diff(sortedTexts(want), sortedTexts(later.Destinations())); diff != "" {
			t.Errorf("endpoints of the next connection (-want +got):\n%s\n%s", diff, later)
		}
	}
}

func sortedTexts(list []netip.AddrPort) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	slices.Sort(out)
	return out
}

// judgeFate returns what the fate should have been instead, empty when it is right.
func judgeFate(f Flow, fate *evaluator.Fate) string {
	switch f.Expect.Result {
	case Refused:
		return unlessTrue(fate.Result == evaluator.Refused, "refused")
	case Dropped:
		return unlessTrue(fate.Result == evaluator.Dropped, "dropped")
	case Untouched:
		return unlessTrue(fate.Untouched(), "untouched")
	}
	if fate.Result != evaluator.Delivered {
		return fmt.Sprintf("one of %v", f.Expect.Endpoints)
	}
	source := f.Expect.Source
	if fate.Destination.Addr() == f.From.Addr(f.To.Addr()) {
		source = Masqueraded
	}
	switch source {
	case Kept:
		return unlessTrue(!fate.Masqueraded, "the source kept")
	case Masqueraded:
		return unlessTrue(fate.Masqueraded, "the source masqueraded")
	}
	return ""
}

func unlessTrue(ok bool, want string) string {
	if ok {
		return ""
	}
	return want
}
