package directreturn

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// pods returns n endpoints with different random addresses.
func pods(random *rand.Rand, n int) (endpoints []netip.AddrPort) {
	seen := map[netip.AddrPort]bool{}
	for len(endpoints) < n {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(random.Uint32()), byte(random.Uint32())})
		if ap := netip.AddrPortFrom(addr, 8080); !seen[ap] {
			seen[ap] = true
			endpoints = append(endpoints, ap)
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
			if most := slotCount * (1/float64(n+1) + 0.02); float64(moved) > most {
				t.Errorf("with one endpoint more than %d, %d of %d slots moved, want at most %.0f", n, moved, slotCount, most)
			}
		})
	})
	t.Run("does not depend on the order", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			all := pods(random, rapid.IntRange(1, 40).Draw(t, "endpoints"))
			order := random.Perm(len(all))
			shuffled := make([]netip.AddrPort, len(all))
			for to, from := range order {
				shuffled[to] = all[from]
			}
			have, other := slotOwners(all), slotOwners(shuffled)
			for slot := range have {
				if want := all[have[slot]]; shuffled[other[slot]] != want {
					t.Fatalf("slot %d is of %v and, in another order, of %v", slot, want, shuffled[other[slot]])
				}
			}
		})
	})
	t.Run("loads the most endpoints evenly", func(t *testing.T) {
		load := make([]int, maxEndpoints)
		for _, owner := range slotOwners(pods(rand.New(rand.NewPCG(1, 2)), maxEndpoints)) {
			if load[owner]++; load[owner] > slotCount/maxEndpoints+1 {
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
		if most := 1.05 * slotCount / float64(n); float64(slots) > most {
			t.Errorf("endpoint %d of %d has %d slots, want at most %.1f", i, n, slots, most)
		}
	}
}

func BenchmarkSlotOwners(b *testing.B) {
	for _, n := range []int{3, 50, maxEndpoints} {
		endpoints := pods(rand.New(rand.NewPCG(1, 2)), n)
		b.Run(fmt.Sprintf("%d endpoints", n), func(b *testing.B) {
			for b.Loop() {
				slotOwners(endpoints)
			}
		})
	}
}
