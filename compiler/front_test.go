package compiler

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// The limits of internal/directreturn.
const (
	directAddresses = 50
	directSlots     = 4093
	directEndpoints = 1000
)

func TestDirectGrants(t *testing.T) {
	config := Default()
	config.DirectReturn = true
	compiler, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	// Each of the Services has two external addresses.
	id := func(i int) model.PortID {
		return model.PortID{Namespace: fmt.Sprintf("n%d", i%10), Service: fmt.Sprintf("s%03d", i), Protocol: model.TCP, Family: model.IPv4}
	}
	port := func(i int) *model.ServicePort {
		return &model.ServicePort{
			ID: id(i), Port: 80, DirectReturn: true, Creation: &model.Creation{Time: time.Unix(int64(i), 0)}, ExternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), netip.AddrFrom4([4]byte{203, 0, 114, byte(i)})},
			Cluster: []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Remote: true}},
		}
	}
	apply := func(t *testing.T, changes model.Changes, elements int) {
		t.Helper()
		compiler.Apply(&changes)
		if got := compiler.Tables()[0].Set("direct-hops").Len(); got != elements {
			t.Errorf("direct-hops has %d elements, want %d", got, elements)
		}
	}
	const services = directAddresses / 2
	t.Run("a thousand Services get no more elements than some", func(t *testing.T) {
		all := model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}}
		for i := range 1000 {
			p := port(i % 250)
			p.ID, p.Creation = id(i), port(i).Creation
			p.Port = uint16(80 + i/250)
			all.Ports[p.ID] = p
		}
		apply(t, all, directAddresses*directSlots)
	})
	t.Run("the others are told once", func(t *testing.T) {
		ids, all := compiler.WithoutDirectReturn()
		if len(ids) != 1000-services || all != len(ids) || slices.Contains(ids, id(services-1)) || !slices.Contains(ids, id(services)) {
			t.Errorf("%d and %d Service ports have none, want %d from %v on", len(ids), all, 1000-services, id(services))
		}
		if ids, again := compiler.WithoutDirectReturn(); len(ids) > 0 || again != all {
			t.Errorf("%d of %d are told again", len(ids), again)
		}
	})
	serves := func(i int) bool {
		_, has := compiler.Tables()[0].Set("direct-ips").Element(nft.AddrData(port(i).ExternalIPs[0]) + nft.ProtoData(6) + nft.PortData(80))
		return has
	}
	t.Run("the oldest ones have it, and the next one if one of these goes", func(t *testing.T) {
		if !serves(0) || !serves(services-1) || serves(services) {
			t.Errorf("direct return: the first %v, the last %v, one more %v", serves(0), serves(services-1), serves(services))
		}
		apply(t, model.Changes{Ports: map[model.PortID]*model.ServicePort{id(0): nil}}, directAddresses*directSlots)
		if serves(0) || !serves(services) {
			t.Errorf("direct return: one that is gone %v, the next one %v", serves(0), serves(services))
		}
	})
	t.Run("one with too many endpoints is told, too", func(t *testing.T) {
		p := port(2)
		p.Cluster = manyPods(directEndpoints + 1)
		apply(t, model.Changes{Ports: map[model.PortID]*model.ServicePort{id(2): p}}, directAddresses*directSlots)
		if ids, _ := compiler.WithoutDirectReturn(); len(ids) != 1 || ids[0] != id(2) {
			t.Errorf("%v have none", ids)
		}
		apply(t, model.Changes{Ports: map[model.PortID]*model.ServicePort{id(2): port(2)}}, directAddresses*directSlots)
	})
	t.Run("one without endpoints keeps its place", func(t *testing.T) {
		p := port(1)
		p.Cluster = nil
		apply(t, model.Changes{Ports: map[model.PortID]*model.ServicePort{id(1): p}}, directAddresses*directSlots)
	})
}

// Packets to other addresses leave after a comparison with a prefix. Those to addresses with direct return must not.
func TestDirectPrefix(t *testing.T) {
	for _, c := range []struct{ name, addresses, base, find string }{
		{"one address", "203.0.113.1", "ip daddr 203.0.113.1 ", ""},
		{"24 bits", "203.0.113.1 203.0.113.200", "ip daddr 203.0.112.0/23 ", "ip daddr != 203.0.113.0/24 return"},
		{"29 bits", "203.0.113.1 203.0.113.2 203.0.113.4", "ip daddr 203.0.113.0/29 ", ""},
		{"nothing in common", "8.8.8.8 203.0.113.1", "", ""},
		{"IPv6", "2001:db8:113::1 2001:db8:113::2", "ip6 daddr 2001:db8::/32 ", "ip6 daddr != 2001:db8:113::/126 return"},
		{"31 bits of IPv6", "2001:db8:: 2001:db9::", "ip6 daddr 2001::/16 ", "ip6 daddr != 2001:db8::/31 return"},
		{"nothing in common of IPv6", "2001:db8:: fd00::", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := Default()
			config.DirectReturn = true
			compiler, err := New(config)
			if err != nil {
				t.Fatal(err)
			}
			changes := &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}}
			for _, text := range strings.Fields(c.addresses) {
				address := netip.MustParseAddr(text)
				id := model.PortID{Namespace: "shop", Service: text, Protocol: model.TCP, Family: model.FamilyOf(address)}
				changes.Ports[id] = &model.ServicePort{
					ID: id, Port: 80, LoadBalancerIPs: []netip.Addr{address}, DirectReturn: true,
					Cluster: []model.Endpoint{{AddrPort: netip.AddrPortFrom(address.Next(), 80), Remote: true}},
				}
			}
			compiler.Apply(changes)
			rules := map[string]string{}
			for _, table := range compiler.Tables() {
				for _, chain := range table.Chains {
					for _, rule := range chain.Rules {
						rules[chain.Name] += rule.String() + "\n"
					}
				}
			}
			if got, want := rules["filter-prerouting-direct"], c.base+"jump direct-find\n"; got != want {
				t.Errorf("the base chain has %q, want %q", got, want)
			}
			first, _, _ := strings.Cut(rules["direct-find"], "\n")
			if !strings.HasSuffix(first, " return") {
				first = ""
			}
			if first != c.find {
				t.Errorf("%s begins with %q, want %q", "direct-find", first, c.find)
			}
		})
	}
}

// manyPods returns n endpoints.
func manyPods(n int) (endpoints []model.Endpoint) {
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		endpoints = append(endpoints, model.Endpoint{AddrPort: netip.AddrPortFrom(addr, 8080), Remote: true})
	}
	return endpoints
}
