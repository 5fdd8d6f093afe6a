package verb

import (
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
)

// The limit is each rule's own, so two rules for one refusal would double it.
func TestRefusedOnce(t *testing.T) {
	c, err := compiler.New(compiler.Default())
	if err != nil {
		t.Fatal(err)
	}
	port := &model.ServicePort{
		ID:        model.PortID{Namespace: "shop", Service: "empty", Protocol: model.TCP, Family: model.IPv4},
		ClusterIP: netip.MustParseAddr("10.96.0.10"), Port: 80,
	}
	c.Apply(&model.Changes{
		Full: true, Ports: map[model.PortID]*model.ServicePort{port.ID: port}, ServiceCIDRsChanged: true,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.98.0.0/16")},
	})
	own := c.Tables()[0]
	if n := len(own.Chain("filter-forward").Rules); n != 2 {
		t.Fatalf("%d rules lead to refusals, want one for each ServiceCIDR", n)
	}
	marks := new(refusals).marksBefore(own).Chain("filter-forward")
	seen := map[string]bool{}
	for i := range marks.Rules {
		rule := marks.Rules[i].String()
		if seen[rule] {
			t.Errorf("twice: %s", rule)
		}
		seen[rule] = true
	}
	if want := 5; len(seen) != want { // translated packets, the frontend, the ClusterIP's other ports, and two ServiceCIDRs
		t.Errorf("%d rules, want %d", len(seen), want)
	}
}
