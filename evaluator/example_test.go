package evaluator_test

import (
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// webTable sends connections to 192.0.2.1:80 to one of two endpoints, and masquerades an
// endpoint's connection to itself.
func webTable() *nft.Table {
	draw := nft.Concat{nft.IPDaddr, nft.MetaL4proto, nft.ThDport, nft.Numgen{Mod: 2}}
	web := &nft.Set{Name: "web", Key: draw, Data: nft.Concat{nft.IPDaddr, nft.ThDport}}
	hairpin := &nft.Set{Name: "hairpin", Key: nft.Concat{nft.IPSaddr, nft.IPDaddr}}
	frontend := nft.AddrData(netip.MustParseAddr("192.0.2.1")) + nft.ProtoData(unix.IPPROTO_TCP) + nft.PortData(80)
	for slot, text := range []string{"10.0.0.1", "10.0.0.2"} {
		endpoint := nft.AddrData(netip.MustParseAddr(text))
		web.Put(nft.Element{Key: frontend + nft.IntegerData(uint32(slot)), Value: endpoint + nft.PortData(8080)})
		hairpin.Put(nft.Element{Key: endpoint + endpoint})
	}
	return &nft.Table{
		Family: nft.FamilyIP,
		Name:   "example",
		Sets:   []*nft.Set{web, hairpin},
		Chains: []*nft.Chain{
			{
				Name: "nat-prerouting", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT,
				Rules: []nft.Rule{nft.NewRule(nft.DNAT(nft.FamilyIP, draw, web.Name))},
			},
			{
				Name: "nat-postrouting", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT,
				Rules: []nft.Rule{nft.NewRule(nft.InSet{Key: hairpin.Key, Set: hairpin.Name}, nft.Masquerade)},
			},
		},
	}
}

// All that can become of a packet, and by which rules.
func Example() {
	e := evaluator.New([]*nft.Table{webTable()}, evaluator.Host{})
	packet := evaluator.Packet{
		Source:      netip.MustParseAddrPort("10.0.0.1:40000"),
		Destination: netip.MustParseAddrPort("192.0.2.1:80"),
		Protocol:    unix.IPPROTO_TCP,
	}
	fates, err := e.Fates(packet)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(packet)
	fmt.Print(fates)
	// Output:
	// tcp 10.0.0.1:40000 to 192.0.2.1:80
	// 2 possible fates
	//
	// to 10.0.0.1:8080, source masqueraded
	//   prerouting
	//     ip example nat-prerouting: dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @web (accept)
	//         192.0.2.1 . tcp . 80 . 0 : 10.0.0.1 . 8080
	//     routing: forwarded
	//   postrouting
	//     ip example nat-postrouting: ip saddr . ip daddr @hairpin masquerade fully-random (accept)
	//         10.0.0.1 . 10.0.0.1
	//
	// to 10.0.0.2:8080, source kept
	//   prerouting
	//     ip example nat-prerouting: dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @web (accept)
	//         192.0.2.1 . tcp . 80 . 1 : 10.0.0.2 . 8080
	//     routing: forwarded
	//   postrouting
	//     ip example nat-postrouting: policy accept
}

// A Fate has what became of a packet as values too.
func ExampleEvaluator_Fates() {
	e := evaluator.New([]*nft.Table{webTable()}, evaluator.Host{})
	fates, err := e.Fates(evaluator.Packet{
		Source:      netip.MustParseAddrPort("198.51.100.7:40000"),
		Destination: netip.MustParseAddrPort("192.0.2.1:80"),
		Protocol:    unix.IPPROTO_TCP,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range fates {
		fmt.Println(f.Result, f.Destination, f.Masqueraded, len(f.Path))
	}
	// Output:
	// delivered 10.0.0.1:8080 false 3
	// delivered 10.0.0.2:8080 false 3
}
