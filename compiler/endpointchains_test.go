package compiler

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/model"
)

func TestChainsInAdvance(t *testing.T) {
	incremental := newCompiler(t)
	incremental.Apply(&model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}})
	incremental.Committed()
	one := func(p *model.ServicePort, id model.PortID) *model.Changes {
		return &model.Changes{Ports: map[model.PortID]*model.ServicePort{id: p}}
	}
	expect := func(services int) {
		t.Helper()
		atOnce := newCompiler(t)
		full := many(services)
		full.Node, full.ServiceCIDRsChanged = nil, false
		atOnce.Apply(full)
		for i, table := range incremental.Tables() {
			if diff := cmp.Diff(atOnce.Tables()[i].String(), table.String()); diff != "" {
				t.Errorf("%d Services: compiled one by one (-at once +one by one):\n%s", services, diff)
			}
			for n := 1; n <= spareChains; n++ {
				want := n == 2 || services >= spareChainsFrom
				if has := table.Chain(fmt.Sprintf("cluster-%d", n)) != nil; has != want {
					t.Errorf("%d Services: chain cluster-%d is there: %v", services, n, has)
				}
			}
		}
	}
	for i := range spareChainsFrom + 1 {
		for _, f := range model.Families {
			p := numbered(i, f)
			incremental.Apply(one(p, p.ID))
		}
		if i >= spareChainsFrom-2 {
			expect(i + 1)
		}
	}
	incremental.Committed()
	node := &model.Changes{Node: &model.Node{Name: "node-1"}, ServiceCIDRsChanged: true}
	incremental.Apply(node)
	if tx := incremental.Transaction(); !tx.Empty() {
		t.Errorf("a Node that changes no rule is committed as\n%s", tx)
	}
	for i := spareChainsFrom; i >= spareChainsFrom-1; i-- {
		for _, f := range model.Families {
			incremental.Apply(one(nil, numbered(i, f).ID))
		}
		expect(i)
	}
}
