package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// check runs "ruledump check" on a host and returns what it finds. Nobody keeps the rules of a lab, so no proxy is asked.
func check(t *testing.T, h *lab.Host, args ...string) *verb.Check {
	t.Helper()
	p := lab.Start(t, h, "ruledump", append([]string{"check", "-o", "json", "--proxy-address="}, args...)...)
	_ = p.Wait() // the status says what the document says
	c := new(verb.Check)
	if err := json.Unmarshal([]byte(p.Output()), c); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	return c
}

// cellOf returns the cell of a flow in the matrix, and whether there is one. Its client is of a kind, and not a certain one.
func cellOf(c *verb.Check, f *flows.Flow) (cell int, found bool) {
	kinds := map[flows.Origin]string{flows.FromClient: "pod", flows.FromNode: "node", flows.FromOutside: "outside"}
	for _, s := range c.Services {
		if s.Address != fmt.Sprintf("%s/%s", f.To, f.Protocol) {
			continue
		}
		for i, k := range c.Clients {
			if k.Kind == kinds[f.From] && s.Cells[i] != -2 {
				return s.Cells[i], true
			}
		}
	}
	return 0, false
}

// sentOn is the flow of a packet that another node would translate, if the lab's had rules.
const sentOn = "a packet of another node's slot is sent on as it is, to a node that has no rules here"

// TestCheckGolden checks the node of each golden case, and compares each cell of its matrix with what becomes of real packets.
func TestCheckGolden(t *testing.T) {
	t.Parallel()
	labs := map[string]*lab.Lab{}
	compared := map[flows.Result]int{}
	for _, g := range flows.Cases(t) {
		bridge := g.Bridge(t)
		if labs[bridge] == nil {
			labs[bridge] = lab.ForTestWithBridge(t, bridge)
		}
		l := labs[bridge]
		t.Run(g.Name, func(t *testing.T) {
			replace(t, lab.Conn(t, l.Node), g.Compile(t))
			r := serve(t, l, g)
			c := check(t, l.Node)
			all := g.Flows()
			if err := r.Run(all); err != nil {
				t.Error(err)
			}
			for i := range all {
				f := &all[i]
				cell, found := cellOf(c, f)
				if !found || f.Expect.Result == flows.Untouched || f.Name == sentOn {
					continue
				}
				compared[f.Expect.Result]++
				if works := cell == -1; works != (f.Expect.Result == "") || cell == -3 {
					t.Errorf("flow %q is %q, and its cell is %d of %+v", f.Name, f.Expect.Result, cell, c.Findings)
				}
			}
			for _, finding := range c.Findings {
				if finding.Level == "broken" && finding.Cause != "no ready endpoint" || !slices.Contains([]string{"no ready endpoint", "externalTrafficPolicy Local and no ready endpoint here", "internalTrafficPolicy Local and no ready endpoint here", "loadBalancerSourceRanges leaves clients out"}, finding.Cause) {
					t.Errorf("%+v", finding)
				}
			}
			if len(c.NotLookedAt) > 0 {
				t.Errorf("not looked at: %v", c.NotLookedAt)
			}
		})
	}
	if compared[""] < 100 || compared[flows.Refused] < 10 || compared[flows.Dropped] < 10 {
		t.Errorf("compared %v", compared)
	}
}
