package leftovers

import (
	"testing"

	"github.com/nftproxy/nftproxy/nft"
)

// TestPreflightOthers of ruledump has the rules that the iptables and nft programs write here.
func TestStepOf(t *testing.T) {
	for name, tt := range map[string]struct {
		rule nft.Rule
		want step
	}{
		"a queue":                       {nft.NewRule(nft.Counter{}, nft.Unknown{Name: "queue"}), step{verdict: queues}},
		"a drop of one packet a second": {nft.NewRule(nft.Limit{Rate: 1}, nft.Drop), step{}},
		"an expression of tomorrow":     {nft.NewRule(nft.Unknown{Name: "tomorrow"}, nft.Drop), step{}},
		"a target of somebody":          {nft.NewRule(nft.Extension{Target: true, Name: "TARPIT"}), step{}},
		"no verdict":                    {nft.NewRule(nft.Counter{}), step{}},
		"continue":                      {nft.NewRule(nft.Verdict{}), step{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := stepOf(tt.rule, Use{}); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestWalk(t *testing.T) {
	w := newWalk(table{nft.FamilyInet, "fw"})
	w.addBase("f", nft.HookForward, true)
	w.add("f", step{to: "a"})
	w.add("a", step{to: "b"})
	w.add("b", step{to: "a"})
	if got := w.drops(); len(got) != 1 || got[0].String() != "inet fw f" {
		t.Errorf("of chains that lead to each other got %v", got)
	}
}
