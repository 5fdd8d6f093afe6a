package compiler

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"pgregory.net/rapid"
)

// pods returns n endpoints with different random addresses.
func pods(random *rand.Rand, n int) (endpoints []model.Endpoint) {
	seen := map[netip.AddrPort]bool{}
	for len(endpoints) < n {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(random.Uint32()), byte(random.Uint32())})
		if ap := netip.AddrPortFrom(addr, 8080); !seen[ap] {
			seen[ap] = true
			endpoints = append(endpoints, model.Endpoint{AddrPort: ap, Remote: true})
		}
	}
	return endpoints
}

func TestSlotOwners(t *testing.T) {
	// Whoever writes EndpointSlices can find two IPv6 addresses with one seed of 64 bits.
	t.Run("ends with endpoints that have the same scores", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 0))
		one := pods(random, 1)[0]
		for n := range 5 {
			all := append(pods(random, n), one, one)
			checkLoad(t, slotOwners(all), len(all))
		}
	})
	t.Run("moves, and loads, little more than the share", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			n := rapid.IntRange(1, 40).Draw(t, "endpoints")
			all := pods(random, n+1)
			before, after := slotOwners(all[:n]), slotOwners(all)
			checkLoad(t, before, n)
			checkLoad(t, after, n+1)
			moved := 0
			for slot := range before {
				if before[slot] != after[slot] {
					moved++
				}
			}
			if most := directSlots * (1/float64(n+1) + 0.02); float64(moved) > most {
				t.Errorf("with one endpoint more than %d, %d of %d slots moved, want at most %.0f", n, moved, directSlots, most)
			}
		})
	})
	t.Run("does not depend on the order", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			all := pods(random, rapid.IntRange(1, 40).Draw(t, "endpoints"))
			order := random.Perm(len(all))
			shuffled := make([]model.Endpoint, len(all))
			for to, from := range order {
				shuffled[to] = all[from]
			}
			have, other := slotOwners(all), slotOwners(shuffled)
			for slot := range have {
				if want := all[have[slot]]; shuffled[other[slot]] != want {
					t.Fatalf("slot %d is of %v and, in another order, of %v", slot, want.AddrPort, shuffled[other[slot]].AddrPort)
				}
			}
		})
	})
	t.Run("loads the most endpoints evenly", func(t *testing.T) {
		load := make([]int, directEndpoints)
		for _, owner := range slotOwners(pods(rand.New(rand.NewPCG(1, 2)), directEndpoints)) {
			if load[owner]++; load[owner] > directSlots/directEndpoints+1 {
				t.Fatalf("endpoint %d has %d slots", owner, load[owner])
			}
		}
	})
}

func checkLoad(t rapid.TB, owners []uint16, n int) {
	load := make([]int, n)
	for _, owner := range owners {
		load[owner]++
	}
	for i, slots := range load {
		if most := 1.05 * directSlots / float64(n); float64(slots) > most {
			t.Errorf("endpoint %d of %d has %d slots, want at most %.1f", i, n, slots, most)
		}
	}
}

func BenchmarkSlotOwners(b *testing.B) {
	for _, n := range []int{3, 50, directEndpoints} {
		endpoints := pods(rand.New(rand.NewPCG(1, 2)), n)
		b.Run(fmt.Sprintf("%d endpoints", n), func(b *testing.B) {
			for b.Loop() {
				slotOwners(endpoints)
			}
		})
	}
}

func TestDirectGrants(t *testing.T) {
	config := Default()
	config.DirectReturn = true
	compiler, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	// Each of the Services has two external addresses.
	id := func(i int) model.PortID {
		return model.PortID{Namespace: "default", Service: fmt.Sprintf("s%03d", i), Protocol: model.TCP, Family: model.IPv4}
	}
	port := func(i int) *model.ServicePort {
		return &model.ServicePort{
			ID: id(i), Port: 80, DirectReturn: true, ExternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), netip.AddrFrom4([4]byte{203, 0, 114, byte(i)})},
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
			p.ID = id(i)
			p.Port = uint16(80 + i/250)
			all.Ports[p.ID] = p
		}
		apply(t, all, directAddresses*directSlots)
	})
	t.Run("the others are told once", func(t *testing.T) {
		if ids := compiler.WithoutDirectReturn(); len(ids) != 1000-services || ids[0] != id(services) {
			t.Errorf("%d Service ports have none, want %d from %v on", len(ids), 1000-services, id(services))
		}
		if ids := compiler.WithoutDirectReturn(); len(ids) > 0 {
			t.Errorf("%d are told again", len(ids))
		}
	})
	serves := func(i int) bool {
		_, has := compiler.Tables()[0].Set("direct-ips").Element(nft.AddrData(port(i).ExternalIPs[0]) + nft.ProtoData(6) + nft.PortData(80))
		return has
	}
	t.Run("the first ones by name have it, and the next one if one of these goes", func(t *testing.T) {
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
		p.Cluster = pods(rand.New(rand.NewPCG(1, 2)), directEndpoints+1)
		apply(t, model.Changes{Ports: map[model.PortID]*model.ServicePort{id(2): p}}, (directAddresses-2)*directSlots)
		if ids := compiler.WithoutDirectReturn(); len(ids) != 1 || ids[0] != id(2) {
			t.Errorf("%v have none", ids)
		}
		apply(t, model.Changes{Ports: map[model.PortID]*model.ServicePort{id(2): port(2)}}, directAddresses*directSlots)
	})
	t.Run("one without endpoints keeps its place", func(t *testing.T) {
		p := port(1)
		p.Cluster = nil
		apply(t, model.Changes{Ports: map[model.PortID]*model.ServicePort{id(1): p}}, (directAddresses-2)*directSlots)
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
			if got, want := rules[chainPreroutingDirect], c.base+"jump direct-find\n"; got != want {
				t.Errorf("the base chain has %q, want %q", got, want)
			}
			first, _, _ := strings.Cut(rules[chainDirectFind], "\n")
			if !strings.HasSuffix(first, " return") {
				first = ""
			}
			if first != c.find {
				t.Errorf("%s begins with %q, want %q", chainDirectFind, first, c.find)
			}
		})
	}
}
